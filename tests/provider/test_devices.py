"""Providers compute on a device of their own what they compute on the CPU."""

import contextlib
import copy
import threading
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from devices import requires_toy
from pipelines import TiedModel, pipeline, settings_for
from safetensors.torch import load_file
from test_pipeline import ADAMW, SGD, difference, loss_of, one_machine, words
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from ravnest.errors import PeerError
from ravnest.provider import leaf as leaves
from ravnest.provider.compression import Compression
from ravnest.provider.compute.copies import QueuedCopies, copies_for
from ravnest.provider.compute.randomness import RandomState
from ravnest.provider.leaf import Leaf, LeafSettings
from ravnest.provider.options import usable_device
from ravnest.stage.package import check_trained
from ravnest.wire import messages

requires_toy()
from devices import toy  # noqa: E402
from devices.queues import played  # noqa: E402

TOY = torch.device("toy", 0)
MIXED = ("cpu", "toy", "cpu")


@contextlib.contextmanager
def cluster_on(devices, model, folder, batches, update=SGD, criterion=loss_of, **options):
    build = {key: options.pop(key) for key in ("parts", "update_frequency") if key in options}
    settings = settings_for(batches, criterion, update, **{"schedule": "sync"} | options)
    build |= {"stages": len(devices), "devices": devices}
    with pipeline(model, (batches[0],), folder, settings, **build) as cluster:
        yield cluster


def train(devices, model, folder, batches, *args, epochs=1, **options):
    with cluster_on(devices, model, folder, batches, *args, **options) as cluster:
        for _ in range(epochs):
            for batch in batches:
                cluster.train(batch)
            cluster.order("epoch")
        return cluster.state(), list(cluster.losses)


def assert_same(found, expected, slack=0.0):
    for name, tensor in expected[0].items():
        torch.testing.assert_close(found[0][name], tensor, rtol=slack, atol=slack, msg=name)
    assert found[1] == pytest.approx(expected[1], rel=slack, abs=slack)


@pytest.mark.parametrize(
    ("update", "devices"),
    [(SGD, ("toy",)), (ADAMW, ("toy", "toy")), (ADAMW, MIXED), (SGD, ("toy", "cpu", "toy"))],
    ids=["one device", "two stages", "cpu, device, cpu", "device, cpu, device"],
)
def test_a_pipeline_over_devices_is_one_machine(tmp_path, update, devices):
    """Tied weights, a skip connection, accumulation that does not divide the epoch, clipping."""
    torch.manual_seed(0)
    model, batches = TiedModel(), words()
    reference = copy.deepcopy(model)
    options = {"parts": 2, "update_frequency": 2, "epochs": 2}
    state, losses = train(devices, model, tmp_path, batches, update, **options)
    expected = one_machine(reference, batches, update, 2, epochs=2)
    assert difference(state, reference) < 1e-5
    assert losses == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("codec", "early"),
    [(None, False), (None, True), ("int8", False)],
    ids=["late", "early", "packed, late"],
)
def test_queues_change_nothing(tmp_path, codec, early):
    """Copies in both directions, beside computing, by devices that do whatever they may."""
    torch.manual_seed(0)
    model, batches = TiedModel(width=32), words(batches=3, rows=9)
    options = {"parts": 3, "compression": Compression(edges=codec)}
    devices = ("toy", "cpu", "toy")
    expected = train(devices, model, tmp_path / "plain", batches, **options)
    with played(early=early) as (player, _):
        found = train(devices, model, tmp_path / "queues", batches, **options)
    assert_same(found, expected, 1e-5 if codec is None else 1e-2)
    assert player.reused


