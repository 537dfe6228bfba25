"""Traps of odd tensors and odd calls: sparse ones, eight-bit ones, shared casts, uneven inputs.

As in test_traps.py, each of these is a model that runs in plain PyTorch. Here planning it ended in
an error of torch's own, or in a refusal that named something else than the cause.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from harness import even_cuts, load_stages
from torch import Tensor, nn
from traps import TwoWays, assert_equal_in_stages, chain_of, linear_inputs

from ravnest.errors import CaptureError
from ravnest.planning.outcomes import Outcome, difference_of
from ravnest.planning.selfcheck import SelfCheck
from ravnest.planning.study import study
from ravnest.stage.local import LocalPipeline

BATCH = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
F8 = torch.float8_e4m3fn


def checked(model: nn.Module, args: tuple[Any, ...], folder: Path, stages: int = 2) -> Any:
    studied = study(model, args)
    pipeline = load_stages(studied, even_cuts(studied, stages), folder)
    SelfCheck(studied)(pipeline.stages)
    for stage in pipeline.stages:
        stage.zero_grad()
    return pipeline


# ---- sparse tensors ----


class SparselyTied(nn.Module):
    """The rows that were looked up give a sparse gradient, the product a dense one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 6, sparse=True)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.second(torch.tanh(self.first(self.embed(words))))
        return hidden @ self.embed.weight.t()


def test_a_sparse_gradient_is_added_to_a_dense_one(tmp_path: Path) -> None:
    model, words = SparselyTied(), torch.randint(0, 10, (4, 3))
    pipeline: LocalPipeline = checked(model, (words,), tmp_path, stages=3)
    copies = [s.tensors()["embed.weight"] for s in pipeline.stages if "embed.weight" in s.tensors()]
    assert len(copies) == 2
    pipeline.train()
    for steps in (1, 2):  # the second one is added to what the first one left
        model(words).square().sum().backward()
        pipeline.step(((words,), {}), lambda result: result.square().sum())
        for copy in copies:
            torch.testing.assert_close(copy.grad, model.embed.weight.grad, msg=f"step {steps}")


class Neighbours(nn.Module):
    """A layer over a graph whose edges are a sparse matrix."""

    def __init__(self, edges: Tensor, *, buffer: bool) -> None:
        super().__init__()
        if buffer:
            self.register_buffer("edges", edges)
        else:
            self.edges = edges

    def forward(self, x: Tensor) -> Tensor:
        return torch.sparse.mm(self.edges, x.t()).t()


@pytest.mark.filterwarnings("ignore:.*CSR.*:UserWarning")
@pytest.mark.parametrize("buffer", [True, False])
@pytest.mark.parametrize("to_sparse", [Tensor.to_sparse, Tensor.to_sparse_csr])
def test_a_sparse_tensor_is_refused_with_a_remedy(to_sparse: Any, buffer: bool) -> None:
    model = chain_of(Neighbours(to_sparse(torch.eye(6)), buffer=buffer))
    with pytest.raises(CaptureError, match=r"middle.*index_add"):
        study(model, (BATCH,))


def test_a_sparse_tensor_of_a_module_that_runs_as_it_is(tmp_path: Path) -> None:
    edges = torch.eye(6).to_sparse()
    model = nn.Sequential(nn.Linear(6, 6), Neighbours(edges, buffer=False), nn.Linear(6, 6))
    studied = study(model, (BATCH,))
    assert "index_add" in studied.warnings[0]
    SelfCheck(studied)(load_stages(studied, even_cuts(studied, 2), tmp_path).stages)
    assert model[1].edges is edges
    assert torch.equal(edges.to_dense(), torch.eye(6))


# ---- types ----


class EightBits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((6,), 0.5).to(F8))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale.float()


def test_a_buffer_of_eight_bit_floats_is_compared(tmp_path: Path) -> None:
    checked(TwoWays(EightBits()), (BATCH,), tmp_path)


def only_buffer(tensor: Tensor) -> Outcome:
    return Outcome([], {}, {"b": tensor})


def test_what_torch_cannot_compare_is_compared() -> None:
    one = only_buffer(torch.ones(3).to(F8))
    assert difference_of(one, only_buffer(torch.ones(3).to(F8))) is None
    assert "buffer of 'b'" in (difference_of(one, only_buffer(torch.zeros(3).to(F8))) or "")
    sparse = only_buffer(torch.eye(3).to_sparse())
    assert difference_of(sparse, only_buffer(torch.eye(3).to_sparse())) is None
    assert difference_of(sparse, only_buffer(2 * torch.eye(3).to_sparse())) is not None


@pytest.mark.parametrize("found", [torch.zeros(1, dtype=torch.long), torch.zeros(3)])
def test_buffers_of_another_type_or_shape_differ(found: Tensor) -> None:
    difference = difference_of(only_buffer(torch.zeros(1)), only_buffer(found))
    assert difference is not None
    assert "'b' is torch." in difference


