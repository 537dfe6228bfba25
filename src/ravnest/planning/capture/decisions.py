"""What the model's Python does while it is captured, and that a graph cannot show by itself.

A capture works without data, so it must give up where a model asks for some. Some questions are
everywhere and can be answered all the same:

- Layer dropping is written as `if torch.rand([]) < self.layerdrop: skip`. A draw from [0, 1) is
  never below 0 and always below 1; so with a probability of 0, the default of many models, the
  branch is known. The draw itself stays in the graph and moves the generator on as in the model.
- A guard looks for values that are out of order. It is taken to find none, and an assertion in the
  graph makes sure of that (guards.py).
- A loop over the experts that were hit goes over all of them: the others have no tokens, and their
  turn does nothing (experts.py).
- `nn.Transformer` looks whether a mask happens to be causal, to pick a faster kernel. The mask is
  applied either way, so the answer "not known to be" is always right.

`torch.inference_mode` is recorded as what it is to a training step, a stretch without gradients. A
stretch without gradients inside an autocast region, which torch's capture loses, is recorded as
results that are cut off from their past.
And what a graph would lose without a word is refused: hooks on tensors and on nodes of autograd's
graph, parameters frozen or thawed on the way, a backward pass inside the forward, new `.data`, a
new random seed.
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any
from unittest import mock

import torch
import torch.autograd
import torch.nn.modules.transformer as torch_transformer
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ravnest.errors import CaptureError
from ravnest.planning.capture.constants import QUESTIONS, Constants
from ravnest.planning.capture.experts import HitExperts
from ravnest.planning.capture.guards import assert_answer, is_guard, ordinary_answer
from ravnest.planning.capture.sources import user_frame

_BELOW = {torch.Tensor.__lt__, torch.Tensor.lt, torch.lt, torch.less, torch.Tensor.less}
_NOT_BELOW = {
    torch.Tensor.__ge__,
    torch.Tensor.ge,
    torch.ge,
    torch.greater_equal,
    torch.Tensor.greater_equal,
}

_ENTER_SAVED = saved_tensors_hooks.__enter__
_HOOKS = {torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook}
_GRAD_FN = torch.Tensor.grad_fn.__get__  # type: ignore[union-attr]
_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]
_FREEZES = {torch.Tensor.requires_grad_, torch.Tensor.requires_grad.__set__}  # type: ignore[attr-defined]


def _refuse_freezing(parameter: torch.Tensor, requires_grad: bool = True) -> None:
    if parameter.requires_grad != requires_grad:
        raise CaptureError(
            f"the model sets requires_grad={requires_grad} on a parameter {user_frame()}. What is "
            "trained must not change while it runs: set it before planning, or use "
            "tensor.detach() in the forward where no gradient should flow."
        )


def _refuse_hook(what: str) -> Any:
    raise CaptureError(
        f"the model registers a hook on {what} {user_frame()}. A captured graph would "
        "lose it and train on other gradients. Express it as a custom operator with its "
        "own backward (torch.library.custom_op and register_autograd)."
    )


class _WatchedNode:
    """A node of autograd's graph, as the model sees it: everything but hooks."""

    def __init__(self, node: Any) -> None:
        self._node = node

    def __getattr__(self, name: str) -> Any:
        if name in ("register_hook", "register_prehook"):
            _refuse_hook(f"a gradient (grad_fn.{name})")
        value = getattr(self._node, name)
        if name == "next_functions":
            return tuple((node and _WatchedNode(node), index) for node, index in value)
        return value


def _enter_saved_tensors_hooks(hooks: Any) -> None:
    # torch's own kinds (checkpointing, save_on_cpu) hand back the value that they were given.
    kind = type(hooks)
    if kind is saved_tensors_hooks or not kind.__module__.startswith("torch."):
        _refuse_hook("tensors saved for the backward pass (saved_tensors_hooks)")
    _ENTER_SAVED(hooks)


def _refuse_seed(*args: Any, **kwargs: Any) -> Any:
    raise CaptureError(
        f"the model sets torch's random seed in its forward {user_frame()}. A captured graph would "
        "not, and draw other numbers. Draw what shall be the same each time once, and keep it in a "
        "buffer."
    )


def _refuse_backward(*args: Any, **kwargs: Any) -> Any:
    raise CaptureError(
        f"the model computes gradients inside its forward {user_frame()}. A captured graph cannot "
        "differentiate through that. Write the derivative out as ordinary operations, or as a "
        "custom operator with its own backward (torch.library.custom_op and register_autograd)."
    )