class Churning(nn.Module):
    """Borders are transposed values."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(6))
        self.norm = nn.BatchNorm1d(12)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x.t().contiguous().t()))
            x = x.t().relu().t()
        return self.norm(x)


@pytest.mark.parametrize("recompute", [False, True])
def test_borders_that_are_not_contiguous_are_kept_until_they_are_copied(tmp_path, recompute):
    torch.manual_seed(0)
    model, batches = Churning(), [torch.randn(16, 12) for _ in range(4)]

    def square(outputs, batch):
        return (outputs - batch).square().mean()

    found = []
    for name, queues in ("plain", contextlib.nullcontext()), ("queues", played()):
        torch.manual_seed(1)
        with queues:
            options = {"parts": 4, "recompute": recompute}
            devices = ("toy", "toy", "cpu")
            found.append(train(devices, model, tmp_path / name, batches, SGD, square, **options))
    assert_same(found[1], found[0], 1e-5)


def test_random_numbers_of_a_device_are_drawn_again():
    before = RandomState.now(TOY)
    drawn = torch.rand(5, device=TOY)
    assert not RandomState.now(TOY).equals(before)
    after = torch.rand(5, device=TOY)
    with before.again():
        assert torch.equal(torch.rand(5, device=TOY), drawn)
        assert torch.equal(torch.rand(5, device=TOY), after)


def test_what_is_only_handed_on_never_reaches_the_device(tmp_path, monkeypatch):
    """The embedded words pass the middle by, as do their gradients."""
    torch.manual_seed(0)
    model, batches = TiedModel(), words(batches=3)
    taken, copied = [], toy.Players.copy

    def copy_(self, source, target, non_blocking):
        if not toy.is_toy(source) and threading.current_thread().name == "ravnest-compute":
            taken.append(tuple(source.shape))
        copied(self, source, target, non_blocking)

    with cluster_on(MIXED, model, tmp_path, batches) as cluster:
        graph = cluster.packages[1].graph
        ours = {wire.value for wire in graph.train.receives}
        sent = {wire.value for wire in cluster.packages[0].graph.train.sends}
        assert sent > ours
        monkeypatch.setattr(toy.Players, "copy", copy_)
        for batch in batches:
            cluster.train(batch)
        cluster.order("flush")
    of_values = [shape for shape in taken if shape == (6, 5, 8)]
    gradients = {wire.value for wire in graph.train.sends}
    assert len(of_values) == len(batches) * (len(ours) + len(gradients))


def test_copies_begin_when_a_message_arrives(tmp_path, monkeypatch):
    """Not on the thread that computes, which would begin them after what it computes just then."""
    torch.manual_seed(0)
    model, batches = TiedModel(), words()
    began, upload = set(), QueuedCopies._upload

    def upload_(self, tensor):
        began.add(threading.current_thread().name)
        return upload(self, tensor)

    monkeypatch.setattr(QueuedCopies, "_upload", upload_)
    with played():
        train(("toy", "toy", "cpu"), model, tmp_path, batches)
    assert began == {"ravnest-ahead"}
    assert not [t for t in threading.enumerate() if t.name == "ravnest-ahead" and _stays(t)]


def _stays(thread):
    thread.join(5)
    return thread.is_alive()


def test_a_copy_that_fails_ends_the_run(tmp_path, monkeypatch):
    torch.manual_seed(0)
    model, batches = TiedModel(), words()

    def out_of_memory(self, tensor):
        raise RuntimeError("no memory is left")

    monkeypatch.setattr(QueuedCopies, "_upload", out_of_memory)
    with played(), pytest.raises(PeerError, match="no memory is left"):
        train(MIXED, model, tmp_path, batches)


# ---- the Leaf ----


class Pair(NamedTuple):
    inputs: torch.Tensor
    labels: torch.Tensor


@dataclass
class Record:
    words: torch.Tensor
    about: str


LABELS = {
    "a tensor": lambda t: t,
    "a tuple": lambda t: (t, t + 1),
    "a list in a dict": lambda t: {"labels": [t], "name": "one"},
    "a named tuple": lambda t: Pair(t, t),
    "a dataclass": lambda t: Record(t, "one"),
    "double precision": lambda t: t.double(),
    "packed sequences": lambda t: pack_sequence(list(t.float())),
}


def tensors_in(item):
    """Whatever the structure, but for what packed sequences keep in main memory."""
    if isinstance(item, PackedSequence):
        return [item.data]
    if isinstance(item, torch.Tensor):
        return [item]
    if isinstance(item, dict):
        item = tuple(item.values())
    if isinstance(item, Record):
        item = (item.words,)
    return [t for part in item if not isinstance(part, str) for t in tensors_in(part)]


@pytest.mark.parametrize("kind", LABELS)
def test_labels_are_where_the_outputs_are(kind, monkeypatch):
    """In the criterion, in metrics and in the loss of a validation; digests are made before."""
    given = LABELS[kind](torch.arange(12).view(6, 2))
    of = messages.MicroBatch(
        batch=0, part=0, parts=1, rows=6, batch_rows=6, update=0, closes_update=True
    )
    seen = []

    def criterion(outputs, batch):
        seen.append((type(batch), [tensor.device.type for tensor in tensors_in(batch)]))
        return outputs.sum()

    def metric(outputs, batch):
        criterion(outputs, batch)
        return 1.0

    proof = leaves.proof_of

    def proof_of(item):
        assert all(tensor.device.type == "cpu" for tensor in tensors_in(item))
        return proof(item)

    monkeypatch.setattr(leaves, "proof_of", proof_of)
    sent = proof(given)
    with toy.without_doubles():
        settings = LeafSettings(criterion, [given], [given], {"one": metric})
        leaf = Leaf(settings, copies_for(torch.device("toy", 0)).place)
        outputs = torch.zeros(6, 2, device="toy", requires_grad=True)
        leaf.loss(outputs, of, sent)
        leaf.judge(outputs, of, sent)
    places = ["toy"] * len(tensors_in(given))
    assert seen == [(type(given), places)] * 3


@pytest.mark.parametrize("parts", [1, 3])
def test_the_weights_of_a_criterion_are_moved(tmp_path, parts):
    torch.manual_seed(0)
    model, batches = TiedModel(), words()

    class Criterion(nn.Module):
        def __init__(self):
            super().__init__()
            self.loss = nn.CrossEntropyLoss(torch.linspace(0.5, 1.5, 11))

        def forward(self, outputs, batch):
            return self.loss(outputs.flatten(0, 1), batch.roll(1, 1).flatten())

        def share_of_batch(self, outputs, part, whole):
            count = self.loss.weight[whole.flatten()].sum()
            words = part.roll(1, 1).flatten()
            return (
                nn.functional.cross_entropy(
                    outputs.flatten(0, 1), words, self.loss.weight, reduction="sum"
                )
                / count
            )

    expected = train(("cpu",) * 2, model, tmp_path / "1", batches, SGD, Criterion(), parts=parts)
    found = train(("cpu", "toy"), model, tmp_path / "2", batches, SGD, Criterion(), parts=parts)
    assert_same(found, expected, 1e-5)


def test_cross_entropy_counts_on_the_device(tmp_path):
    """Classes by weight, and targets that are ignored, in parts of a batch."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    batches = [torch.randn(6, 4) for _ in range(5)]
    labels = [torch.tensor([0, 1, -100, 3, 2, 2]) for _ in batches]

    def run(name, devices):
        criterion = nn.CrossEntropyLoss(torch.tensor([0.5, 1.0, 2.0, 0.1]))
        settings = settings_for(labels, criterion, SGD, schedule="sync")
        options = {"stages": 2, "parts": 3, "devices": devices}
        with pipeline(model, (batches[0],), tmp_path / name, settings, **options) as cluster:
            for batch in batches:
                cluster.train(batch, item=())
            cluster.order("epoch")
            return cluster.state(), list(cluster.losses)

    assert_same(run("toy", ("cpu", "toy")), run("cpu", ("cpu", "cpu")), 1e-5)


