"""Traps that a single call does not show: a model over several steps, modes and batch sizes.

As in test_traps.py, each of these once gave a wrong result without an error, or an error that no
user could understand.
"""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pools import run_clusterize, write_pool
from torch import Tensor, nn

from ravnest.errors import CaptureError

ROWS = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    """Three layers; what happens between the first and the others differs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second, self.third = (nn.Linear(6, 6) for _ in range(3))

    def tail(self, x: Tensor) -> Tensor:
        return self.third(torch.tanh(self.second(x)))


def planned(model: nn.Module, folder: Path, *args: Tensor, **options: Any) -> Any:
    return run_clusterize(model, args or (ROWS,), write_pool(folder, 2), **options)


def trained(model: nn.Module, pipeline: Any, batches: list[Any], lr: float = 0.1) -> float:
    """Largest difference of outputs over a training run of model and stages side by side."""
    pipeline.train(True)
    sides = [list(model.parameters()), [p for s in pipeline.stages for p in s.parameters()]]
    optimizers = [torch.optim.SGD(side, lr=lr) for side in sides]
    worst = 0.0
    for batch in batches:
        for optimizer in optimizers:
            optimizer.zero_grad()
        expected = model(batch)
        expected.square().mean().backward()
        _, found = pipeline.step(((batch,), {}), lambda y: y.square().mean())
        worst = max(worst, (expected - found).abs().max().item())
        for optimizer in optimizers:
            optimizer.step()
    return worst


# ---- one row ----------------------------------------------------------------------------------


def test_batch_norm_refuses_single_rows_in_training_only(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6))
    result = planned(model, tmp_path)
    assert any("does not take a single row" in note for note in result.plan.warnings)
    pipeline = result.pipeline()
    pipeline.train(True)
    with pytest.raises(ValueError, match="at least 2"):
        pipeline(ROWS[:1])
    pipeline.train(False)
    model.eval()
    assert torch.allclose(pipeline(ROWS[:1]), model(ROWS[:1]), atol=1e-6)


# ---- inputs of another kind ---------------------------------------------------------------------


def test_another_type_or_other_row_numbers_are_refused_by_name(tmp_path: Path) -> None:
    class Images(Net):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            x = x.float() / 255 if x.dtype == torch.uint8 else x
            return self.tail(self.first(x)) * mask

    images, mask = torch.randint(0, 255, (4, 6), dtype=torch.uint8), torch.ones(4, 6)
    pipeline = planned(Images(), tmp_path, images, mask).pipeline()
    pipeline(images, mask)
    with pytest.raises(ValueError, match=r"the input 'x' is float32, .* planned for uint8"):
        pipeline(images.float(), mask)
    with pytest.raises(ValueError, match="different numbers of rows: 4 and, in the input 'mask'"):
        pipeline(images, mask[:3])


# ---- memory -----------------------------------------------------------------------------------


class KeptForEvaluation(Net):
    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.training:
            self.mean = h.mean(0).detach()
        else:
            h = h - self.mean
        return self.tail(h)


class KeptFromTheFirstBatch(Net):
    mean: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.mean is None:
            self.mean = h.mean(0).detach()
        return self.tail(h - self.mean)


class EverySecondGradient(Net):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        self.calls += 1
        return self.tail(h.detach() if self.calls % 2 == 0 else h)


class TwoNamesForOneBuffer(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("one", torch.zeros(6))
        self.register_buffer("other", self.one)

    def forward(self, x: Tensor) -> Tensor:
        self.one = self.one + 1
        return self.tail(self.first(x)) + self.one + 10 * self.other


class Merging(nn.Linear):
    """An adapter that is added to the weight for evaluation, and taken out again."""

    def __init__(self, start: float) -> None:
        super().__init__(6, 6)
        self.down = nn.Parameter(torch.randn(2, 6) * 0.3)
        self.up = nn.Parameter(torch.full((6, 2), start))
        self.merged = False

    def train(self, mode: bool = True) -> "Merging":
        super().train(mode)
        with torch.no_grad():
            if mode and self.merged:
                self.weight -= self.up @ self.down
            if not mode and not self.merged:
                self.weight += self.up @ self.down
        self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if self.merged else y + x @ self.down.T @ self.up.T


class Adapted(Net):
    def __init__(self, start: float) -> None:
        super().__init__()
        self.adapter = Merging(start)

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self.adapter(self.first(x)))


@pytest.mark.parametrize(
    "model",
    [
        KeptForEvaluation(),
        KeptFromTheFirstBatch(),
        EverySecondGradient(),
        TwoNamesForOneBuffer(),
        Adapted(0.0),
        Adapted(0.3),
    ],
    ids=lambda model: type(model).__name__,
)
def test_what_shows_only_in_a_later_call_is_refused(model: nn.Module, tmp_path: Path) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(CaptureError, match=r"called before|do not compute"):
        planned(model, tmp_path)
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())


def test_planning_leaves_merging_adapters_as_they_were(tmp_path: Path) -> None:
    """Also where nothing is compared: the packages hold the weights as they are in training."""
    model = Adapted(0.3)
    before = model.adapter.weight.detach().clone()
    result = planned(model, tmp_path, self_check=False)
    assert torch.equal(model.adapter.weight, before)
    assert trained(model, result.pipeline(), [ROWS, ROWS[:3]]) < 1e-6


def test_buffer_returned_before_it_is_replaced(tmp_path: Path) -> None:
    class Queue(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("queue", torch.randn(3, 6))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h, queue = self.first(x), self.queue.detach()
            self.queue = torch.cat([self.queue[1:], h.detach().mean(0, keepdim=True)])
            return self.tail(h), queue

    model = Queue()
    pipeline = planned(model, tmp_path).pipeline()
    pipeline.train(True)
    for _ in range(3):
        expected, found = model(ROWS), pipeline(ROWS)
        assert all(torch.allclose(*pair, atol=1e-6) for pair in zip(expected, found, strict=True))


class OtherShape(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("most", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        self.most = h.detach().abs().max()
        return self.tail(h)


class LateParameter(Net):
    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "late"):
            self.late = nn.Parameter(torch.ones(6))
        return self.tail(self.first(x) * self.late)


class GrowingTable(Net):
    """Positions for as many columns as there are, made when they are first needed."""

    def __init__(self, remembers: bool = False) -> None:
        super().__init__()
        self.remembers = remembers
        self.register_buffer("table", torch.zeros(1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.table.shape[-1] < h.shape[-1]:
            table = torch.arange(h.shape[-1]).float().sin().unsqueeze(0)
            self.table = table + h.detach().mean() if self.remembers else table
        return self.tail(h + self.table)


def test_a_table_that_grows_to_what_the_first_call_needs(tmp_path: Path) -> None:
    model = GrowingTable()
    planned(model, tmp_path)
    assert model.table.shape == (1, 1)
    with pytest.raises(CaptureError, match="answers differently when it has been called before"):
        planned(GrowingTable(remembers=True), tmp_path)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (OtherShape(), r"replaces its buffer 'most', which is float32\[6\], by float32\[\]"),
        (LateParameter(), r"makes its parameter '\S*late' when it is first called"),
    ],
)
def test_tensors_that_become_others_are_refused(
    model: nn.Module, said: str, tmp_path: Path
) -> None:
    with pytest.raises(CaptureError, match=said):
        planned(model, tmp_path)


# ---- counters and generators -------------------------------------------------------------------


class Slotted:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Warming(Net):
    """A factor that grows for thirty calls, so slowly that few calls show nothing."""

    classwide = 0

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.pair, self.slotted, self.array, self.evaluated = (0, 0), Slotted(), np.zeros(1), 0

    def count(self) -> None:
        if self.kind == "pair":
            self.pair = (self.pair[0] + 1, 0)
        elif self.kind == "slotted":
            self.slotted.count += 1
        elif self.kind == "array":
            self.array += 1
        elif self.kind == "classwide":
            Warming.classwide += 1
        elif not self.training:
            self.evaluated += 1

    def forward(self, x: Tensor) -> Tensor:
        self.count()
        return self.tail(self.first(x))


@pytest.mark.parametrize("kind", ["pair", "slotted", "array", "classwide", "evaluated"])
def test_counters_in_odd_places_are_noted(kind: str, tmp_path: Path) -> None:
    result = planned(Warming(kind), tmp_path)
    assert any("changes" in note and kind in note for note in result.plan.warnings)


@pytest.mark.parametrize(
    "generator",
    [np.random.default_rng(0), np.random.RandomState(0), random.Random(0)],
    ids=["numpy", "old numpy", "python"],
)
def test_draws_from_own_generators_are_refused(generator: Any, tmp_path: Path) -> None:
    class Dropping(Net):
        def __init__(self) -> None:
            super().__init__()
            self.generator = generator

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            drawn = (
                generator.random() if hasattr(generator, "random") else generator.random_sample()
            )
            return h if self.training and drawn < 1e-9 else self.tail(h)

    with pytest.raises(CaptureError, match=r"its own generator '.*generator'"):
        planned(Dropping(), tmp_path)


# ---- modes ------------------------------------------------------------------------------------


class FreezingItself(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def train(self, mode: bool = True) -> "FreezingItself":
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self.norm(self.first(x)))


def test_a_model_that_freezes_modules_in_train(tmp_path: Path) -> None:
    model = FreezingItself()
    result = planned(model, tmp_path)
    model.train()
    assert trained(model, result.pipeline(), [ROWS, ROWS[:2], ROWS]) < 1e-6


def test_modules_that_arrive_frozen_stay_so_and_are_named(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6).eval(), nn.Linear(6, 6))
    result = planned(model, tmp_path)
    assert any("evaluation mode inside a model that trains" in n for n in result.plan.warnings)
    assert trained(model, result.pipeline(), [ROWS, ROWS[:2], ROWS]) < 1e-6


class TeacherInAutocast(Net):
    """A target network, without gradients, inside an autocast region."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = torch.tanh(self.first(x))
            with torch.no_grad():
                target = torch.tanh(self.second(h))
            h = self.third(h) + target
        return h.float()


