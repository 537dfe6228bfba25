"""Traps of how a model is called: surroundings, batch sizes, hooks, chains, unfit inputs.

As in test_traps.py, each of these gave a wrong result without an error, or an error without help.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import compare, even_cuts, load_stages
from pools import run_clusterize, write_pool
from torch import Tensor, nn
from traps import Apply, Doubling, TwoWays, assert_equal_in_stages, chain_of, linear_inputs, total

from ravnest.errors import CaptureError
from ravnest.planning.selfcheck import SelfCheck
from ravnest.planning.study import study

BATCH = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))


class Regions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.side, self.last = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        with torch.no_grad():
            target = self.side(x)
        return self.last(torch.tanh(x + target))


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_planning_without_gradients_keeps_them(around: Any, tmp_path: Path) -> None:
    model, unfit, folder = Regions(), chain_of(Apply(Doubling.apply)), write_pool(tmp_path, 2)
    with around():
        studied = study(model, (torch.randn(4, 6),))
        with pytest.raises(CaptureError, match="Doubling"):
            study(unfit, (BATCH,))
        run_clusterize(model, (torch.randn(4, 6),), folder)
    pipeline = load_stages(studied, even_cuts(studied, 2), tmp_path / "stages")
    assert compare(model, pipeline, studied, linear_inputs, total, (4, 3)).worst() <= 1e-5


def test_self_check_inside_no_grad_compares_gradients(tmp_path: Path) -> None:
    studied = study(Regions(), (BATCH,))
    check = SelfCheck(studied)
    stages = load_stages(studied, even_cuts(studied, 2), tmp_path).stages
    with torch.no_grad():
        check(stages)
    expected = check._expected[0]
    assert expected.gradients["first.weight"] is not None


class DoesWithoutMask(nn.Module):
    """As libraries do that spare a compiler something which their own code needs."""

    def __init__(self, compiled_way: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
        self.compiled_way = compiled_way

    def forward(self, x: Tensor) -> Tensor:
        mask = None if torch.compiler.is_compiling() else torch.ones(x.shape[0], 6)
        if self.compiled_way and (mask is None or mask.sum() == 0):
            return self.last(self.first(x).tanh()) + x
        return self.last(self.first(x).tanh() * mask[:, :6]) + x


@pytest.mark.parametrize("compiled_way", [True, False])
def test_a_model_that_does_something_else_for_a_compiler(
    compiled_way: bool, tmp_path: Path
) -> None:
    """It is taken at its word first; where that fails, it is captured as it runs for its users."""
    assert_equal_in_stages(DoesWithoutMask(compiled_way), tmp_path)


class AsksItsMask(nn.Module):
    """A mask that hides nothing is not applied; where none was given it is made of ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        h = self.first(x)
        if mask is None:
            mask = torch.ones(x.shape[0], 6)
        hides = mask < 1
        mask.mul_(2)
        if not hides.any().item() and (hides.sum(0) < 8).all():
            return self.last(h.tanh()) + x
        return self.last(h * mask) + x


def test_questions_about_constants_have_an_answer(tmp_path: Path) -> None:
    assert_equal_in_stages(AsksItsMask(), tmp_path)
    with pytest.raises(CaptureError, match="depends on the values of a tensor"):
        study(AsksItsMask(), (torch.randn(4, 6), torch.ones(4, 6)))


class AsksTheRows(AsksItsMask):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        h = self.first(x)
        few = torch.ones(x.shape[0], 6).sum() < 60
        return self.last(h.tanh() if few else h) + x


def test_an_answer_that_follows_from_the_number_of_rows_fixes_it() -> None:
    assert not study(AsksTheRows(), (torch.randn(4, 6),)).train.dynamic


def test_planning_inside_autocast_records_no_casts() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        studied = study(chain_of(nn.ReLU()), (BATCH,))
    assert {wire.dtype for graph in studied.stages([2]) for wire in graph.train.sends} == {
        "float32"
    }


def minibatch_deviation(x: Tensor) -> Tensor:
    group = 2 if x.shape[0] % 2 == 0 else x.shape[0]
    parts = x.view(group, -1, 6)
    spread = (parts - parts.mean(0)).square().mean(0).mean(1, keepdim=True)
    return x + spread.repeat(group, 1)


