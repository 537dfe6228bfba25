"""Traps of state and memory: what a model remembers, and what a graph would forget.

As in test_traps.py, each of these once gave a wrong result without an error.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import even_cuts, load_stages
from torch import Tensor, nn
from traps import Apply, assert_equal_in_stages, chain_of
from zoo import ZOO

from ravnest.errors import CaptureError
from ravnest.planning.selfcheck import SelfCheck
from ravnest.planning.study import Study, study

BATCH = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))


def self_check(studied: Study, folder: Path) -> None:
    SelfCheck(studied)(load_stages(studied, even_cuts(studied, 2), folder).stages)


class Helper:
    """An object of the user's that is no module."""

    def __init__(self) -> None:
        self.count = 0
        self.memory = torch.zeros(6)


class Remembering(nn.Module):
    """Keeps things in every place a module can keep them, and changes one of them."""

    def __init__(self, change: Callable[["Remembering", Tensor], Any]) -> None:
        super().__init__()
        self.change = change
        self.number, self.numbers, self.table = 0, [0], {"count": 0}
        self.memory, self.memories, self.helper = torch.zeros(6), {"h": torch.zeros(6)}, Helper()

    def forward(self, x: Tensor) -> Tensor:
        result = x + self.memory + self.memories["h"] + self.helper.memory
        self.change(self, x.detach())
        return result


def add_in_place(module: Remembering, x: Tensor) -> None:
    module.memory.add_(x.mean(0))


def add_in_place_to_a_part(module: Remembering, x: Tensor) -> None:
    module.memory[2:4] += x.mean()


def reassign(module: Remembering, x: Tensor) -> None:
    module.memory = module.memory * 0.5 + x.mean(0)


def reassign_in_dict(module: Remembering, x: Tensor) -> None:
    module.memories["h"] = x.mean(0)


def reassign_in_helper(module: Remembering, x: Tensor) -> None:
    module.helper.memory = x.mean(0)


@pytest.mark.parametrize(
    "change",
    [add_in_place, add_in_place_to_a_part, reassign, reassign_in_dict, reassign_in_helper],
)
def test_tensor_that_changes_outside_the_buffers_is_refused(change: Any) -> None:
    model = chain_of(Remembering(change))
    with pytest.raises(CaptureError, match="register_buffer"):
        study(model, (BATCH,))
    middle = model.middle
    for kept in (middle.memory, middle.memories["h"], middle.helper.memory):
        assert type(kept) is Tensor
        assert torch.equal(kept, torch.zeros(6))


def count_in_list(module: Remembering, x: Tensor) -> None:
    module.numbers[0] += 1


def count_in_dict(module: Remembering, x: Tensor) -> None:
    module.table["count"] += 1


def count_in_helper(module: Remembering, x: Tensor) -> None:
    module.helper.count += 1


@pytest.mark.parametrize("change", [count_in_list, count_in_dict, count_in_helper])
def test_number_that_changes_in_a_container_is_reported(change: Any, tmp_path: Path) -> None:
    model = chain_of(Remembering(change))
    studied = study(model, (BATCH,))
    (warning,) = studied.warnings
    assert "changes middle." in warning
    self_check(studied, tmp_path)
    middle = model.middle
    assert (middle.numbers, middle.table, middle.helper.count) == ([0], {"count": 0}, 0)


class Once(nn.Module):
    """Does something else at its first call: no counter, no old tensor that could be watched."""

    def __init__(self) -> None:
        super().__init__()
        self.shift: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.shift = x.detach().mean(0) if self.shift is None else self.shift * 0.5
        return x - self.shift


def test_model_that_answers_differently_the_second_time_is_refused(tmp_path: Path) -> None:
    studied = study(chain_of(Once()), (BATCH,))
    with pytest.raises(CaptureError, match="when it has been called before"):
        self_check(studied, tmp_path)


def test_tensors_kept_for_the_caller_and_caches_are_harmless(tmp_path: Path) -> None:
    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last: Tensor | None = None
            self.table = torch.zeros(1)
            self.cache: dict[int, Tensor] = {}

        def forward(self, x: Tensor) -> Tensor:
            if self.table.shape[0] != 6:
                self.table = torch.arange(6.0)
            if 6 not in self.cache:
                self.cache[6] = torch.linspace(0, 1, 6)
            self.last = x * self.table
            return self.last + self.cache[6]

    model = chain_of(Keeping())
    studied = assert_equal_in_stages(model, tmp_path)
    assert not studied.warnings
    self_check(studied, tmp_path / "again")


def test_flag_that_transformers_sets_at_the_first_call_is_not_reported() -> None:
    entry = ZOO["hf_segformer"]
    args, kwargs = entry.inputs(2)
    assert study(entry.build(), args, kwargs).warnings == ()


