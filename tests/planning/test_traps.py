"""One test for each way in which cutting a model has gone wrong before.

Every one of these either gave a wrong result without an error, or an error that did not help.
"""

import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import compare, even_cuts, leaves_of, load_stages
from pools import run_clusterize, write_pool
from torch import Tensor, nn
from traps import (
    Apply,
    Doubling,
    TwoWays,
    assert_equal_in_stages,
    chain_of,
    linear_inputs,
    total,
)

from ravnest.errors import CaptureError
from ravnest.planning.selfcheck import SelfCheck
from ravnest.planning.study import study
from ravnest.stage.operators import allow_operator


def test_hand_written_backward_is_refused_not_lost() -> None:
    with pytest.raises(CaptureError, match=r"Doubling.*custom_op"):
        study(chain_of(Apply(Doubling.apply)), (torch.randn(4, 6),))


def test_hand_written_backward_is_kept_when_cut_at_module_boundaries(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 6), Apply(Doubling.apply), nn.Linear(6, 6), nn.Linear(6, 2))
    studied = assert_equal_in_stages(model, tmp_path, stages=(2,))
    assert "module boundaries" in studied.warnings[0]


def test_custom_operator_with_its_own_backward_works(tmp_path: Path) -> None:
    @torch.library.custom_op("ravnest_test::halve", mutates_args=())
    def halve(x: Tensor) -> Tensor:
        return x * 0.5

    halve.register_fake(lambda x: torch.empty_like(x))
    halve.register_autograd(lambda ctx, gradient: gradient * 0.5)
    model = chain_of(Apply(lambda x: torch.ops.ravnest_test.halve(x)))
    with pytest.raises(CaptureError, match="allow_operator"):
        study(model, (torch.randn(4, 6),))
    allow_operator("ravnest_test.halve.default")
    assert_equal_in_stages(model, tmp_path)


