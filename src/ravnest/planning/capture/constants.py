"""Questions about values that do not depend on anything a model is given.

Libraries make a mask of ones where they were given none, and ask later whether it hides anything.
A capture has no values to answer with, but these follow from the shapes alone: so they are computed
for real, for several numbers of rows, and where all of these agree, that is the answer.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

_MOST_ELEMENTS = 1 << 22
_ROWS = (1, 2, 3, 4, 5, 7, 8, 16, 33, 100)
_DRAWS = (
    "rand",
    "normal",
    "bernoulli",
    "dropout",
    "multinomial",
    "poisson",
    "empty",
    "exponential",
)
QUESTIONS = {
    torch.Tensor.__bool__,
    torch.Tensor.__int__,
    torch.Tensor.__float__,
    torch.Tensor.item,
    torch.Tensor.tolist,
}


@dataclass(frozen=True)
class _Made:
    """A call, and how often each tensor had been written to before it."""

    result: torch.Tensor
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    version: int
    versions: Mapping[int, int]


class _UnknownError(Exception):
    """It does depend on something."""


class Constants:
    """How tensors were made, while a model is captured."""

    def __init__(self) -> None:
        self._made: dict[int, _Made] = {}

    def note(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any, result: Any
    ) -> None:
        if isinstance(result, torch.Tensor):
            leaves = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
            if not any(result is leaf for leaf in leaves):  # else it is written to, or handed on
                versions = {id(leaf): leaf._version for leaf in leaves}
                version = result._version
                self._made[id(result)] = _Made(result, func, args, kwargs, version, versions)

    def answer(self, tensor: torch.Tensor, question: Callable[..., Any]) -> Any:
        """What the question about this tensor comes to; None if that is not known."""
        try:
            with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
                asked = tensor._version
                answers = [question(self._real(tensor, asked, rows, {})) for rows in _ROWS]
        except Exception:  # whatever this tensor needs is not there, or not in such a number
            return None
        return answers[0] if all(answer == answers[0] for answer in answers) else None

    def _real(
        self, tensor: torch.Tensor, version: int, rows: int, done: dict[int, Any]
    ) -> torch.Tensor:
        if id(tensor) not in done:
            made = self._made.get(id(tensor))
            name = "" if made is None else getattr(made.func, "__name__", "")
            if made is None or made.version != version or any(draw in name for draw in _DRAWS):
                raise _UnknownError

            def given(leaf: Any) -> Any:
                if isinstance(leaf, torch.Tensor):
                    return self._real(leaf, made.versions[id(leaf)], rows, done)
                if isinstance(leaf, torch.SymInt):
                    expression = leaf.node.expr
                    return int(expression.subs(dict.fromkeys(expression.free_symbols, rows)))
                return leaf

            if math.prod(map(given, made.result.shape)) > _MOST_ELEMENTS:
                raise _UnknownError
            args, kwargs = pytree.tree_map(given, (made.args, made.kwargs))
            done[id(tensor)] = made.func(*args, **kwargs)
        found: torch.Tensor = done[id(tensor)]
        return found