@pytest.mark.parametrize(
    ("branch", "allowed", "refused"),
    [
        (lambda x: x * 2 if x.shape[0] == 7 else x, (1, 4, 6), (7, 8)),
        (lambda x: x * 2 if x.shape[0] % 3 == 0 else x, (4, 5), (3, 6)),
        (lambda x: x * 2 if x.shape[0] % 2 == 0 else x, (4,), (3, 5, 6)),
        (minibatch_deviation, (4,), (3, 5)),
        (lambda x: torch.cat([c - c.mean(0) for c in x.chunk(2)]), (4, 5, 6, 50), (1, 2, 3)),
        (lambda x: torch.cat([c - c.mean(0) for c in x.chunk(3)]), (4,), (3, 5, 6)),
        (lambda x: torch.cat([c - c.mean(0) for c in x.split(2)]), (4,), (3, 5, 6)),
    ],
)
def test_only_batches_that_take_the_captured_way_are_accepted(
    branch: Callable[[Tensor], Tensor],
    allowed: tuple[int, ...],
    refused: tuple[int, ...],
    tmp_path: Path,
) -> None:
    model = chain_of(Apply(branch))
    studied = study(model, (BATCH,))
    assert "every batch must have" in studied.warnings[0]
    pipeline = load_stages(studied, even_cuts(studied, 2), tmp_path)
    SelfCheck(studied)(pipeline.stages)
    for rows in allowed:
        batch = torch.randn(rows, 6)
        assert torch.allclose(pipeline(batch), model(batch), atol=1e-6)
    for rows in refused:
        with pytest.raises(ValueError, match="planned for"):
            pipeline(torch.randn(rows, 6))


def test_assumptions_that_always_hold_do_not_limit_the_batch() -> None:
    def reshaped(x: Tensor) -> Tensor:
        return x.view(-1, 3, 2).transpose(0, 1).reshape(3, x.shape[0] * 2).sum(0).view(-1, 2)

    studied = study(chain_of(nn.Sequential(Apply(reshaped), nn.Linear(2, 6))), (BATCH,))
    assert studied.warnings == ()
    assert studied.train.rows == (1, None)


def hook_node(x: Tensor) -> Tensor:
    y = x * 1
    if y.grad_fn is not None:
        y.grad_fn.register_hook(lambda inward, outward: inward)
    return y


def hook_node_before(x: Tensor) -> Tensor:
    y = x * 1
    if y.grad_fn is not None:
        y.grad_fn.next_functions[0][0].register_prehook(lambda outward: outward)
    return y


def hook_several(x: Tensor) -> Tensor:
    y = x * 1
    torch.autograd.graph.register_multi_grad_hook([y], lambda gradients: None)
    return y


def hook_saved(x: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.bfloat16(), lambda t: t.float()):
        return torch.tanh(x)


@pytest.mark.parametrize("function", [hook_node, hook_node_before, hook_several, hook_saved])
def test_hook_on_the_backward_graph_is_refused(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(CaptureError, match=r"registers a hook on.*test_traps_calls\.py:\d+"):
        study(chain_of(Apply(function)), (BATCH,))


@pytest.mark.parametrize(
    "register",
    ["register_backward_hook", "register_full_backward_hook", "register_full_backward_pre_hook"],
)
def test_backward_hook_of_any_kind_on_a_module_is_refused(register: str) -> None:
    layer = nn.Linear(6, 6)
    getattr(layer, register)(lambda *gradients: None)
    with pytest.raises(CaptureError, match=r"module 'layer' has a backward hook.*test_traps_calls"):
        study(TwoWays(layer), (BATCH,))


def test_backward_hook_for_all_modules_is_refused() -> None:
    handle = nn.modules.module.register_module_full_backward_hook(lambda *gradients: None)
    try:
        with pytest.raises(CaptureError, match="set for all modules"):
            study(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)), (BATCH,))
    finally:
        handle.remove()


