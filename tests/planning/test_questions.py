"""Questions that a model asks about values, and that a capture answers without having any."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import even_cuts, load_stages
from pools import run_clusterize, write_pool
from torch import Tensor, nn
from torch.distributions import Normal
from traps import assert_equal_in_stages

from ravnest.errors import CaptureError, InputError
from ravnest.planning.capture import exporting
from ravnest.planning.selfcheck import DifferenceError, SelfCheck, as_it_runs
from ravnest.planning.study import study

BATCH = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))


class Between(nn.Module):
    """Something between two layers; the sum makes this no plain chain."""

    def __init__(self, middle: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
        self.middle = middle

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x))) + x


def refused(model: nn.Module, *words: str) -> None:
    with pytest.raises(CaptureError) as caught:
        study(model, (BATCH,))
    for word in words:
        assert word in str(caught.value)


# ---- guards -----------------------------------------------------------------------------------


def repairs(h: Tensor) -> Tensor:
    if not torch.isfinite(h).all():
        h = h.clamp(-1e3, 1e3)
    if torch.isnan(h).any().item() or h.isinf().any():
        h = h.nan_to_num()
    return h.tanh()


def raises(h: Tensor) -> Tensor:
    if (h.abs() > 1e3).any():
        names = [f"{size}" for size in h.shape]
        raise ValueError(f"too large: {' '.join(names) if names else 'none'}")
    return h.tanh()


def asserts(h: Tensor) -> Tensor:
    assert h.dim() != 2 or (h < 1e3).all(), "too large"
    return h.tanh()


def checks_arguments(h: Tensor) -> Tensor:
    return Normal(h, h.abs() + 1).log_prob(torch.zeros(6))


@pytest.mark.parametrize(
    ("guard", "odd"),
    [(repairs, torch.inf), (raises, 1e9), (asserts, torch.inf), (checks_arguments, torch.inf)],
)
def test_a_guard_goes_its_ordinary_way_and_no_batch_another(
    guard: Callable[[Tensor], Tensor], odd: float, tmp_path: Path
) -> None:
    model = Between(guard)
    studied = assert_equal_in_stages(model, tmp_path / "equal")
    assert studied.train.dynamic
    (warning,) = studied.warnings
    assert "out of order" in warning
    assert __file__ in warning
    for train in (True, False):
        stages = load_stages(studied, even_cuts(studied, 2), tmp_path / str(train))
        stages.train(train)
        with pytest.raises(InputError, match="another way"):
            stages(torch.full((4, 6), odd))


def test_a_question_with_two_ways_on_is_no_guard() -> None:
    refused(Between(lambda h: h.tanh() if (h > 0).all() else h), "values of a tensor")


def test_a_question_behind_which_both_ways_raise_is_no_guard() -> None:
    def middle(h: Tensor) -> Tensor:
        if (h > 0).all():
            raise ValueError("one")
        raise ValueError("other")

    refused(Between(middle), "itself fails")


# ---- what follows from the shapes, or from what the model keeps ---------------------------------


def written_in_place(h: Tensor) -> Tensor:
    mask = torch.zeros(h.shape[0], 6)
    before = mask > 0
    mask[:, 3:] = 1
    after = mask > 0
    mask.add_(1)
    if before.any() or not after.any() or (mask == 0).any():
        return h
    return h.tanh() * after


def written_with_data(h: Tensor) -> Tensor:
    mask = torch.zeros(h.shape[0], 6)
    mask.add_(h)
    return h if mask.any() else h.tanh()


def written_through_a_view(h: Tensor) -> Tensor:
    mask = torch.zeros(h.shape[0], 6)
    mask[:, 3:].add_(h[:, 3:])
    return h if mask.any() else h.tanh()


def drawn_in_place(h: Tensor) -> Tensor:
    return h if torch.zeros(h.shape[0], 6).uniform_().any() else h.tanh()


def counted(h: Tensor) -> Tensor:
    return h if torch.ones(h[h > 0].shape[0] + 3).sum() > 2 else h.tanh()


def test_a_constant_that_was_written_to_is_known(tmp_path: Path) -> None:
    assert_equal_in_stages(Between(written_in_place), tmp_path)


@pytest.mark.parametrize(
    "middle", [written_with_data, written_through_a_view, drawn_in_place, counted]
)
def test_what_depends_on_data_is_not_taken_for_a_constant(
    middle: Callable[[Tensor], Tensor],
) -> None:
    refused(Between(middle), "values of a tensor")


class Padded(nn.Module):
    """Keeps its sizes in buffers."""

    def __init__(self, writes: str = "") -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(8, 6)
        self.register_buffer("width", torch.tensor(8), persistent=False)
        self.writes = writes

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).tanh()
        missing = self.width - h.shape[1]
        if missing > 0:
            h = nn.functional.pad(h, (missing // 2, missing - missing // 2 + 1))[:, : self.width]
        if self.writes == ("train" if self.training else "eval"):
            self.width += 0
        return self.last(h) + x


def test_sizes_from_integers_that_a_model_keeps(tmp_path: Path) -> None:
    assert_equal_in_stages(Padded(), tmp_path)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_sizes_from_integers_that_change_are_refused(mode: str) -> None:
    refused(Padded(mode), "'width'", "changes it while it runs")


# ---- experts that were hit ----------------------------------------------------------------------


class Experts(nn.Module):
    """As mixtures of experts with code of their own do it."""

    def __init__(self, hit: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.router = nn.Linear(6, 6), nn.Linear(6, 5)
        self.experts = nn.ModuleDict({f"expert_{i}": nn.Linear(6, 6) for i in range(5)})
        self.hit = hit

    def forward(self, x: Tensor) -> Tensor:
        self.router = self.router.to(x.dtype)
        h = self.first(x)
        weights, chosen = self.router(h).softmax(-1).topk(2)
        places = nn.functional.one_hot(chosen, 5).permute(2, 1, 0)
        result = torch.zeros_like(h)
        for number in self.hit(places):
            slot, token = torch.where(places[number].squeeze(0))
            found = self.experts[f"expert_{number[0]}"](h[token])
            result.index_add_(0, token, found * weights[token, slot, None])
        return result + x


@pytest.mark.parametrize(
    "hit",
    [
        lambda places: torch.greater(places.sum((-1, -2)), 0).nonzero(),
        lambda places: (places.sum(dim=(-1, -2)) != 0).nonzero(),
        lambda places: places.flatten(1).any(1).nonzero(),
    ],
)
def test_a_loop_over_the_experts_that_were_hit(hit: Any, tmp_path: Path) -> None:
    """The self-check takes the gradient of an expert without tokens, which is zero in a stage and
    none at all in the model, for the same."""
    studied = study(Experts(hit), (BATCH,))
    SelfCheck(studied)(load_stages(studied, even_cuts(studied, 3), tmp_path).stages)


class AskingExperts(Experts):
    """Another loop of this kind, which skips experts without tokens."""

    def __init__(self, row: Callable[[Tensor, int], Tensor], in_rows: bool = True) -> None:
        super().__init__(lambda _: torch.empty(0))
        self.row, self.in_rows = row, in_rows

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        weights, chosen = self.router(h).softmax(-1).max(-1)
        places = nn.functional.one_hot(chosen, 5)
        result = torch.zeros_like(h)
        hit = (places.sum(0) > 0).nonzero()
        for number in hit if self.in_rows else hit.squeeze(-1):
            expert = int(number.item())
            (token,) = torch.where(self.row(places if self.in_rows else chosen, expert))
            if token.numel() == 0:
                continue
            found = self.experts[f"expert_{expert}"](h[token])
            result.index_add_(0, token, found * weights[token, None])
        return result + x


@pytest.mark.parametrize(
    "model",
    [
        AskingExperts(lambda places, number: places.permute(1, 0)[number].bool()),
        AskingExperts(lambda chosen, number: chosen == number, in_rows=False),
    ],
    ids=["flags", "numbers"],
)
def test_an_expert_that_was_hit_has_tokens(model: nn.Module, tmp_path: Path) -> None:
    studied = study(model, (BATCH,))
    SelfCheck(studied)(load_stages(studied, even_cuts(studied, 3), tmp_path).stages)


@pytest.mark.parametrize("number", [0, 4])
def test_an_expert_whose_turn_it_is_not_may_have_none(number: int) -> None:
    refused(AskingExperts(lambda places, _: places.permute(1, 0)[number].bool()), "numel() == 0")


def test_a_loop_over_anything_else_that_the_data_make_is_refused() -> None:
    refused(Experts(lambda places: (places.flatten(1).float().std(1) > 0.4).nonzero()), "values")


# ---- masks --------------------------------------------------------------------------------------


class Masked(nn.Module):
    """With a mask that is said for one pair of positions, as models of transformers say theirs."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.masking_utils import sdpa_mask

        self.mask = sdpa_mask
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        def near(row: Any, head: Any, query: Any, key: Any) -> Any:
            return (query - key).abs() < 2

        h = self.first(x)[:, None, :, None].expand(-1, 1, -1, 4)
        mask = self.mask(
            x.shape[0], 6, 6, mask_function=near, use_vmap=True, allow_is_causal_skip=False
        )
        h = nn.functional.scaled_dot_product_attention(h, h, h, attn_mask=mask)
        return self.last(h.mean((1, 3))) + x