class Skips(nn.Module):
    """Layer drop, as transformers writes it."""

    def __init__(self, draw: Callable[[], float], probability: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.draw, self.probability = draw, probability

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            drawn = self.draw()
            if not (self.training and drawn < self.probability):
                x = x + layer(x).tanh()
        return x


DRAWS = [random.random, partial(random.uniform, 0, 1), np.random.rand, partial(random.gauss, 1, 9)]


@pytest.mark.parametrize("draw", DRAWS[:-1])
def test_a_draw_that_decides_nothing_is_no_reason_to_refuse(draw: Any, tmp_path: Path) -> None:
    model = Skips(draw, 0.0)
    assert_equal_in_stages(model, tmp_path)
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    study(model, linear_inputs(4)[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


@pytest.mark.parametrize("draw", DRAWS)
def test_a_draw_that_seldom_decides_anything_is_refused(draw: Any) -> None:
    with pytest.raises(CaptureError, match="set the drop probability to 0"):
        study(Skips(draw, 1e-3), linear_inputs(4)[0])


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_randomness_outside_torch_is_refused_not_frozen(draw: Callable[[], float]) -> None:
    with pytest.raises(CaptureError, match="random"):
        study(chain_of(Apply(lambda x: x * draw())), (torch.randn(4, 6),))


def test_example_of_one_row_leaves_the_batch_open(tmp_path: Path) -> None:
    model = chain_of(nn.ReLU())
    studied = study(model, (torch.randn(1, 6),))
    assert studied.train.dynamic
    pipeline = load_stages(studied, even_cuts(studied, 2), tmp_path)
    errors = compare(model, pipeline, studied, linear_inputs, total, (1, 5))
    assert errors.worst() <= 1e-5


def test_loop_over_the_batch_makes_the_plan_static_and_says_so(tmp_path: Path) -> None:
    model = chain_of(Apply(lambda x: torch.stack([row * 2 for row in x])))
    studied = study(model, (torch.randn(4, 6),))
    assert "exactly 4 rows" in studied.warnings[0]
    pipeline = load_stages(studied, even_cuts(studied, 2), tmp_path)
    pipeline(torch.randn(4, 6))
    with pytest.raises(ValueError, match="drop_last"):
        pipeline(torch.randn(3, 6))


class InPlace(nn.Module):
    """Writes into tensors and into views of tensors, between the places where one would cut."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        a = self.layers[0](x)
        b = torch.relu_(a)
        c = self.layers[1](b)
        c[:, 0] += b[:, 1]
        c[:, 2] = self.layers[2](c.clone()).sum(1)
        view = c.view(-1, 2, 3)
        view.mul_(2)
        d = self.layers[3](c.clone())
        d = d * 1
        d[d > 1] = 0.5
        return self.layers[4](d) + c


def test_no_cut_between_a_tensor_and_a_write_to_it(tmp_path: Path) -> None:
    studied = assert_equal_in_stages(InPlace(), tmp_path)
    for position in studied.costs.operator[1:-1]:
        pipeline = load_stages(studied, [int(position)], tmp_path / f"at_{position}")
        errors = compare(studied.model, pipeline, studied, linear_inputs, total, (4, 3))
        assert errors.worst() <= 1e-5, f"cut in front of operator {position}: {errors}"


class Statistics(nn.Module):
    """Reassigns a buffer deep inside: torch.export alone would lose the write."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = self.mean * 0.9 + x.detach().mean(0) * 0.1
        return x - self.mean


def test_reassigned_buffer_of_an_inner_module_is_written(tmp_path: Path) -> None:
    assert_equal_in_stages(chain_of(Statistics()), tmp_path)


def test_evaluation_reads_the_buffer_that_training_wrote(tmp_path: Path) -> None:
    """A copy of a buffer is cheap to recompute elsewhere, but elsewhere the buffer is old."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
            self.register_buffer("scale", torch.ones(6))

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.scale.add_(0.5)
            scale = self.scale * 2
            for layer in self.layers:
                x = layer(x) * scale
            return x

    assert_equal_in_stages(Scaled(), tmp_path, stages=(2, 3, 4))


def test_masks_and_positions_are_recomputed_not_sent() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(11, 8)
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

        def forward(self, tokens: Tensor) -> Tensor:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
            mask = (positions[:, None] >= positions[None, :]).float()
            x = self.embedding(tokens)
            for layer in self.layers:
                x = torch.einsum("st,btd->bsd", mask, layer(x))
            return x

    studied = study(Masked(), (torch.randint(0, 11, (4, 16)),))
    last = studied.stages(even_cuts(studied, 3))[-1]
    tensors = [wire for wire in last.train.receives if wire.dtype is not None]
    assert [wire.dtype for wire in tensors] == ["float32"], "only the activations travel"


def test_frozen_batch_norm_stays_frozen(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6), nn.BatchNorm1d(6))
    model[1].train(False)
    studied = assert_equal_in_stages(model, tmp_path)
    assert studied.train.written == {
        "3.running_mean",
        "3.running_var",
        "3.num_batches_tracked",
    }
    assert [module.training for module in model] == [True, False, True, True]


def test_model_in_evaluation_mode_is_planned_for_training() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 6))
    model.train(False)
    studied = study(model, (torch.randn(4, 6),))
    dropout = next(op for op in studied.train.ops if "dropout" in str(op.target))
    assert dropout.args[2] is True
    assert not any(module.training for module in model.modules())


def test_branch_on_data_names_module_line_and_remedy() -> None:
    def branch(x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x

    with pytest.raises(CaptureError, match=r"'middle'.*test_traps.py:\d+.*torch\.where"):
        study(chain_of(Apply(branch)), (torch.randn(4, 6),))


def test_layer_drop_of_probability_zero_is_no_branch(tmp_path: Path) -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
            self.drop = nn.Dropout(0.3)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                if self.training and torch.rand([]) < 0.0:
                    continue
                x = self.drop(layer(x))
            return x

    assert_equal_in_stages(Dropping(), tmp_path)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_stacked_recurrent_layers_can_be_divided(kind: type[nn.Module], tmp_path: Path) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = kind(6, 5, num_layers=4, dropout=0.2, bidirectional=True)
            self.head = nn.Linear(10, 3)

        def forward(self, x: Tensor) -> Any:
            output, state = self.recurrent(x.unsqueeze(0).repeat(7, 1, 1))
            return self.head(output), state

    studied = assert_equal_in_stages(Recurrent(), tmp_path, stages=(2, 4))
    holders = [
        {spec.name.rsplit("_l", 1)[1][0] for spec in graph.tensors if "weight_hh" in spec.name}
        for graph in studied.stages(even_cuts(studied, 4))
    ]
    assert all(layers != {"0", "1", "2", "3"} for layers in holders), "no stage holds all layers"


def test_modes_may_return_different_things(tmp_path: Path) -> None:
    class Auxiliary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.extra, self.last = (nn.Linear(6, 6) for _ in range(3))

        def forward(self, x: Tensor) -> Any:
            x = torch.relu(self.first(x))
            return (self.last(x), self.extra(x)) if self.training else self.last(x)

    assert_equal_in_stages(Auxiliary(), tmp_path)


def test_equal_names_of_different_constants_do_not_mix(tmp_path: Path) -> None:
    """Each capture numbers the constants it finds from 0; the two modes have different ones."""

    class Constants(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            if self.training:
                x = x * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
            return self.last(x) + torch.tensor([6.0, 5.0, 4.0, 3.0, 2.0, 1.0])

    assert_equal_in_stages(Constants(), tmp_path)


def test_hook_on_a_tensor_is_refused_not_lost() -> None:
    def hooked(x: Tensor) -> Tensor:
        x.register_hook(lambda gradient: gradient * 2)
        return x

    with pytest.raises(CaptureError, match=r"hook on a tensor.*test_traps"):
        study(chain_of(Apply(hooked)), (torch.randn(4, 6),))


def test_hook_on_a_parameter_is_refused_not_lost() -> None:
    model = chain_of(nn.ReLU())
    model.first.weight.register_hook(lambda gradient: gradient * 2)
    with pytest.raises(CaptureError, match=r"first\.weight.*hook"):
        study(model, (torch.randn(4, 6),))


def test_pass_through_of_an_argument_keeps_its_gradient(tmp_path: Path) -> None:
    """Dropout with p=0 returns its argument: a stage's output can be its input leaf itself."""
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.0), nn.Dropout(0.0), nn.Linear(6, 6))
    studied = study(model, (torch.randn(4, 6),))
    pipeline = load_stages(studied, [1, 2, 3], tmp_path)
    errors = compare(model, pipeline, studied, linear_inputs, total, (4, 3))
    assert errors.worst() <= 1e-6


def test_state_that_changes_between_calls_is_noticed() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last, self.calls = nn.Linear(6, 6), nn.Linear(6, 6), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.last(self.first(x))

    model = Counting()
    (warning,) = study(model, (torch.randn(4, 6),)).warnings
    assert "Counting changes calls while it runs" in warning
    assert model.calls == 0


def test_inference_mode_is_a_stretch_without_gradients(tmp_path: Path) -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.side, self.last = (nn.Linear(6, 6) for _ in range(3))

        @torch.inference_mode()
        def context(self, x: Tensor) -> Tensor:
            return self.side(x)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            return self.last(x + self.context(x).clone())

    assert_equal_in_stages(Frozen(), tmp_path)


def test_gradients_computed_inside_the_forward_are_refused() -> None:
    def force(x: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(x.square().sum(), x, create_graph=True)
        return slope

    with pytest.raises(CaptureError, match=r"computes gradients inside its forward.*test_traps"):
        study(chain_of(Apply(force)), (torch.randn(4, 6),))


@pytest.mark.parametrize("by_method", [True, False])
def test_freezing_a_parameter_on_the_way_is_refused(by_method: bool) -> None:
    class Freezing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            if by_method:
                self.first.weight.requires_grad_(False)
            else:
                self.first.weight.requires_grad = False
            return self.last(self.first(x))

    model = Freezing()
    with pytest.raises(CaptureError, match=r"requires_grad=False on a parameter.*test_traps"):
        study(model, (torch.randn(4, 6),))
    assert model.first.weight.requires_grad


def test_backward_hook_of_a_module_is_refused_by_its_name() -> None:
    layer = Apply(torch.relu)
    layer.register_full_backward_hook(lambda module, inward, outward: None)
    with pytest.raises(CaptureError, match="has a backward hook"):
        study(TwoWays(layer), (torch.randn(4, 6),))


def test_no_grad_and_autocast_regions_are_kept(tmp_path: Path) -> None:
    class Regions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            x = self.layers[0](x)
            with torch.no_grad():
                target = self.layers[1](x)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                x = self.layers[2](x)
            return self.layers[3](x.float() + target)

    assert_equal_in_stages(Regions(), tmp_path, stages=(2, 3))


def test_tied_names_survive_under_every_name(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.middle = nn.Embedding(9, 6), nn.Linear(6, 6)
            self.head = nn.Linear(6, 9, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(torch.tanh(self.middle(self.embedding(tokens))))

    def tokens(rows: int) -> Any:
        return (torch.randint(0, 9, (rows, 5)),), {}

    studied = assert_equal_in_stages(Tied(), tmp_path, tokens)
    first, last = studied.stages(even_cuts(studied, 2))
    spec = next(spec for spec in last.tensors if spec.name == "embedding.weight")
    assert spec.stages == (0, 1)
    assert not spec.owner
    assert next(s for s in first.tensors if s.name == "embedding.weight").owner


def test_unused_and_frozen_parameters_keep_names_and_values(tmp_path: Path) -> None:
    model = chain_of(nn.Tanh())
    model.unused = nn.Parameter(torch.randn(3))
    model.first.weight.requires_grad_(False)
    studied = assert_equal_in_stages(model, tmp_path)
    specs = [spec for graph in studied.stages(even_cuts(studied, 2)) for spec in graph.tensors]
    assert [spec.trainable for spec in specs if spec.name == "first.weight"] == [False]
    assert [spec.name for spec in specs].count("unused") == 1


def test_outputs_of_every_kind_are_accessible_as_before(tmp_path: Path) -> None:
    import collections
    import dataclasses

    @dataclasses.dataclass
    class Result:
        scores: Tensor
        hidden: tuple[Tensor, ...]
        note: str = "text"

    Pair = collections.namedtuple("Pair", ["left", "right"])

    class Many(nn.Module):
        def __init__(self, wrap: Callable[[Tensor, Tensor], Any]) -> None:
            super().__init__()
            self.first, self.last, self.wrap = nn.Linear(6, 6), nn.Linear(6, 6), wrap

        def forward(self, x: Tensor) -> Any:
            hidden = self.first(x)
            return self.wrap(self.last(hidden), hidden)

    batch = torch.randn(4, 6)
    for number, (wrap, read) in enumerate(
        [
            (lambda s, h: Result(s, (h, h)), lambda o: [o.scores, o.hidden[1]]),
            (Pair, lambda o: [o.left, o[1], *o]),
            (lambda s, h: {"s": s, "deep": {"h": [h]}}, lambda o: [o["s"], o["deep"]["h"][0]]),
            (lambda s, h: (s, None, [h, 3]), lambda o: [o[0], o[2][0]]),
        ]
    ):
        torch.manual_seed(0)
        model = Many(wrap)
        studied = study(model, (batch,))
        pipeline = load_stages(studied, even_cuts(studied, 2), tmp_path / str(number))
        for expected, found in zip(read(model(batch)), read(pipeline(batch)), strict=True):
            assert torch.equal(expected, found)
        assert len(leaves_of(pipeline(batch))) == len(leaves_of(model(batch)))


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x)) + self.second(y))


def test_one_example_tensor_for_two_inputs_stays_two_inputs(tmp_path: Path) -> None:
    """A capture takes equal objects for one input and would ignore the second for ever."""
    model, batch = TwoInputs(), torch.randn(4, 6)
    studied = study(model, (batch, batch))
    pipeline = load_stages(studied, even_cuts(studied, 2), tmp_path)

    def inputs(rows: int) -> Any:
        return (torch.randn(rows, 6), torch.randn(rows, 6)), {}

    assert compare(model, pipeline, studied, inputs, total, (4, 3)).worst() <= 1e-5


def test_another_length_than_planned_is_refused_not_miscomputed(tmp_path: Path) -> None:
    model = chain_of(Apply(lambda x: x / x.shape[1]))
    studied = study(model, (torch.randn(4, 5, 6),))
    pipeline = load_stages(studied, even_cuts(studied, 2), tmp_path)
    pipeline(torch.randn(3, 5, 6))
    with pytest.raises(ValueError, match=r"\[3, 7, 6\].*\[-1, 5, 6\]"):
        pipeline(torch.randn(3, 7, 6))


def test_branch_on_the_batch_size_limits_the_batches(tmp_path: Path) -> None:
    model = chain_of(Apply(lambda x: x - x.mean(0, keepdim=True) if x.shape[0] > 2 else x))
    studied = study(model, (torch.randn(4, 6),))
    pipeline = load_stages(studied, even_cuts(studied, 2), tmp_path)
    assert compare(model, pipeline, studied, linear_inputs, total, (4, 3)).worst() <= 1e-5
    with pytest.raises(ValueError, match="at least 3"):
        pipeline(torch.randn(2, 6))


def test_memory_shared_by_two_parameters_is_refused() -> None:
    model = chain_of(nn.ReLU())
    model.last.weight.data = model.first.weight.data
    with pytest.raises(CaptureError, match="share memory"):
        study(model, (torch.randn(4, 6),))


def test_buffer_read_through_a_view_is_read_before_it_is_written(tmp_path: Path) -> None:
    class Viewed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = (nn.Linear(6, 6) for _ in range(3))
            self.register_buffer("memory", torch.ones(6))

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            view, new = self.memory.view(2, 3), x.detach().mean(0)
            y = self.second(x + view.reshape(-1))
            self.memory.copy_(new)
            return self.last(torch.relu(y))

    assert_equal_in_stages(Viewed(), tmp_path)


def test_reentrant_checkpointing_is_refused_and_the_other_kind_works(tmp_path: Path) -> None:
    from torch.utils.checkpoint import checkpoint

    def wrapped(reentrant: bool) -> nn.Module:
        inner = nn.Linear(6, 6)

        class Checkpointed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = inner

            def forward(self, x: Tensor) -> Tensor:
                return checkpoint(self.inner, x, use_reentrant=reentrant)

        return chain_of(Checkpointed())

    with pytest.raises(CaptureError, match="use_reentrant=False"):
        study(wrapped(True), (torch.randn(4, 6),))
    assert_equal_in_stages(wrapped(False), tmp_path)


def test_self_check_leaves_a_model_that_changes_its_parameters_alone(tmp_path: Path) -> None:
    class Clamped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
            self.register_buffer("step", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.first.weight.clamp_(-0.1, 0.1)
            self.step += 1
            return self.last(self.first(x)) * torch.clamp(self.step / 2, max=1)

    model = Clamped()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    studied = study(model, (torch.randn(4, 6),))
    SelfCheck(studied)(load_stages(studied, even_cuts(studied, 2), tmp_path).stages)
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[key]), key


def test_sparse_gradients_pass_the_self_check(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(9, 6, sparse=True), nn.Linear(6, 3))
    studied = study(model, (torch.randint(0, 9, (4, 5)),))
    SelfCheck(studied)(load_stages(studied, even_cuts(studied, 2), tmp_path).stages)


class BranchOnOne(nn.Module):
    """A capture sees several rows and cannot tell that one row goes another way."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(x if x.shape[0] > 1 else x * 2)


@pytest.mark.parametrize("check", [True, False])
def test_a_single_row_is_refused_unless_it_was_tried(tmp_path: Path, check: bool) -> None:
    folder = write_pool(tmp_path, 2)
    planned = run_clusterize(BranchOnOne(), (torch.randn(4, 6),), folder, self_check=check)
    with pytest.raises(ValueError, match=r"a batch has 1 rows.*at least 2"):
        planned.pipeline()(torch.randn(1, 6))
    written = json.loads((tmp_path / "plan.json").read_text())["warnings"]
    assert any(("single row" in text) == check for text in written)