class Retyped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + x.detach().mean().abs()
        return x * 2


def test_a_buffer_that_changes_its_type_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="seen"):
        checked(chain_of(Retyped()), (BATCH,), tmp_path)


# ---- autocast ----


class CastOnce(nn.Module):
    """One layer several times under autocast: torch casts its weight once for each region, so its
    gradients are added up in bfloat16 inside a region, and in float32 across regions."""

    def __init__(self, regions: int) -> None:
        super().__init__()
        self.regions = regions
        self.first, self.shared, self.last = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(self.regions):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                for _ in range(3):
                    x = torch.tanh(self.shared(x))
        return self.last(x.float())


@pytest.mark.parametrize(("regions", "stages"), [(1, 2), (2, 1), (2, 2)])
def test_a_layer_used_repeatedly_under_autocast_is_cast_as_often_as_by_torch(
    regions: int, stages: int, tmp_path: Path
) -> None:
    torch.manual_seed(1)
    model = CastOnce(regions)
    pipeline: LocalPipeline = checked(model, (BATCH,), tmp_path, stages)
    pipeline.train()
    model(BATCH).square().sum().backward()
    pipeline.step(((BATCH,), {}), lambda result: result.square().sum())
    expected = dict(model.named_parameters())
    for stage in pipeline.stages:
        for name, parameter in stage.tensors().items():
            # Two stages may hold one region each; then their sums meet in another order.
            torch.testing.assert_close(parameter.grad, expected[name].grad, rtol=1e-6, atol=1e-6)


def test_what_was_cast_is_forgotten_before_the_next_step(tmp_path: Path) -> None:
    pipeline = checked(CastOnce(1), (BATCH,), tmp_path)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # it would keep the casts
        before = pipeline(BATCH)
        for stage in pipeline.stages:
            for parameter in stage.parameters():
                parameter.detach().mul_(2)
        assert not torch.equal(pipeline(BATCH), before)


def test_batch_norm_that_averages_over_all_batches_goes_on_counting(tmp_path: Path) -> None:
    studied = assert_equal_in_stages(chain_of(nn.BatchNorm1d(6, momentum=None)), tmp_path)
    assert studied.train.dynamic


# ---- causes and places ----


class WritesToData(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.weight = nn.Parameter(torch.ones(6))
        self.register_buffer("count", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        tensor = self.weight if self.kind == "parameter" else self.count
        mean = tensor.data.mean()  # reading is no trap
        tensor.data.add_(1)
        return x * self.weight + self.count + mean


@pytest.mark.parametrize("kind", ["parameter", "buffer"])
def test_the_line_that_writes_to_data_is_named(kind: str) -> None:
    lines = Path(__file__).read_text().splitlines()
    line = next(n for n, text in enumerate(lines, 1) if "tensor.data.add_(1)" in text)
    with pytest.raises(CaptureError, match=rf"\.data.*test_traps_odd\.py:{line}\b"):
        study(chain_of(WritesToData(kind)), (BATCH,))


# ---- batch sizes ----


def test_an_empty_example_is_refused() -> None:
    with pytest.raises(CaptureError, match="example batch is empty"):
        study(chain_of(nn.Tanh()), (torch.randn(0, 6),))


class Attends(nn.Module):
    """Rows that look something up in a table of another length."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, table: Tensor, x: Tensor, y: Tensor | None = None) -> Tensor:
        x = self.first(x if y is None else x + y)
        return self.last(torch.softmax(x @ table.t(), -1) @ table)


def test_the_batch_size_is_the_one_that_most_inputs_share(tmp_path: Path) -> None:
    def inputs(rows: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (torch.randn(7, 6), torch.randn(rows, 6), torch.randn(rows, 6)), {}

    studied = assert_equal_in_stages(Attends(), tmp_path, inputs)
    assert studied.call.batch_size == 4
    (note,) = (text for text in studied.warnings if "batch size" in text)
    assert "that of x, y; fixed to the example's size: table [7, 6]" in note


@pytest.mark.parametrize(
    ("shapes", "rows"),
    [
        ([(7, 6), (4, 6)], 7),  # in doubt, the first one
        ([(4, 6), (1, 6), (1, 6)], 4),  # one row for all rows is no batch
        ([(1, 6), (9, 6)], 1),
        ([(1, 6), (9, 6), (9, 6)], 9),
    ],
)
def test_the_batch_size_in_doubt(shapes: list[tuple[int, int]], rows: int) -> None:
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, *inputs: Tensor) -> list[Tensor]:
            return [self.layer(x) for x in inputs]

    studied = study(Many(), tuple(torch.randn(shape) for shape in shapes))
    assert studied.call.batch_size == rows
    assert any("fixed to the example's size" in text for text in studied.warnings)


def test_inputs_of_one_size_need_no_note() -> None:
    studied = study(chain_of(nn.Tanh()), linear_inputs(4)[0])
    assert not any("fixed to the example's size" in text for text in studied.warnings)
