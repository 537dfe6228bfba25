"""Training that is paused, stopped or taken up again, by providers that know each other by name.

All providers of a run are in this process, on loopback, as an agent would start them: the plan has
names for addresses, routes lead to them, and certificates say who is who.
"""

import json
import threading

import pytest
import torch
from certificates import our_authority
from torch import nn

from ravnest import Averaging, Node, Trainer, clusterize, model_fusion
from ravnest.errors import NodeError, PeerError, RunError
from ravnest.ports import free_ports
from ravnest.provider.control import Control
from ravnest.rundir import RunDir
from ravnest.wire.peers import Patience
from ravnest.wire.security import TlsFiles

BATCHES = 6
SOON = Patience(connect_s=30, resume_s=2, nobody_s=1)


def model():
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)
    )


def data(clusters=1):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(8, 4, generator=generator), torch.randint(0, 3, (8,), generator=generator))
        for _ in range(BATCHES * clusters)
    ]


def criterion(outputs, batch):
    return nn.functional.cross_entropy(outputs, batch[1])


class Watched(Control):
    """Tells when somebody is held by it."""

    def __init__(self):
        super().__init__()
        self.holds = threading.Event()

    def when_not_paused(self, call):
        super().when_not_paused(call)
        self.holds.set()


class Interrupted:
    """Batches, before one of which something happens; counted over all epochs."""

    def __init__(self, batches, before=None, do=None):
        self._batches, self._before, self._do = batches, before, do
        self._given = 0

    def __len__(self):
        return len(self._batches)

    def __iter__(self):
        for batch in self._batches:
            if self._given == self._before:
                self._do()
            self._given += 1
            yield batch


class Company:
    """Providers of one run, each with a script of its own in a thread."""

    def __init__(self, folder, providers, clusters=1, **options):
        self.run = RunDir(folder / "node_data")
        self.folder, self.clusters = folder, clusters
        self.options = options
        self.controls = [Watched() for _ in range(clusters)]
        self.trainers, self.failures = {}, {}
        places = [f"127.0.0.1:{port}" for port in free_ports(providers)]
        self.places = {f"provider-{k}:1": place for k, place in enumerate(places)}
        self._plan(providers)
        for k in range(providers):
            self._certify(f"provider-{k}")

    def _plan(self, providers):
        machine = {"benchmarks": {"ram": 4, "bandwidth": 1000}}
        pool = {str(k): {"IP": name, **machine} for k, name in enumerate(self.places)}
        self.run.root.mkdir()
        self.run.pool_file.write_text(json.dumps(pool))
        clusterize(
            model(),
            (data()[0][0],),
            node_data=self.run.root,
            max_clusters=self.clusters,
            min_cluster_size=providers // self.clusters,
            idle_gain=1e9,
            quiet=True,
        )

    def _certify(self, name):
        keys = our_authority().keys(name, dns=(name,))
        (self.folder / f"{name}.ca").write_text(keys.authority.pem)
        (self.folder / f"{name}.pem").write_bytes(keys.certificate)
        (self.folder / f"{name}.key").write_bytes(keys.key)

    def node(self, number):
        name = f"provider-{number}"
        files = [self.folder / f"{name}.{end}" for end in ("ca", "pem", "key")]
        return Node(
            name=f"node_{number}",
            node_data=self.run.root,
            tls=TlsFiles(*files, names="provider"),
            listen=self.places[f"{name}:1"],
            routes=self.places,
            telemetry=True,
            patience=SOON,
            optimizer="sgd",
            optimizer_params={"lr": 0.1},
            criterion=criterion,
            labels=data(self.clusters),
            loss_filename=str(self.folder / "losses.txt"),
            **self.options,
        )

    def script(self, number, training):
        try:
            with self.node(number) as node:
                given = {k: v(node) if callable(v) else v for k, v in training.items()}
                trainer = self.trainers[number] = Trainer(
                    node=node,
                    save=True,
                    control=self.controls[node.cluster_id],
                    **{"train_loader": data(self.clusters), **given},
                )
                trainer.train()
        except RunError as error:
            self.failures[number] = error

    def train(self, **training):
        """All providers at work; `training` is for their Trainers, and may depend on the node.
        Returns those of the Roots."""
        training = {"epochs": 2, **training}
        scripts = [
            threading.Thread(target=self.script, args=(k, training))
            for k in range(len(self.places))
        ]
        for script in scripts:
            script.start()
        for script in scripts:
            script.join(120)
            assert not script.is_alive(), "stuck"
        roots = [t for t in self.trainers.values() if t.node.is_root]
        return sorted(roots, key=lambda trainer: trainer.node.cluster_id)

    def fused(self, cluster=0):
        path = model_fusion(cluster_id=cluster, node_data=self.run.root)
        return torch.load(path, weights_only=True)


def trained(batches, per_update=1, epochs=1):
    """The reference: these batches on one machine."""
    alone = model()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for _ in range(epochs):
        for first in range(0, len(batches), per_update):
            group = batches[first : first + per_update]
            optimizer.zero_grad()
            for batch in group:
                (criterion(alone(batch[0]), batch) / len(group)).backward()
            optimizer.step()
    return alone.state_dict()