def test_validation_prediction_and_saving(tmp_path):
    torch.manual_seed(0)
    model, batches = TiedModel(), words()

    def correct(outputs, batch):
        return (outputs.argmax(-1) == batch).float().mean()

    def run(name, devices):
        leaf = {"test_labels": batches, "metrics": {"correct": correct}}
        with cluster_on(devices, model, tmp_path / name, batches, leaf=leaf) as cluster:
            futures = []
            for task in ("validate", "predict"):
                values, rows = cluster.inputs.bind((batches[0],), {}, "eval")
                of = cluster.numbers.without_gradients(rows)
                futures.append(cluster.root.user.expect_result(of.batch))
                message = messages.Forward(of=of, task=task, carried=(), proof=())
                cluster.root.user.submit(message, values)
            (predicted,) = futures[1].result(60)[1]
            metrics = cluster.order("validation").metrics
            cluster.order("save")
            saved = [load_file(check_trained(package)) for package in cluster.packages]
            return predicted, metrics, saved

    on_toy, on_cpu = run("toy", ("toy", "toy")), run("cpu", ("cpu", "cpu"))
    torch.testing.assert_close(on_toy[0], on_cpu[0])
    assert on_toy[1] == pytest.approx(on_cpu[1])
    for here, there in zip(on_toy[2], on_cpu[2], strict=True):
        assert all(torch.equal(here[name], there[name]) for name in there)


# ---- which device ----


def test_a_device_without_a_number_is_the_present_one():
    assert usable_device("toy") == torch.device("toy", 0)
    toy.MODULE.set_device(1)
    try:
        found = usable_device("toy")
    finally:
        toy.MODULE.set_device(0)
    assert found == torch.device("toy", 1)
    assert usable_device("cpu") == torch.device("cpu")


def test_the_computing_thread_is_on_the_device_of_the_weights(tmp_path):
    torch.manual_seed(0)
    model, batches = TiedModel(), words(1)
    with cluster_on(("toy:1", "cpu"), model, tmp_path, batches) as cluster:
        found = cluster.root.user.ask(lambda: torch.empty(0, device="toy").device)
    assert found == torch.device("toy", 1)
    assert torch.empty(0, device="toy").device == torch.device("toy", 0)
