"""Guards: questions about data to which only one answer lets a batch go its ordinary way.

Code looks for values that are out of order (`if not torch.isfinite(x).all():`, the argument checks
of `torch.distributions`), and then repairs them or raises. A capture has no values to answer with,
but it can take the ordinary way, and leave an assertion in the graph: a batch that would have gone
the other way ends with an error, and none is computed wrongly.

Which way is the ordinary one follows from the question (is it all finite?), or from the code behind
it: an answer after which nothing is left but to raise is the other one.
"""

import dis
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

_QUESTIONS = {
    ("isfinite", "all"): True,
    ("isnan", "any"): False,
    ("isinf", "any"): False,
}
_ENDS = ("RETURN", "YIELD")
_RAISES = ("RAISE_VARARGS", "RERAISE")


def is_guard(tensor: torch.Tensor, question: Callable[..., Any]) -> bool:
    """May this be one? A number that is asked for can be used in other ways."""
    return question == torch.Tensor.__bool__ or (
        question == torch.Tensor.item and tensor.dtype is torch.bool
    )


def ordinary_answer(made_by: tuple[str, str], asking: FrameType) -> bool | None:
    """To what the second function made of the result of the first one, asked there; None if there
    is no ordinary answer."""
    found = _QUESTIONS.get(made_by)
    return _one_that_goes_on(asking) if found is None else found


def assert_answer(tensor: torch.Tensor, answer: bool) -> None:
    """Leave in the graph what is relied on."""
    held = tensor.bool()
    torch._assert_async(held if answer else held.logical_not())


def _one_that_goes_on(frame: FrameType) -> bool | None:
    code = list(dis.get_instructions(frame.f_code))
    at = next((i for i, step in enumerate(code) if step.offset == frame.f_lasti), len(code))
    jumps = [step for step in code[at : at + 2] if _tests(step)]
    if not jumps:
        return None
    (jump, *_) = jumps
    places = {step.offset: index for index, step in enumerate(code)}
    follows = {True: code.index(jump) + 1, False: code.index(jump) + 1}
    follows[jump.opname.endswith("IF_TRUE")] = places[jump.argval]
    raising = {answer for answer, start in follows.items() if _only_raises(code, places, start)}
    return (not raising.pop()) if len(raising) == 1 else None


def _tests(step: dis.Instruction) -> bool:
    return "JUMP" in step.opname and step.opname.endswith(("IF_TRUE", "IF_FALSE"))


def _only_raises(code: list[dis.Instruction], places: dict[int, int], start: int) -> bool:
    """Whether no way from there leads to the end of the function or to a result."""
    seen: set[int] = set()
    pending = [start]
    while pending:
        index = pending.pop()
        if index in seen:
            continue
        seen.add(index)
        step = code[index]
        if step.opname.startswith(_ENDS):
            return False
        if step.opname in _RAISES:
            continue
        if step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
            pending.append(places[step.argval])
        if not step.opname.startswith("JUMP_") or "IF" in step.opname:
            pending.append(index + 1)
    return True
