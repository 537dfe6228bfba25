"""Where in the user's code something happened, for error messages.

A failed capture ends in a long traceback through torch. The user needs three facts from it: which
module, which line of their own code, and what to change.
"""

import re
import sys
import traceback

from torch import nn

from ravnest.errors import CaptureError
from ravnest.planning.capture.borrowing import unchanged, values_restored
from ravnest.planning.capture.call import Call

_LIBRARY = re.compile(r"[/\\](torch|ravnest)[/\\](?!.*[/\\]tests?[/\\])")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')

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
)


def user_frame() -> str:
    """'in f (file.py:12)' for the innermost frame of the running stack that is not torch's."""
    for frame in reversed(traceback.extract_stack(sys._getframe(1))):
        if not _LIBRARY.search(frame.filename):
            return f"in {frame.name} ({frame.filename}:{frame.lineno})"
    return "at an unknown place"


def place_of(stack_trace: str | None) -> str:
    """'file.py:12 in forward' from a recorded stack trace: the user's innermost line."""
    found = ""
    for match in _FRAME.finditer(stack_trace or ""):
        if not _LIBRARY.search(match["file"]):
            found = f"{match['file']}:{match['line']} in {match['function']}"
    return found


def describe_failure(model: nn.Module, call: Call, failure: Exception) -> CaptureError:
    """Tell an unsuitable example input from an unsuitable model, and say what to do."""
    shapes = ", ".join(str(list(leaf.shape)) for leaf in call.leaves)
    name = type(model).__name__
    eager = _eager_failure(model, call)
    if eager is not None:
        return CaptureError(
            f"{name} itself fails on the example inputs (tensor shapes {shapes}): "
            f"{_first_line(eager)}{_place(eager)}. Pass inputs the model accepts."
        )
    text = f"{type(failure).__name__}: {failure}"
    remedy = next((hint for pattern, hint in _REMEDIES if re.search(pattern, text)), None)
    advice = (
        f"Remedy: {remedy}."
        if remedy
        else "Remedy: rewrite this place with ordinary tensor operations."
    )
    where = _failing_module(model, failure)
    return CaptureError(
        f"{name} cannot be cut: {_first_line(failure)}{where}{_place(failure)}. {advice}"
    )


def _eager_failure(model: nn.Module, call: Call) -> Exception | None:
    if any(tensor.is_meta for tensor in (*model.parameters(), *call.leaves)):
        return None
    args, kwargs = call.rebuild(call.leaves)
    try:
        with values_restored(model), unchanged(model):
            model(*args, **kwargs)
    except Exception as error:
        return error
    return None


def _failing_module(model: nn.Module, failure: Exception) -> str:
    """The innermost module of the model whose forward was running."""
    paths = {id(module): path for path, module in model.named_modules()}
    found = ""
    for frame, _ in traceback.walk_tb(failure.__traceback__):
        path = paths.get(id(frame.f_locals.get("self")))
        found = path or found
    return f", in module {found!r}" if found else ""


def _first_line(error: Exception) -> str:
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return first.split(" (unhinted", 1)[0].rstrip(".")


def _place(error: Exception) -> str:
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not _LIBRARY.search(frame.filename)
    ]
    if frames:
        last = frames[-1]
        return f" (in {last.name}, {last.filename}:{last.lineno}: {last.line})"
    recorded = place_of(str(error))
    return f" (at {recorded})" if recorded else ""