class DecidedDraws(TorchFunctionMode):
    """While active, `torch.rand([]) < p` is a plain bool for p <= 0 and for p >= 1."""

    def __init__(self, constants: Constants) -> None:
        super().__init__()
        self._draws: list[torch.Tensor] = []
        self._constants = constants
        self._hit = HitExperts(constants)
        self.assumed: list[str] = []
        """Where a guard was taken to find nothing."""
        self.autocast_began_with_gradients: list[bool] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in _HOOKS:
            _refuse_hook("a tensor")
        if func == _GRAD_FN:
            node = func(*args, **(kwargs or {}))
            return node if node is None else _WatchedNode(node)
        if func == _SET_DATA:
            raise CaptureError(
                f"the model assigns to a tensor's .data {user_frame()}, behind autograd's back: a "
                "captured graph would not see it. Compute a new tensor and use that; to change a "
                "parameter or buffer, write into it (with torch.no_grad(): tensor.copy_(new))."
            )
        if func in _FREEZES and isinstance(args[0], torch.nn.Parameter):
            _refuse_freezing(*args, **(kwargs or {}))
        if func in _BELOW or func in _NOT_BELOW:
            answer = self._decide(*args[:2]) if len(args) == 2 else None
            if answer is not None:
                return answer if func in _BELOW else not answer
        if func in QUESTIONS:
            known = self._answer(func, args, sys._getframe(1))
            self._hit.asked(args[0], known)
            if known is not None:
                return known
        if func == torch._is_all_true:
            func = torch.all  # the same under a name that no package may use
        if func == torch.Tensor.unbind and (experts := self._hit.all_of(args[0])):
            return self._each_of(*experts, args[0].device)
        if func == torch.nn.functional.pad:
            args = (args[0], tuple(map(self._number, args[1])), *args[2:])
        if func == torch.Tensor.__getitem__:
            args = (args[0], self._sliced(args[1]))
        versions = self._constants.versions(args, kwargs)
        result = func(*args, **(kwargs or {}))
        self._constants.note(func, args, kwargs or {}, result, versions)
        self._hit.found(getattr(func, "__name__", ""), args, result)
        if self._gradients_are_off_inside_autocast():
            return pytree.tree_map_only(torch.Tensor, _cut_off, result)
        if func is torch.rand and isinstance(result, torch.Tensor) and result.dim() == 0:
            self._draws.append(result)
        return result

    def _answer(
        self, question: Callable[..., Any], asked: tuple[Any, ...], asking: FrameType
    ) -> Any:
        known, tensor = self._constants.answer(question, *asked), asked[0]
        if known is not None or not is_guard(tensor, question):
            return known
        name, args = self._constants.made_by(tensor)
        before, _ = self._constants.made_by(args[0]) if args else ("", ())
        answer = ordinary_answer((before, name), asking)
        if answer is not None:
            assert_answer(tensor, answer)
            self.assumed.append(user_frame())
        return answer

    def _sliced(self, index: Any) -> Any:
        if isinstance(index, tuple):
            return tuple(map(self._sliced, index))
        if not isinstance(index, slice):
            return index
        return slice(*map(self._number, (index.start, index.stop, index.step)))

    def _number(self, size: Any) -> Any:
        """What stands for a size, as a number if its value is known."""
        known = None
        if isinstance(size, torch.Tensor):
            known = self._constants.answer(torch.Tensor.item, size)
        return size if known is None else known

    def _each_of(self, count: int, in_rows: bool, device: torch.device) -> list[torch.Tensor]:
        """Numbers that follow from nothing, one by one, in the form in which a loop gets them."""
        call = functools.partial(self.__torch_function__, types=())
        numbers = call(torch.arange, args=(count,), kwargs={"device": device})
        cut, length = (torch.Tensor.narrow, (1,)) if in_rows else (torch.Tensor.select, ())
        each = [call(cut, args=(numbers, 0, i, *length)) for i in range(count)]
        self._hit.begin(each)
        return each

    def _gradients_are_off_inside_autocast(self) -> bool:
        began = self.autocast_began_with_gradients
        return bool(began) and began[-1] and not torch.is_grad_enabled()

    def _decide(self, draw: Any, probability: Any) -> bool | None:
        if not isinstance(probability, int | float) or not any(draw is d for d in self._draws):
            return None
        if probability <= 0:
            return False
        return True if probability >= 1 else None


def _as_told(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
    return is_causal is True


def _cut_off(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach() if tensor.is_floating_point() or tensor.is_complex() else tensor


@contextlib.contextmanager
def _autocast_watched(draws: DecidedDraws) -> Iterator[None]:
    """Tell the mode when autocast regions begin and end."""
    enter, leave = torch.autocast.__enter__, torch.autocast.__exit__

    def entered(region: Any) -> Any:
        draws.autocast_began_with_gradients.append(torch.is_grad_enabled())
        return enter(region)  # type: ignore[no-untyped-call]

    def left(region: Any, *exception: Any) -> Any:
        draws.autocast_began_with_gradients.pop()
        return leave(region, *exception)

    with (
        mock.patch.object(torch.autocast, "__enter__", entered),
        mock.patch.object(torch.autocast, "__exit__", left),
    ):
        yield


def _enter_without_gradients(guard: Any) -> None:
    guard._ravnest = torch.set_grad_enabled(not guard.mode)


def _leave_without_gradients(guard: Any, *exception: Any) -> None:
    guard._ravnest.__exit__(*exception)


_TO = nn.Module.to


def _to(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    """Where it changes nothing it does nothing: replacing parameters is not for a capture."""
    device, dtype, _, memory_format = torch._C._nn._parse_to(*args, **kwargs)
    same = memory_format is None and all(
        device in (None, tensor.device)
        and (dtype in (None, tensor.dtype) or not tensor.is_floating_point())
        for tensor in (*module.parameters(), *module.buffers())
    )
    return module if same else _TO(module, *args, **kwargs)


@contextlib.contextmanager
def decided(constants: Constants) -> Iterator[DecidedDraws]:
    """Answer the questions, and refuse what must be refused, for the code inside."""
    draws = DecidedDraws(constants)
    with (
        mock.patch.object(torch_transformer, "_detect_is_causal_mask", _as_told),
        # Every way to a backward pass goes through here, names bound earlier included.
        mock.patch.object(torch.autograd, "_engine_run_backward", _refuse_backward),
        mock.patch.object(nn.Module, "to", _to),
        mock.patch.object(torch, "manual_seed", _refuse_seed),
        mock.patch.object(torch.random, "manual_seed", _refuse_seed),
        mock.patch.object(saved_tensors_hooks, "__enter__", _enter_saved_tensors_hooks),
        mock.patch.object(torch.inference_mode, "__enter__", _enter_without_gradients),
        mock.patch.object(torch.inference_mode, "__exit__", _leave_without_gradients),
        _autocast_watched(draws),
        draws,
    ):
        yield draws
