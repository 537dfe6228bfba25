"""Where in the user's code something happened, for error messages.

A failed capture ends in a long traceback through torch. The user needs three facts from it: which
module, which line of their own code, and what to change.
"""

import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ravnest.errors import CaptureError
from ravnest.planning.capture.borrowing import unchanged, values_restored
from ravnest.planning.capture.call import Call

_LIBRARY = re.compile(r"[/\\](torch|ravnest)[/\\](?!.*[/\\]tests?[/\\])")
_STANDARD = sysconfig.get_path("stdlib")
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
_GENERATED = ("<eval_with_key>", "<string>", "<frozen ")
_TRANSFORMS = re.compile(
    r"torch[/\\](_functorch[/\\](vmap|apis|eager_transforms)|autograd[/\\]forward_ad)\.py$"
)
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')

_GET_DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]

_REMEDIES = (
    (
        r"data-dependent|GuardOnDataDependent|Could not guard|unbacked|\.item\(\)|u0",
        "it depends on the values of a tensor (an `if`, a loop or a size computed from data). "
        "Use torch.where or masks instead, or, for random layer dropping, set its probability to 0",
    ),
    (r"DynamicCache|use_cache|past_key_values", "switch its cache off with use_cache=False"),
    (
        r"ScriptModule|jit",
        "give the result of torch.jit.load itself, not a module that contains it",
    ),
    (
        r"fake tensor in the exported program constant",
        "do not write to a tensor's .data and do not keep a tensor in a plain attribute; compute "
        "a new tensor instead, and keep state with register_buffer",
    ),
    (
        r"[Ss]parse (COO|CS[RC]|BS[RC]) tensor|sparse_(coo|cs[rc]|bs[rc])",
        "keep the indices and the values of a sparse tensor as two buffers and add up with "
        "torch.index_add, or make it dense",
    ),
    (r"__deepcopy__|data pointer", "do not copy modules or parameters in the forward"),
)
_CAUSES = (
    (
        r"fake tensor in the exported program constant",
        "its forward writes to a tensor's .data, or keeps a tensor outside its buffers",
    ),
    (r"Cannot access data pointer", "its forward needs the memory of a tensor (deepcopy, numpy)"),
)
TRANSFORMS_REMEDY = (
    "torch.vmap, torch.func.grad, jvp, jacrev and forward-mode differentiation are not supported "
    "in a forward that is to be cut: write out the batch dimension (broadcasting, torch.einsum) "
    "and the derivative as ordinary tensor operations"
)


def _is_users(filename: str) -> bool:
    if filename.startswith(_GENERATED) or _LIBRARY.search(filename):
        return False
    return not filename.startswith(_STANDARD) or bool(_INSTALLED.search(filename))


def user_frame() -> str:
    """'in f (file.py:12)' for the innermost frame of the running stack that is not torch's."""
    for frame in reversed(traceback.extract_stack(sys._getframe(1))):
        if _is_users(frame.filename):
            return f"in {frame.name} ({frame.filename}:{frame.lineno})"
    return "at an unknown place"


def place_of(stack_trace: str | None) -> str:
    """'file.py:12 in forward' from a recorded stack trace: the user's innermost line."""
    found = ""
    for match in _FRAME.finditer(stack_trace or ""):
        if _is_users(match["file"]):
            found = f"{match['file']}:{match['line']} in {match['function']}"
    return found


def describe_failure(
    model: nn.Module, call: Call, failure: Exception, untold: Exception | None = None
) -> CaptureError:
    """Tell an unsuitable example input from an unsuitable model, and say what to do.

    `untold` is how the capture failed where the model was not told that it is being compiled.
    """
    name = type(model).__name__
    unfit = unfit_inputs(model, call)
    if unfit is not None:
        return unfit
    text = f"{type(failure).__name__}: {failure}"
    remedy = next((hint for pattern, hint in _REMEDIES if re.search(pattern, text)), None)
    if _is_in_transform(failure):
        remedy = TRANSFORMS_REMEDY
    advice = remedy or "rewrite this place with ordinary tensor operations"
    cause = next((words for pattern, words in _CAUSES if re.search(pattern, text)), None)
    path = _failing_path(model, failure)
    where = f", in module {path!r}" if path else ""
    place = _place(failure) or _data_write(model, call)
    text = f"{name} cannot be cut: {cause or _first_line(failure)}{where}{place}. Remedy: {advice}."
    told, other = (f"{_first_line(one)}{_place(one)}" for one in (failure, untold or failure))
    if other != told:
        text += f" (As it runs for its users, which was tried too: {other}.)"
    return CaptureError(text)


def unfit_inputs(model: nn.Module, call: Call) -> CaptureError | None:
    """The error to raise if the model itself does not take these inputs."""
    eager = _eager_failure(model, call)
    if eager is None:
        return None
    return CaptureError(
        f"{type(model).__name__} itself fails on the example inputs ({call.described()}): "
        f"{_first_line(eager)}{_place(eager)}. Pass inputs the model accepts."
    )


def _is_in_transform(failure: Exception) -> bool:
    frames = traceback.extract_tb(failure.__traceback__)
    return any(_TRANSFORMS.search(frame.filename) for frame in frames)


def _eager_failure(model: nn.Module, call: Call) -> Exception | None:
    if any(tensor.is_meta for tensor in (*model.parameters(), *call.leaves)):
        return None
    args, kwargs = call.rebuild([leaf.clone() for leaf in call.leaves])
    try:
        with values_restored(model), unchanged(model):
            model(*args, **kwargs)
    except Exception as error:
        return error
    return None


def _failing_path(model: nn.Module, failure: Exception) -> str:
    """Of the innermost module of the model whose forward was running; '' if it was the model's."""
    paths = {id(module): path for path, module in model.named_modules()}
    found = ""
    for frame, _ in traceback.walk_tb(failure.__traceback__):
        path = paths.get(id(frame.f_locals.get("self")))
        found = path or found
    return found


class _DataWrites(TorchFunctionMode):
    """Finds the line that writes to a tensor's `.data`, which a traceback does not show."""

    def __init__(self) -> None:
        super().__init__()
        self.place = ""
        self._aliases: list[torch.Tensor] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func == _GET_DATA:
            self._aliases.append(result)
        # `.data` counts the writes to it from 0, however often its tensor was written to.
        elif not self.place and any(alias._version for alias in self._aliases):
            self.place = f", {user_frame()}"
        return result


def _data_write(model: nn.Module, call: Call) -> str:
    writes = _DataWrites()
    with writes:
        _eager_failure(model, call)
    return writes.place


def _first_line(error: Exception) -> str:
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return first.split(" (unhinted", 1)[0].rstrip(".")


def _place(error: Exception) -> str:
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)
    ]
    if frames:
        last = frames[-1]
        return f" (in {last.name}, {last.filename}:{last.lineno}: {last.line})"
    recorded = place_of(str(error))
    return f" (at {recorded})" if recorded else ""