class Branch(nn.Module):
    """Looks at values: whatever contains it can only be cut at module boundaries."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x * 3


class Doubled(nn.Sequential):
    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x) * 2


def doubling_container() -> nn.Module:
    container = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
    container.register_forward_hook(lambda module, given, result: result * 2)
    return container


def container_with_backward_hook() -> nn.Module:
    container = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
    container.register_full_backward_hook(
        lambda module, inward, outward: tuple(g if g is None else g * 3 for g in inward)
    )
    return container


@pytest.mark.parametrize(
    "make",
    [
        doubling_container,
        container_with_backward_hook,
        lambda: Doubled(nn.Linear(6, 6), nn.Tanh()),
    ],
)
def test_container_that_does_more_than_its_children_is_one_piece(
    make: Callable[[], nn.Module], tmp_path: Path
) -> None:
    model = nn.Sequential(nn.Linear(6, 6), make(), Branch(), nn.Linear(6, 6))
    studied = assert_equal_in_stages(model, tmp_path, stages=(2,))
    assert [op.path for op in studied.train.ops] == ["0", "1", "2", "3"]


def test_module_used_twice_in_a_chain_runs_twice(tmp_path: Path) -> None:
    shared = nn.Tanh()
    layers = [nn.Linear(6, 6), shared, nn.Linear(6, 6), shared, Branch(), nn.Linear(6, 6)]
    studied = assert_equal_in_stages(nn.Sequential(*layers), tmp_path, stages=(2,))
    assert [op.path for op in studied.train.ops] == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize("hooked", [True, False])
def test_outermost_container_that_does_more_is_no_chain(hooked: bool) -> None:
    layers = [nn.Linear(6, 6), Branch(), nn.Linear(6, 6)]
    model = nn.Sequential(*layers) if hooked else Doubled(*layers)
    if hooked:
        model.register_forward_hook(lambda module, given, result: result * 2)
    with pytest.raises(CaptureError, match="cannot be cut"):
        study(model, (BATCH,))


class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.encoder(self.embedding(tokens), src_key_padding_mask=tokens == 0)
        return self.head(x)


def test_padded_transformer_encoder_is_planned_as_its_layers_say(tmp_path: Path) -> None:
    tokens = torch.randint(1, 11, (4, 7))
    tokens[:, 5:] = 0
    model = Padded()
    before = torch.backends.mha.get_fastpath_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        planned = run_clusterize(model, (tokens,), write_pool(tmp_path, 2))
    assert torch.backends.mha.get_fastpath_enabled() == before
    pipeline = planned.pipeline()
    pipeline.train(False)
    model.train(False)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole, cut = model(tokens), pipeline(tokens)
    assert torch.allclose(whole[:, :5], cut[:, :5], atol=1e-5)


def forward_mode(x: Tensor) -> Tensor:
    import torch.autograd.forward_ad as forward_ad

    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        return forward_ad.unpack_dual(torch.tanh(dual)).tangent


@pytest.mark.parametrize(
    "function",
    [
        torch.vmap(lambda row: row * row.sum()),
        lambda x: torch.func.jvp(torch.tanh, (x,), (torch.ones_like(x),))[1],
        lambda x: torch.vmap(torch.func.jacrev(lambda row: row.tanh().sum()))(x),
        forward_mode,
    ],
)
def test_transforms_of_functions_are_refused_by_name(function: Any) -> None:
    with pytest.raises(CaptureError, match=r"\.py:\d+.*torch\.vmap.*not supported"):
        study(chain_of(Apply(function)), (BATCH,))


def test_place_of_an_error_is_in_the_users_code() -> None:
    import copy

    class Copying(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return copy.deepcopy(self.inner)(x)

    with pytest.raises(CaptureError, match=r"in forward, \S*test_traps_calls\.py:\d+"):
        study(chain_of(Copying()), (BATCH,))


@pytest.mark.parametrize(
    ("model", "example", "words"),
    [
        (nn.Sequential(nn.Linear(6, 6)), BATCH.double(), r"float64\[2, 6\]"),
        (nn.Sequential(nn.Linear(6, 6)), BATCH.numpy(), r"torch\.from_numpy"),
        (nn.Sequential(nn.Linear(6, 6)), {"x": [np.zeros(3)]}, r"torch\.from_numpy"),
        (nn.Sequential(nn.Linear(6, 6)), BATCH.to("meta"), "the model is not"),
        (nn.Linear(6, 6, device="meta"), BATCH, r"under torch\.device\('meta'\)"),
        (nn.Linear, BATCH, "the class Linear"),
        (chain_of(torch.jit.script(nn.Tanh())), BATCH, "'middle' is scripted or traced"),
    ],
)
def test_unfit_model_or_input_is_named_at_once(model: Any, example: Any, words: str) -> None:
    with pytest.raises(CaptureError, match=words):
        study(model, (example,))


def test_model_made_in_inference_mode_is_named() -> None:
    with torch.inference_mode():
        model = chain_of(nn.ReLU())
    with pytest.raises(CaptureError, match=r"inference_mode.*cannot be trained"):
        study(model, (BATCH,))
