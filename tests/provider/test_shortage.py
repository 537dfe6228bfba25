"""A device without memory left: a pass is tried again and leaves no trace of the first time."""

import contextlib
import copy
import functools
import weakref

import pytest
import torch
from pipelines import pipeline, settings_for
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ravnest.errors import PeerError, RunError
from ravnest.planning.study import study
from ravnest.provider.compute import device_memory
from ravnest.provider.compute.copies import Copies
from ravnest.provider.compute.passes import StagePasses
from ravnest.provider.compute.updating import Updater, UpdateSettings
from ravnest.provider.compute.versions import WeightVersions
from ravnest.stage.module import StageModule

SGD = UpdateSettings(optimizer=torch.optim.SGD, optimizer_params={"lr": 0.1, "momentum": 0.9})


class Full(TorchDispatchMode):
    """A device that has room for so many operators, and not for the next one."""

    def __init__(self, room):
        super().__init__()
        self.room = room

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.room -= 1
        if self.room == -1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return func(*args, **(kwargs or {}))


class Model(nn.Module):
    """Has everything that a forward may leave behind."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 9)
        self.norm = nn.BatchNorm1d(9)
        self.second = nn.Linear(9, 9)
        self.last = nn.Linear(9, 5)

    def forward(self, x):
        x.mul_(2)
        x = nn.functional.dropout(self.norm(self.first(x)), 0.4, self.training)
        x = self.second(torch.tanh(self.second(x)))  # a parameter that is used twice
        return self.last(x.relu_())


@functools.cache
def studied_model(kind):
    torch.manual_seed(0)
    studied = study(kind(), (torch.randn(6, 5),))
    cut = [p for p, place in enumerate(studied.places) if place is not None][-2]
    return studied.stages([cut])[0], studied.held


def first_stage(recompute, kind=Model):
    graph, tensors = studied_model(kind)
    weights = {name: held.tensor.clone() for name, held in tensors.items()}
    stage = StageModule(graph, weights, "cpu")
    return StagePasses(stage, WeightVersions(stage), recompute=recompute, recovers=True)


def one_pass(passes, *, forward_room=None, backward_room=None):
    """A forward and a backward; the first attempt of each has room for so many operators. Returns
    everything that is left afterwards, and whether one was short."""
    given = torch.linspace(-1, 1, 30).reshape(6, 5)
    (number,) = passes.stage.receives("train")
    again = lambda: {number: given.clone()}  # noqa: E731
    torch.manual_seed(5)

    def tried(act, room, *items):
        device = contextlib.nullcontext() if room is None else Full(room)
        with contextlib.suppress(torch.OutOfMemoryError, RunError), device:
            return act(), False
        passes.save_memory(items)
        return act(), True

    item, one = tried(lambda: passes.forward(again(), 0, again), forward_room)
    outputs = {n: v.detach().clone() for n, v in item.outputs.items()}
    random = torch.get_rng_state()
    passes.forget_values(item)
    gradients = {n: torch.full_like(v, 0.5) for n, v in outputs.items()}
    for master in passes.versions.masters:
        master.grad = torch.ones_like(master)
    # Its numbers were drawn by the forward; something else draws in between.
    torch.rand(3)
    _, two = tried(lambda: passes.backward(item, gradients), backward_room, item)
    buffers = {n: b.clone() for n, b in passes.stage.named_buffers()}
    grads = [master.grad for master in passes.versions.masters]
    return (outputs, random, buffers, grads), one or two


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("which", ["forward_room", "backward_room"])
def test_a_pass_that_failed_anywhere_is_done_again_as_if_nothing_had_been(which, recompute):
    expected, short = one_pass(first_stage(recompute))
    assert not short
    tried = 0
    while True:
        found, short = one_pass(first_stage(recompute), **{which: tried})
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        if not short:
            break
        tried += 1
    assert tried > 10


class Counted(Model):
    """Writes to a buffer in evaluation too, and draws numbers there."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        return super().forward(torch.nn.functional.dropout(x, 0.2, True) * self.calls)


@pytest.mark.parametrize("kind", [Model, Counted])
def test_an_evaluation_that_failed_anywhere_is_done_again_as_if_nothing_had_been(kind):
    """Also where the batch of the user lies on the device already, so that no copy is made."""
    given = torch.linspace(-1, 1, 30).reshape(6, 5)

    def evaluated(room):
        passes, batch = first_stage(False, kind), given.clone()
        (number,) = passes.stage.receives("eval")
        torch.manual_seed(5)
        short = False
        device = contextlib.nullcontext() if room is None else Full(room)
        try:
            with device:
                outputs, _ = passes.evaluate({number: batch})
        except (torch.OutOfMemoryError, RunError):
            short = True
            outputs, _ = passes.evaluate({number: batch})
        buffers = {n: b.clone() for n, b in passes.stage.named_buffers()}
        return (outputs, buffers, torch.get_rng_state()), short

    expected, _ = evaluated(None)
    tried = 0
    while True:
        found, short = evaluated(tried)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        if not short:
            break
        tried += 1
    assert tried > 5


def runs(tmp_path, name, monkeypatch, disturb=None, **options):
    """Weights and buffers after some batches in two stages, and the losses."""
    monkeypatch.setattr(Copies, "is_apart", True)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(5, 9), nn.BatchNorm1d(9), nn.Tanh(), nn.Linear(9, 9), nn.Linear(9, 5)
    )
    batches = [torch.randn(6, 5) for _ in range(5)]
    criterion = lambda outputs, batch: (outputs - batch).square().mean()  # noqa: E731
    settings = settings_for(batches, criterion, SGD, schedule="sync", **options)
    with pipeline(model, (batches[0],), tmp_path / name, settings, stages=2, parts=3) as cluster:
        if disturb is not None:
            disturb(cluster)
        for batch in batches:
            cluster.train(batch)
        cluster.order("flush")
        return cluster.state(), list(cluster.losses)


