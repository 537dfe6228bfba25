"""What `Node` and `Trainer` refuse, and how they bind inputs; whole runs are in processes/."""

import json
import socket
import threading
from types import SimpleNamespace

import msgspec
import pytest
import torch
from torch import nn

from ravnest import Averaging, Node, Trainer, clusterize
from ravnest.errors import NodeError, RavnestError
from ravnest.ports import free_ports
from ravnest.provider.compute.device_memory import Room
from ravnest.wire.security import TlsFiles


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x, mask=None):
        hidden = torch.relu(self.first(x))
        return self.second(hidden if mask is None else hidden * mask)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A plan for one provider, so that a Node can work alone."""
    folder = tmp_path_factory.mktemp("node_data")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pool = {"0": {"IP": f"127.0.0.1:{port}", "benchmarks": {"ram": 2, "bandwidth": 100}}}
    (folder / "node_configs.json").write_text(json.dumps(pool))
    torch.manual_seed(0)
    model = TwoInputs()
    example = {"mask": torch.ones(4, 8)}
    clusterize(model, (torch.rand(4, 4),), example, node_data=folder, quiet=True)
    return folder


def make(folder, **options):
    options = {"start": False, "name": "node_0"} | options
    return Node(node_data=folder, **options)


MISTAKES = {
    "no name": ({"name": None}, "needs a name"),
    "odd name": ({"name": "root"}, "expected 'node_0'"),
    "not in the plan": ({"name": "node_7"}, "node_7 is not part of the plan, which has node_0"),
    "unknown argument": ({"lr": 0.1}, "does not know the argument 'lr'$"),
    "nearly known argument": ({"compress": True}, "'compress'; did you mean compression=…"),
    "no batches": ({"update_frequency": 0}, "update_frequency is 0"),
    "half a part": ({"micro_batches": 1.5}, "micro_batches is 1.5"),
    "one version": ({"max_versions": 1}, "max_versions is 1; a pipeline needs at least 2"),
    "nothing in flight": ({"max_in_flight": 0}, "max_in_flight is 0"),
    "no device": ({"device": "cuda:77"}, "device is 'cuda:77'; it cannot be used here"),
    "clip by a word": ({"clip_grad_norm": "a"}, "clip_grad_norm is 'a'"),
    "unknown transport": ({"transport": "udp"}, "expected one of 'grpc', 'tcp'"),
    "secrets over tcp": ({"transport": "tcp", "tls": TlsFiles("a", "b", "c")}, "does not encrypt"),
    "a route to nowhere": (
        {"routes": {"provider-7:1": "nowhere"}},
        "the route from 'provider-7:1' to 'nowhere': 'nowhere' is no address",
    ),
    "listen by number": ({"listen": 8080}, "listen: 8080 is no address; expected host:port"),
    "no bandwidth": ({"bandwidth_mbps": 0}, "bandwidth_mbps is 0; expected a number above 0"),
    "unknown schedule": ({"schedule": "eager"}, "expected one of 'async', 'sync'"),
    "unknown precision": ({"precision": "int4"}, "precision is 'int4'"),
    "a mode alone": ({"averaging": "blocking"}, r"averaging is 'blocking'; expected Averaging\("),
    "a mode in a dict": ({"averaging": {"mode": "blocking"}}, r"expected Averaging\("),
    "an empty dict": ({"averaging": {}}, r"averaging is {}; expected Averaging\("),
    "averaging by number": ({"averaging": 3}, "averaging is 3"),
    "the class itself": ({"averaging": Averaging}, r"averaging is <class .*; expected Averaging\("),
    "patience by number": ({"patience": 3}, r"patience is 3; expected Patience\("),
    "farewell by a word": ({"farewell_s": "x"}, "farewell_s is 'x'; expected seconds"),
    "farewell never": ({"farewell_s": None}, r"farewell_s is None; .*math\.inf for no limit"),
}


@pytest.mark.parametrize(("options", "message"), MISTAKES.values(), ids=list(MISTAKES))
def test_mistakes_are_named(folder, monkeypatch, options, message):
    monkeypatch.delenv("RAVNEST_NODE", raising=False)
    with pytest.raises(NodeError, match=message):
        make(folder, **options)


def test_without_a_plan_the_remedy_is_named(tmp_path):
    with pytest.raises(NodeError, match="run clusterize first"):
        make(tmp_path)


def test_the_name_may_come_from_the_environment(folder, monkeypatch):
    monkeypatch.setenv("RAVNEST_NODE", "node_0")
    node = make(folder, name=None)
    assert (node.name, node.node_type, node.is_root, node.is_leaf) == ("node_0", "Root", True, True)


def test_a_provider_takes_the_share_of_its_device_that_it_may(folder, monkeypatch):
    limits = []
    monkeypatch.setattr(Room, "limit", lambda self, share: limits.append((self.device, share)))
    make(folder)
    assert limits == []
    monkeypatch.setenv("RAVNEST_DEVICE_SHARE", "0.25")
    node = make(folder)
    assert limits == [(node.device, 0.25)]


X, MASK = torch.rand(6, 4), torch.ones(6, 8)
CALLS = {
    "by position": ((X, MASK), {}),
    "by keyword": (None, {"x": X, "mask": MASK}),
    "the older spelling": (X, {"l_mask_": MASK}),
    "as a mapping": ({"x": X, "mask": MASK}, {}),
}


@pytest.mark.parametrize(("tensors", "named"), CALLS.values(), ids=list(CALLS))
def test_inputs_are_bound_as_the_model_takes_them(folder, tensors, named):
    values, rows = make(folder)._inputs.bind(tensors, named, "train")
    assert rows == 6
    assert [tuple(value.shape) for value in values.values()] == [(6, 4), (6, 8)]


def test_wrong_inputs_are_refused_before_anything_is_sent(folder):
    node = make(folder)
    with pytest.raises(ValueError, match="different numbers of rows"):
        node._inputs.bind((X, MASK[:3]), {}, "train")
    with pytest.raises(ValueError, match="is missing"):
        node._inputs.bind(X, {}, "train")
    with pytest.raises(RavnestError, match="l_odd"):
        node._inputs.bind((X, MASK), {"l_odd": X}, "train")


def test_a_node_that_could_not_start_keeps_nothing(folder):
    with pytest.raises(NodeError, match="'AdamW' cannot be made"):
        make(folder, start=True, optimizer="adamw", optimizer_params={"lr": -1.0})
    make(folder, start=True, optimizer="adamw").close()


def test_a_trainer_refuses_what_would_fail_only_after_an_epoch(folder):
    node = make(folder)
    with pytest.raises(NodeError, match="val_freq is 0"):
        Trainer(node=node, train_loader=[], val_freq=0)
    with pytest.raises(NodeError, match="test_labels"):
        Trainer(node=node, train_loader=[], val_loader=[])


def test_a_validation_that_was_broken_off_can_be_forgotten(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = [{"x": torch.rand(4, 4), "mask": torch.ones(4, 8), "y": torch.full((4,), k % 3)}
            for k in range(4)]  # fmt: skip
    metrics = {"right": lambda outputs, batch: (batch["y"] == batch["y"]).float().mean()}
    with make(folder, start=True, test_labels=data, metrics=metrics) as node:
        trainer = Trainer(node=node, train_loader=[], val_loader=data)
        first = data[0]
        node.no_grad_forward_compute(
            {"x": first["x"], "mask": first["mask"]}, output_type="val", proof_of_item=first
        )
        node.reset()
        assert trainer.evaluate() == 1.0


def test_one_provider_trains_validates_and_predicts(folder, tmp_path, monkeypatch):
    """Root and Leaf at once, in this process; leaves no thread behind."""
    before = set(threading.enumerate())
    monkeypatch.chdir(tmp_path)
    items = [{"x": X, "mask": MASK, "labels": torch.tensor([0, 1, 2, 0, 1, 2])}] * 5
    node = make(
        folder,
        start=True,
        optimizer=torch.optim.SGD,
        optimizer_params={"lr": 0.1},
        criterion=lambda outputs, batch: nn.functional.cross_entropy(outputs, batch["labels"]),
        labels=items,
        test_labels=items[:2],
    )
    with node:
        trainer = Trainer(node=node, train_loader=items, val_loader=items[:2], epochs=3)
        trainer.train()
        assert trainer.n_forwards == 15
        assert set(trainer.metrics) == {"accuracy", "loss"}
        found = trainer.pred((X[:2], MASK[:2]))
        assert found.shape == (2, 3)
    assert len((tmp_path / "losses.txt").read_text().splitlines()) == 15
    assert len((tmp_path / "val_accuracies.txt").read_text().splitlines()) == 3
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if thread.name.startswith("ravnest")]
    with pytest.raises(NodeError, match="has been closed"):
        node.forward_compute((X, MASK))


def test_a_trainer_needs_a_node_and_data(folder):
    with pytest.raises(NodeError, match="needs a node"):
        Trainer()
    node = make(folder, start=True)
    try:
        with pytest.raises(NodeError, match="give Node an optimizer"):
            Trainer(node=node, train_loader=[]).train()
    finally:
        node.close()
    node = make(folder, start=True, optimizer="sgd", criterion=nn.MSELoss())
    try:
        with pytest.raises(NodeError, match="cannot train without labels"):
            Trainer(node=node, train_loader=[]).train()
    finally:
        node.close()
    node = make(folder, start=True, optimizer="sgd", criterion=nn.MSELoss(), labels=[])
    try:
        with pytest.raises(NodeError, match="needs a train_loader"):
            Trainer(node=node).train()
        with pytest.raises(NodeError, match="needs a val_loader"):
            Trainer(node=node).evaluate()
    finally:
        node.close()


def test_a_mistake_that_was_told_does_not_hide_a_later_failure(folder):
    """The script has corrected it and gone on; its exit code must still tell of the failure."""
    node = make(folder, start=True, optimizer="adamw")
    with pytest.raises(NodeError, match="StepLR"):
        node.set_lr_scheduler(torch.optim.lr_scheduler.StepLR, {"steps": 3})
    node.set_lr_scheduler(torch.optim.lr_scheduler.StepLR, {"step_size": 3})
    node.runtime.abort("something went wrong")
    assert node._lifetime.at_exit() == 1


def test_every_update_has_a_number_of_its_own(folder):
    """The last round of all clusters ends an update that was cut short."""
    node, orders = make(folder, update_frequency=2), []
    node._lifetime._runtime = SimpleNamespace(user=SimpleNamespace(order=orders.append))
    node.document = msgspec.structs.replace(node.document, ring_size=2)
    numbers = [of.update for of, *_ in node._numbers.training(1)]
    node.synchronize()
    numbers += [of.update for of, *_ in node._numbers.training(1)]
    assert orders == ["average"]
    assert numbers == [0, 1]


class Speller(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.scores = nn.Embedding(9, 8), nn.Linear(8, 9)

    def forward(self, words):
        return self.scores(self.words(words))


@pytest.mark.parametrize("reconstructs", [False, True])
def test_labels_that_are_the_inputs_are_refused_with_the_first_batch(tmp_path, reconstructs):
    """The Root says what it gives to the model, the Leaf what it is asked for."""
    pool = {"0": {"IP": f"127.0.0.1:{free_ports(1)[0]}", "benchmarks": {"ram": 2, "bandwidth": 9}}}
    (tmp_path / "node_configs.json").write_text(json.dumps(pool))
    words = list(torch.randint(0, 9, (3, 4, 7)))
    clusterize(Speller(), (words[0],), node_data=tmp_path, quiet=True)
    node = make(
        tmp_path,
        start=True,
        optimizer="sgd",
        criterion=lambda outputs, labels: nn.functional.cross_entropy(outputs.mT, labels),
        labels=words,
        loss_filename=str(tmp_path / "losses.txt"),
        reconstructs=reconstructs,
    )
    try:
        if reconstructs:
            Trainer(node=node, train_loader=words).train()
        else:
            with pytest.raises(RavnestError, match="learn to copy its input"):
                Trainer(node=node, train_loader=words).train()
    finally:
        node.close()
