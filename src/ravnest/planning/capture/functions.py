"""Hand-written `torch.autograd.Function`s, captured with their backward.

A capture records what a function's forward computes and forgets its backward. So while a model is
captured in training mode, such a function is called by hand: first its forward, then, on stand-ins
for gradients, its backward, and last an operator that joins the two. All of this is recorded like
anything else that the model does. `joined` then takes the backward's operators out of the list and
leaves one operator in their place (stage/gradients.py): what a package holds is data.

What can be recorded like that is a backward made of ordinary operators over the gradients, what the
forward has kept, and numbers.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
import torch.utils.checkpoint
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch.autograd.function import _SingleLevelFunction
from torch.overrides import TorchFunctionMode

from ravnest.errors import CaptureError, PackageError
from ravnest.planning.capture.program import Held, Op, Value
from ravnest.planning.capture.sources import user_frame
from ravnest.planning.capture.writes import is_mutating
from ravnest.stage.gradients import HandWritten, check_gradient
from ravnest.stage.graph import Operation
from ravnest.stage.operators import GRADIENT, encode, encode_arguments, is_allowed, operator_name

_TRUSTED = ("torch._library", "torch._functorch", "torch._higher")
_REMEDY = (
    "Register it as an operator instead: torch.library.custom_op with register_autograd, and "
    "ravnest.stage.operators.allow_operator on every provider."
)

# ---- while the model runs ----------------------------------------------------------------------


@torch.library.custom_op("ravnest_capture::gradient_of", mutates_args=())
def _gradient_of(result: torch.Tensor) -> torch.Tensor:
    """Stands for a gradient of this tensor while a backward is recorded."""
    return torch.empty_like(result)


@torch.library.custom_op("ravnest_capture::join", mutates_args=())
def _join(
    results: list[torch.Tensor],
    inputs: list[torch.Tensor],
    gradients: list[torch.Tensor],
    found: list[torch.Tensor | None],
) -> list[torch.Tensor]:
    """Ends a recorded backward, whose operators lie before this one."""
    return [torch.empty_like(result) for result in results]


_gradient_of.register_fake(lambda result: torch.empty_like(result))
_join.register_fake(lambda results, *_: [torch.empty_like(result) for result in results])
# Never called. With it, results are known to depend on what is trained.
_join.register_autograd(lambda ctx, *gradients: (None, None, None, None))


class _Context:
    """What a function's own code sees as `ctx`."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        self.saved_tensors: tuple[Any, ...] = ()
        self.needs_input_grad = tuple(_is_trained(value) for value in inputs)
        self._constant: list[Any] = []
        self._materialize = True

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """Of forward-mode differentiation, which does not happen here."""

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self._constant += tensors

    def set_materialize_grads(self, value: bool) -> None:
        self._materialize = value

    def mark_dirty(self, *tensors: Any) -> None:
        raise _NotFollowedError("writes to its inputs")


class _NotFollowedError(Exception):
    """Why a function cannot be captured."""