def test_planning_does_not_change_a_tensor_written_in_place() -> None:
    class Branching(nn.Module):
        """Looks at values, so it cannot be captured and runs as it is."""

        def __init__(self) -> None:
            super().__init__()
            self.seen = torch.zeros(6)

        def forward(self, x: Tensor) -> Tensor:
            self.seen.add_(x.detach().mean(0))
            return x * 2 if x.sum() > 0 else x

    model = nn.Sequential(nn.Linear(6, 6), Branching(), nn.Linear(6, 6))
    study(model, (BATCH,))
    assert torch.equal(model[1].seen, torch.zeros(6))


class Calibrated(nn.Module):
    """Makes its scale in evaluation and uses it in training: once and doubled, or again and again
    in the first two layers."""

    def __init__(self, *, directly: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(6))
        self.directly = directly
        self.register_buffer("scale", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            self.scale.copy_(x.abs().amax(0) + 1)
        doubled = self.scale * 2
        for number, layer in enumerate(self.layers):
            x = torch.tanh(layer(x))
            if not self.directly:
                x = x * doubled
            elif number < 2 and self.training:
                x = x * self.scale
        return x


@pytest.mark.parametrize("directly", [True, False])
def test_training_reads_the_buffer_that_evaluation_wrote(tmp_path: Path, directly: bool) -> None:
    model = Calibrated(directly=directly)
    studied = study(model, (BATCH,))
    positions = [int(position) for position in studied.costs.operator[1:-1]]
    assert positions
    for position in positions:
        model.scale.fill_(1.0)
        pipeline = load_stages(studied, [position], tmp_path / str(position))
        for training in (True, False, True):
            model.train(training)
            pipeline.train(training)
            with torch.no_grad():
                assert torch.allclose(model(BATCH), pipeline(BATCH), atol=1e-6), position


def test_buffer_written_through_a_view_counts_as_written(tmp_path: Path) -> None:
    class Banked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
            self.register_buffer("bank", torch.ones(3, 6))

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.bank[1] = x.detach().mean(0)
            bank = self.bank * 2
            for layer in self.layers:
                x = layer(x) + bank.mean(0)
            return x

    studied = assert_equal_in_stages(Banked(), tmp_path)
    assert studied.train.written == {"bank"}


def test_parameter_replaced_in_the_forward_is_refused() -> None:
    class Replacing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            self.first.weight = nn.Parameter(self.first.weight.detach() * 0.5)
            return self.last(torch.tanh(self.first(x)))

    model = Replacing()
    weight = model.first.weight
    with pytest.raises(CaptureError, match=r"replaces its parameter 'first\.weight'"):
        study(model, (BATCH,))
    assert model.first.weight is weight


@pytest.mark.parametrize("assign", [True, False])
def test_writing_to_data_is_refused(assign: bool) -> None:
    def behind_the_back(x: Tensor) -> Tensor:
        y = x * 1
        if assign:
            y.data = torch.zeros_like(y) + 3
        else:
            y.data.mul_(2)
        return y + x

    with pytest.raises(CaptureError, match=r"\.data"):
        study(chain_of(Apply(behind_the_back)), (BATCH,))


def test_seed_set_in_the_forward_is_refused() -> None:
    def noisy(x: Tensor) -> Tensor:
        torch.manual_seed(0)
        return x + torch.randn(x.shape)

    with pytest.raises(CaptureError, match=r"random seed.*test_traps_state\.py:\d+"):
        study(chain_of(Apply(noisy)), (BATCH,))


def with_weights(first: Tensor, last: Tensor) -> nn.Module:
    model = chain_of(nn.ReLU())
    model.first.weight, model.last.weight = nn.Parameter(first), nn.Parameter(last)
    return model


def test_strided_parameters_that_overlap_are_refused() -> None:
    base = torch.randn(12, 6)
    model = with_weights(base[::2], torch.randn(6, 6))
    model.last.bias = nn.Parameter(base[10])
    with pytest.raises(CaptureError, match=r"'first\.weight' and 'last\.bias' share memory"):
        study(model, (BATCH,))


def test_interleaved_parameters_that_do_not_overlap_are_planned(tmp_path: Path) -> None:
    base = torch.randn(6, 12)
    assert_equal_in_stages(with_weights(base[:, :6], base[:, 6:]), tmp_path)


def test_overlap_behind_a_smaller_tensor_is_found() -> None:
    base = torch.randn(100)
    model = with_weights(base.as_strided((6, 6), (12, 1)), torch.randn(6, 6))
    model.first.bias = nn.Parameter(base[6:12])  # in a gap of the weight
    model.last.bias = nn.Parameter(base[12:18])
    with pytest.raises(CaptureError, match=r"'first\.weight' and 'last\.bias' share memory"):
        study(model, (BATCH,))


def test_view_of_a_parameter_in_a_plain_attribute_is_refused() -> None:
    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
            self.row = self.last.weight.detach()[0]

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.tanh(self.first(x))) + self.row

    with pytest.raises(CaptureError, match=r"'(row|last\.weight)' and '(row|last\.weight)' share"):
        study(Viewing(), (BATCH,))