def test_a_mask_that_is_mapped_over_positions_is_broadcast(tmp_path: Path) -> None:
    assert_equal_in_stages(Masked(), tmp_path)


# ---- being told of a compiler -------------------------------------------------------------------


class FailsEitherWay(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if torch.compiler.is_compiling():
            return self.last(h.view(-1, 7)) + x
        return self.last(h if h.sum() > 0 else h.tanh()) + x


def test_both_ways_to_fail_are_named() -> None:
    refused(FailsEitherWay(), "h.view(-1, 7)", "As it runs for its users", "if h.sum() > 0")


class Looks(nn.Module):
    """As transformers does: a mask of ones is not applied, but while a model is compiled it is."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        from transformers.utils.import_utils import is_tracing

        h, mask = self.first(x), torch.ones(x.shape[0], 6)
        if not is_tracing(mask) and mask.all():
            return self.last(h) + x
        return self.last(h + mask.view(-1, 7)) + x


def test_a_library_that_looks_at_its_tensors_is_not_told_either(tmp_path: Path) -> None:
    assert_equal_in_stages(Looks(), tmp_path)


class OtherForCompilers(nn.Module):
    """It can be captured either way, and only one of them is the model."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.last(h.sin() if torch.compiler.is_exporting() else h.tanh()) + x


def test_what_a_model_does_for_compilers_only_is_not_taken_for_the_model(tmp_path: Path) -> None:
    folder = write_pool(tmp_path, 2)
    planned = run_clusterize(OtherForCompilers(), (BATCH,), folder)
    assert [len(cluster.stages) for cluster in planned.plan.clusters] == [2]


def test_a_model_that_differs_either_way_is_refused() -> None:
    def use(studied: Any) -> None:
        raise DifferenceError("told" if studied.untold else "untold")

    with pytest.raises(DifferenceError, match=r"^told$"):
        as_it_runs(study(OtherForCompilers(), (BATCH,)), use)


def test_torch_itself_is_always_told_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)

    def asked(name: str) -> Any:
        return eval("torch.compiler.is_compiling()", {"torch": torch, "__name__": name})

    with exporting._is_told(False):
        assert [asked(name) for name in ("torch", "torch.nn", "torchvision")] == [True, True, False]