@pytest.mark.parametrize("check", [True, False])
def test_no_grad_inside_autocast(check: bool, tmp_path: Path) -> None:
    model = TeacherInAutocast()
    pipeline = planned(model, tmp_path, self_check=check).pipeline()
    before = model.second.weight.detach().clone()
    assert trained(model, pipeline, [ROWS, ROWS[:3], ROWS]) < 1e-2
    tensors = {k: v for stage in pipeline.stages for k, v in stage.tensors().items()}
    assert torch.equal(tensors["second.weight"], before)
    assert torch.equal(model.second.weight, before)


# ---- odd but right ----------------------------------------------------------------------------


def test_offsets_need_the_rows_they_came_with(tmp_path: Path) -> None:
    class Bags(Net):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.EmbeddingBag(10, 6)

        def forward(self, words: Tensor, offsets: Tensor) -> Tensor:
            return self.tail(self.first(self.words(words, offsets)))

    words, offsets = torch.randint(0, 10, (12,)), torch.arange(4) * 2
    model = Bags()
    pipeline = planned(model, tmp_path, words, offsets).pipeline()
    assert torch.allclose(pipeline(words, offsets), model(words, offsets), atol=1e-6)


def test_offsets_that_are_rows_themselves_stay_in_their_order(tmp_path: Path) -> None:
    """The self-check shows a model its rows in another order; this one takes none but its own."""

    class Bags(Net):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.EmbeddingBag(10, 6)

        def forward(self, words: Tensor, offsets: Tensor) -> Tensor:
            return self.tail(self.first(self.words(words.reshape(-1), offsets)))

    words, offsets = torch.randint(0, 10, (3, 5)), torch.arange(3) * 5
    model = Bags()
    pipeline = planned(model, tmp_path, words, offsets).pipeline()
    assert torch.allclose(pipeline(words, offsets), model(words, offsets), atol=1e-6)


def test_parameter_that_is_a_buffer_too(tmp_path: Path) -> None:
    class Both(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("again", self.first.weight)

        def forward(self, x: Tensor) -> Tensor:
            return self.tail(self.first(x)) @ self.again

    model = Both()
    assert trained(model, planned(model, tmp_path).pipeline(), [ROWS, ROWS[:2]]) < 1e-6