def fails_at(stage, which, calls, room):
    """Passes of that stage have room for so few operators at those of their calls."""

    def disturb(cluster):
        cluster.runtimes[stage].user.ask(lambda: None)
        passes = cluster.runtimes[stage].runner._passes
        real, count = getattr(passes, which), iter(range(10**6))

        def pass_(*args):
            with Full(room) if next(count) in calls else contextlib.nullcontext():
                return real(*args)

        setattr(passes, which, pass_)

    return disturb


@pytest.mark.parametrize(("which", "call"), [("forward", 2), ("backward", 4)])
def test_a_run_whose_device_is_full_goes_on_with_activations_computed_again(
    tmp_path, monkeypatch, caplog, which, call
):
    expected = runs(tmp_path, "free", monkeypatch)
    found = runs(tmp_path, "full", monkeypatch, fails_at(0, which, {call}, 3))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert "activations are computed again from now on" in caplog.text


@pytest.mark.parametrize("stage", [0, 1])
def test_what_does_not_fit_at_all_ends_the_run_with_figures(tmp_path, monkeypatch, stage):
    monkeypatch.setattr(device_memory.Room, "most", lambda self: 6 * 10**9)
    monkeypatch.setattr(device_memory.Room, "used", lambda self: 31 * 10**8)
    monkeypatch.setattr(device_memory.Room, "free", lambda self: 29 * 10**8)
    forever = range(10**6)
    with pytest.raises((RunError, PeerError), match="does not fit on cpu") as caught:
        runs(tmp_path, "x", monkeypatch, fails_at(stage, "forward", forever, 3))
    text = str(caught.value)
    assert f"stage {stage} of 2" in text
    assert "of the 6.00 GB that it may use, 3.10 GB hold weights" in text
    assert "2 of 6 rows at a time" in text
    assert "micro_batches=6 halves" in text


@pytest.mark.parametrize("in_place", [True, False])
def test_an_update_is_made_parameter_by_parameter_where_memory_is_short(monkeypatch, in_place):
    """A step that failed half-way could not be made again."""
    free = [10**9]
    monkeypatch.setattr(device_memory.Room, "free", lambda self: free[0])
    model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10))
    plain = copy.deepcopy(model)
    versions = WeightVersions(model)
    updater = Updater(
        versions,
        versions.masters,
        UpdateSettings(optimizer=torch.optim.AdamW, optimizer_params={"lr": 0.1}),
    )
    size = 220 * 4
    assert updater.needed_bytes(in_place=in_place) == size * 2 + (0 if in_place else size)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.1)
    seen = []
    for version, now in enumerate([10**9, 3 * size - 1, 3 * size], start=1):
        free[0] = now
        for own, other in zip(versions.masters, plain.parameters(), strict=True):
            own.grad, other.grad = torch.ones_like(own), torch.ones_like(other)
        updater.apply(version, update=version - 1, batches=1, in_place=in_place)
        if not in_place:
            versions.release(version - 1)
        optimizer.step()
        seen.append(updater.optimizer.param_groups[0]["foreach"])
    assert seen == [None, False, None]
    assert updater.needed_bytes(in_place=in_place) == 0
    for own, other in zip(versions.masters, plain.parameters(), strict=True):
        torch.testing.assert_close(own, other)


class Memory:
    """The module of a device with so much memory, as torch has one for each kind."""

    def __init__(self, total, others):
        self.total, self.others, self.share = total, others, 1.0
        self.allocated, self.reserved = 100, 150

    def mem_get_info(self, device):
        return self.total - self.others - self.reserved, self.total

    def memory_allocated(self, device):
        return self.allocated

    def memory_reserved(self, device):
        return self.reserved

    def set_per_process_memory_fraction(self, share, device):
        self.share = share

    def get_per_process_memory_fraction(self, device):
        return self.share


def test_of_a_device_a_process_takes_what_its_owner_allows(monkeypatch):
    memory = Memory(1000, others=300)
    monkeypatch.setattr(torch, "get_device_module", lambda device: memory)
    there = device_memory.Room(torch.device("cuda:0"))
    assert (there.most(), there.used(), there.free()) == (1000, 100, 600)
    there.limit(0.5)
    assert (there.most(), there.free()) == (500, 400)
    memory.others = 800
    assert there.free() == 100


def test_an_error_does_not_keep_what_was_computed_before_it():
    """What is said to be held by weights was that, and half a pass as well."""
    kept = []

    def computes():
        activations = torch.ones(3)
        kept.append(weakref.ref(activations))
        raise torch.OutOfMemoryError("CUDA out of memory")

    try:
        try:
            computes()
        except torch.OutOfMemoryError as inner:
            raise RunError("the stage failed") from inner
    except RunError as error:
        assert kept[0]() is not None
        device_memory.let_go(error)
        assert kept[0]() is None


def test_a_device_that_says_nothing_of_its_memory_is_taken_to_have_enough(monkeypatch):
    monkeypatch.setattr(torch, "get_device_module", lambda device: object())
    there = device_memory.Room(torch.device("cuda:0"))
    there.limit(0.5)
    there.sweep()
    assert (there.most(), there.used(), there.free()) == (None, 0, None)


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_a_shortage_is_known_however_it_is_wrapped(error, is_one):
    outer = RunError("the stage failed")
    outer.__cause__ = error
    assert device_memory.is_shortage(error) == device_memory.is_shortage(outer) == is_one