def _is_trained(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


@contextlib.contextmanager
def functions_followed() -> Iterator[None]:
    """While active, functions with a backward of their own are recorded with it."""

    def apply(cls: Any, *args: Any) -> Any:
        plain = not any(map(_is_trained, args)) or not torch.is_grad_enabled()
        if plain or cls.__module__.startswith(_TRUSTED):
            return super(_SingleLevelFunction, cls).apply(*args)
        _refuse_torchs_own(cls)
        try:
            return _followed(cls, args)
        except _NotFollowedError as reason:
            raise CaptureError(
                f"the model calls {_named(cls)}, which cannot be captured: it {reason}. {_REMEDY}"
            ) from reason

    # Every Function.apply passes through here, also one that was bound before (`f = F.apply`).
    with mock.patch.object(_SingleLevelFunction, "apply", classmethod(apply)):
        yield


def _refuse_torchs_own(cls: type) -> None:
    if cls is torch.utils.checkpoint.CheckpointFunction:
        raise CaptureError(
            f"the model uses reentrant activation checkpointing {user_frame()}, which a "
            "capture cannot follow; pass use_reentrant=False"
        )
    if cls.__name__ == "BackwardHookFunction":
        raise CaptureError(
            f"a module of the model has a backward hook {user_frame()}. A captured graph "
            "would lose it; remove it (hook.remove()) before planning"
        )


def _named(cls: type) -> str:
    return f"the hand-written autograd function {cls.__qualname__} {user_frame()}"


def _followed(cls: Any, args: Sequence[Any]) -> Any:
    context = _Context(args)
    with torch.no_grad():
        # Objects of its own: an operator that returns what it was given would have the recording
        # take its result, which has no gradient, for the input from then on.
        own = [arg.detach() if _is_trained(arg) else arg for arg in args]
        output = _forward(cls, context, own)
        several = isinstance(output, tuple)
        outputs = list(output) if several else [output]
        at = [i for i, one in enumerate(outputs) if _has_gradient(one, context)]
        results = [outputs[i] for i in at]
        if not results:
            return output
        with _autocast_off(results[0].device.type):
            stand_ins = [_gradient_of(result) for result in results]
            found = _backward(cls, context, _gradients(outputs, at, stand_ins, context))
    inputs = [i for i, needed in enumerate(context.needs_input_grad) if needed]
    if len(found) < len(args):
        raise _NotFollowedError(f"returns {len(found)} gradients for {len(args)} inputs")
    given = [args[i] for i in inputs]
    joined = _join(results, given, stand_ins, [found[i] for i in inputs])
    for i, result in zip(at, joined, strict=True):
        outputs[i] = result
    return tuple(outputs) if several else outputs[0]


def _autocast_off(device: str) -> contextlib.AbstractContextManager[object]:
    """Backwards run outside of the regions of their forwards."""
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return contextlib.nullcontext()


def _forward(cls: Any, context: _Context, args: Sequence[Any]) -> Any:
    if cls.setup_context is torch.autograd.Function.setup_context:
        return cls.forward(context, *args)
    output = cls.forward(*args)
    cls.setup_context(context, args, output)
    return output


def _has_gradient(output: Any, context: _Context) -> bool:
    if not isinstance(output, torch.Tensor) or any(output is one for one in context._constant):
        return False
    return output.is_floating_point() or output.is_complex()


def _gradients(
    outputs: Sequence[Any], at: Sequence[int], stand_ins: Sequence[torch.Tensor], context: _Context
) -> list[Any]:
    """One for each output, as autograd would pass them."""
    known = dict(zip(at, stand_ins, strict=True))
    empty = context._materialize
    return [
        known[i] if i in known else torch.zeros_like(one) if empty and _is_tensor(one) else None
        for i, one in enumerate(outputs)
    ]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


class _InKnownOperators(TorchFunctionMode):
    """Torch's own backwards, which a hand-written one may call, in the operators they stand for."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        packet = getattr(torch.ops.aten, getattr(func, "__name__", ""), None)
        overload = getattr(packet, "default", None)
        if overload is not None and not is_allowed(operator_name(overload)):
            func = decomposition_table.get(overload, func)
        return func(*args, **(kwargs or {}))


def _backward(cls: Any, context: _Context, gradients: Sequence[Any]) -> Sequence[Any]:
    backward: Callable[..., Any] = cls.backward
    if backward is torch.autograd.Function.backward:
        backward = cls.vjp
    try:
        with _InKnownOperators():
            found = backward(context, *gradients)
    except CaptureError as error:
        raise _NotFollowedError(f"has a backward that is refused itself ({error})") from error
    return found if isinstance(found, tuple) else (found,)


# ---- once it is a list of operators ------------------------------------------------------------


def _is_mark(target: Any) -> bool:
    return isinstance(target, OpOverload) and target._schema.name.startswith("ravnest_capture::")


def joined(ops: list[Op]) -> list[Op]:
    """The operators with each recorded backward in one place: in the operator that has it."""
    marks = _join._opoverload
    if not any(op.target is marks for op in ops):
        return ops
    result: list[Op] = []
    for op in ops:
        if op.target is marks:
            begin = next(i for i, one in enumerate(result) if _is_mark(one.target))
            backward = result[begin:]
            del result[begin:]
            op = _with_backward(op, backward)
        result.append(op)
    return result


def _with_backward(join: Op, backward: Sequence[Op]) -> Op:
    # Results and stand-ins are not read off the join: where an operator returns what it was given,
    # a recording knows the tensor by that operator from then on.
    _, inputs, _, found = join.args
    marks = [op for op in backward if _is_mark(op.target)]
    results = [op.args[0] for op in marks]
    local: dict[Value | Held, int] = {Value(op.out): at for at, op in enumerate(marks)}
    own = [op for op in _needed(backward, found) if not _is_mark(op.target)]
    made = {Value(op.out) for op in own}
    outside = [r for op in own for r in op.references()] + [f for f in found if f is not None]
    kept = list(dict.fromkeys(r for r in outside if r not in made and r not in local))
    for reference in (*kept, *(Value(op.out) for op in own)):
        local[reference] = len(local)

    def encoded(reference: Any) -> Any:
        if isinstance(reference, Value | Held):
            return {"v": local[reference]}
        raise TypeError(f"cannot write an argument of type {type(reference).__name__}")

    operations = []
    for op in own:
        _refuse_unfit(op)
        args = encode_arguments(op.target, op.args, encoded)
        kwargs = {key: encode(item, encoded) for key, item in op.kwargs.items()}
        operations.append([operator_name(op.target), args, kwargs])
    returns = [None if value is None else local[value] for value in found]
    described = {"operations": operations, "returns": returns}
    region = next((op.region for op in backward if op.region is not None), join.region)
    _check(join, described, (len(results), len(inputs), len(kept)))
    return Op(
        out=join.out,
        target=HandWritten(described, torch.device("cpu")),
        args=(results, inputs, kept),
        kwargs={},
        example=join.example,
        context=join.context,
        path=join.path,
        source=join.source,
        region=region if join.region is None else join.region,
    )


def _needed(backward: Sequence[Op], found: Sequence[Value | None]) -> list[Op]:
    live = {value.number for value in found if isinstance(value, Value)}
    kept = []
    for op in reversed(backward):
        if op.out in live or is_mutating(op):
            kept.append(op)
            live.update(op.values())
    return kept[::-1]


def _refuse_unfit(op: Op) -> None:
    name = operator_name(op.target)
    where = f"the backward of a hand-written autograd function ({op.source or 'unknown line'})"
    if not is_allowed(name):
        raise CaptureError(
            f"{where} uses the operator {name!r}, which is not on the allow-list of stage "
            f"packages. {_REMEDY}"
        )
    seeded = torch.Tag.nondeterministic_seeded in getattr(op.target, "tags", ())
    if seeded:
        raise CaptureError(f"{where} draws random numbers by {name!r}. {_REMEDY}")
    if op.context is not None and op.context.autocast_enabled:
        raise CaptureError(f"{where} switches autocast on. {_REMEDY}")


def _check(join: Op, described: dict[str, Any], sizes: Sequence[int]) -> None:
    """The loader's own check, so that what it would refuse is refused here."""
    args = tuple([{"v": 0}] * size for size in sizes)
    try:
        list(check_gradient(Operation(out=0, op=GRADIENT, args=args, kwargs=described), 1 << 32))
    except PackageError as error:
        raise CaptureError(
            f"the backward of a hand-written autograd function ({join.source or 'unknown line'}) "
            f"cannot be written down: {error}. {_REMEDY}"
        ) from error