def assert_close(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.allclose(found[name], tensor, atol=1e-6), name


@pytest.mark.parametrize("per_update", [1, 2], ids=["whole updates", "an update cut short"])
def test_training_that_is_stopped_in_the_middle_is_what_it_was_until_then(tmp_path, per_update):
    company = Company(tmp_path, 2, schedule="sync", update_frequency=per_update)
    batches = Interrupted(data(), BATCHES + 3, company.controls[0].stop)
    (root,) = company.train(train_loader=batches)
    assert not company.failures
    assert (root.was_stopped, root.epochs_done, root.batches_done) == (True, 1, 3)
    assert root.progress.step == BATCHES + 3
    assert_close(company.fused(), trained([*data(), *data()[:3]], per_update))
    losses = (tmp_path / "losses.txt").read_text().splitlines()
    assert len(losses) == BATCHES // per_update + -(-3 // per_update)


def test_training_that_is_stopped_before_it_begins_saves_what_there_was(tmp_path):
    company = Company(tmp_path, 2)
    company.controls[0].stop()
    (root,) = company.train()
    assert not company.failures
    assert (root.was_stopped, root.epochs_done, root.batches_done) == (True, 0, 0)
    assert_close(company.fused(), model().state_dict())


@pytest.mark.parametrize("mode", ["background", "blocking"])
@pytest.mark.parametrize("who", [(0,), (0, 1)], ids=["one", "all"])
def test_clusters_that_are_stopped_end_as_one_model(tmp_path, mode, who):
    company = Company(
        tmp_path,
        3,
        clusters=2,
        averaging=Averaging(mode=mode, connect_s=30, resume_s=5, wait_s=60),
        reduce_factor=4,
        update_frequency=2,
    )
    roots = company.train(
        epochs=4,
        train_loader=lambda node: Interrupted(
            data(2),
            7 + 4 * node.cluster_id if node.cluster_id in who else None,
            company.controls[node.cluster_id].stop,
        ),
    )
    assert not company.failures
    assert [root.was_stopped for root in roots] == [k in who for k in range(2)]
    assert_close(company.fused(0), company.fused(1))
    before = model().state_dict()
    assert any(not torch.equal(tensor, before[name]) for name, tensor in company.fused().items())


def test_clusters_that_are_stopped_before_they_begin_end_as_one_model(tmp_path):
    company = Company(tmp_path, 2, clusters=2, averaging=Averaging(connect_s=30, wait_s=60))
    for control in company.controls:
        control.stop()
    company.train()
    assert not company.failures
    for cluster in range(2):
        assert_close(company.fused(cluster), model().state_dict())


def paused(company, then):
    """Batches with a pause in the second epoch; once the Root stands still, `then` is done."""
    control = company.controls[0]

    def look():
        assert control.holds.wait(60)
        then(control)

    def pause():
        control.pause()
        threading.Thread(target=look, daemon=True).start()

    return Interrupted(data(), BATCHES + 5, pause)


def test_a_pause_changes_nothing_but_the_time(tmp_path):
    company = Company(tmp_path, 2, schedule="sync", update_frequency=4)
    seen = []

    def look_and_resume(control):
        seen.append((control.is_paused, company.trainers[0].n_forwards))
        control.resume()

    (root,) = company.train(train_loader=paused(company, look_and_resume))
    assert not company.failures
    assert seen == [(True, BATCHES + 5)]
    assert (root.was_stopped, root.epochs_done) == (False, 2)
    assert_close(company.fused(), trained(data(), 4, epochs=2))


def test_training_can_be_stopped_while_it_is_paused(tmp_path):
    company = Company(tmp_path, 2)
    (root,) = company.train(train_loader=paused(company, Control.stop))
    assert not company.failures
    assert (root.was_stopped, root.epochs_done, root.batches_done) == (True, 1, 5)


def test_a_run_that_fails_while_it_is_paused_ends_and_all_know_whose_fault_it_was(tmp_path):
    company = Company(tmp_path, 2)

    def fail(control):
        company.trainers[1].node.runtime.abort("it has had enough")

    company.train(train_loader=paused(company, fail))
    assert set(company.failures) == {0, 1}
    assert "node_1 failed: it has had enough" in str(company.failures[0])
    failures = [company.trainers[number].node.failure for number in (0, 1)]
    assert isinstance(failures[0], PeerError)
    assert failures[0].node == "node_1"
    assert not isinstance(failures[1], PeerError)


def test_epochs_of_an_earlier_run_are_not_trained_again(tmp_path):
    company = Company(tmp_path, 1)
    (root,) = company.train(epochs=3, first_epoch=1)
    assert (root.epochs_done, root.n_forwards, root.progress.epoch) == (3, 2 * BATCHES, 2)


def test_what_a_trainer_cannot_be_driven_by_is_named(tmp_path):
    company = Company(tmp_path, 1, start=False)
    node = company.node(0)
    with pytest.raises(NodeError, match=r"control is True; expected Control\("):
        Trainer(node=node, train_loader=data(), control=True)
    with pytest.raises(NodeError, match="first_epoch is -1"):
        Trainer(node=node, train_loader=data(), first_epoch=-1)
