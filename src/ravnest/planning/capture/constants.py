"""Questions about values that do not depend on anything a model is given.

Libraries make a mask of ones where they were given none, and ask later whether it hides anything.
A capture has no values to answer with, but these follow from the shapes alone: so they are computed
for real, for several numbers of rows, and where all of these agree, that is the answer. So are
sizes that a model computes from integers in its buffers, as long as no mode writes to those.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
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
    "uniform",
    "geometric",
    "cauchy",
)
QUESTIONS = {
    torch.Tensor.__bool__,
    torch.Tensor.__int__,
    torch.Tensor.__float__,
    torch.Tensor.item,
    torch.Tensor.tolist,
    torch.Tensor.__index__,
    torch.Tensor.__format__,
}


@dataclass(frozen=True)
class _Made:
    """A call, and how often each tensor had been written to before it."""

    result: torch.Tensor
    """What it returned, or what it wrote to."""
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    versions: Mapping[int, int]

    @property
    def is_write(self) -> bool:
        return id(self.result) in self.versions


class _UnknownError(Exception):
    """It does depend on something."""


class Constants:
    """How tensors were made, while a model is captured.

    `held` are integers that the model keeps, in buffers, and their values: sizes are computed from
    them. `read` are the names of those that an answer was computed from.
    """

    def __init__(self, held: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._made: dict[tuple[int, int], _Made] = {}
        """By the tensor and how often it has been written to."""
        self._held = {(id(t), t._version): (name, value) for name, (t, value) in held.items()}
        self.read: set[str] = set()

    def versions(self, args: tuple[Any, ...], kwargs: Any) -> dict[int, int]:
        leaves = pytree.tree_leaves((args, kwargs))
        return {id(leaf): leaf._version for leaf in leaves if isinstance(leaf, torch.Tensor)}

    def note(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Any,
        result: Any,
        versions: Mapping[int, int],
    ) -> None:
        """A call that has been made; `versions` are those from before it."""
        changed = [
            leaf
            for leaf in pytree.tree_leaves((args, kwargs))
            if isinstance(leaf, torch.Tensor) and leaf._version != versions[id(leaf)]
        ]
        if isinstance(result, torch.Tensor) and id(result) not in versions:
            changed.append(result)
        for tensor in changed:
            made = _Made(tensor, func, args, kwargs, versions)
            self._made[id(tensor), tensor._version] = made

    def made_by(self, tensor: Any) -> tuple[str, tuple[Any, ...]]:
        """The name of the function that this is the result of, and its arguments."""
        key = (id(tensor), tensor._version) if isinstance(tensor, torch.Tensor) else (0, 0)
        made = self._made.get(key)
        return ("", ()) if made is None else (getattr(made.func, "__name__", ""), made.args)

    def answer(self, question: Callable[..., Any], tensor: torch.Tensor, *more: Any) -> Any:
        """What the question about this tensor comes to; None if that is not known."""
        before = set(self.read)
        try:
            with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
                asked = tensor._version
                answers = [question(self._real(tensor, asked, rows, {}), *more) for rows in _ROWS]
        except Exception:  # whatever this tensor needs is not there, or not in such a number
            answers = []
        if answers and all(answer == answers[0] for answer in answers):
            return answers[0]
        self.read = before
        return None

    def _real(
        self, tensor: torch.Tensor, version: int, rows: int, done: dict[tuple[int, int], Any]
    ) -> torch.Tensor:
        key = (id(tensor), version)
        if key not in done:
            done[key] = (
                self._held_value(key)
                if key in self._held
                else self._made_again(self._made.get(key), rows, done)
            )
        found: torch.Tensor = done[key]
        return found

    def _held_value(self, key: tuple[int, int]) -> torch.Tensor:
        name, value = self._held[key]
        self.read.add(name)
        return value

    def _made_again(
        self, made: _Made | None, rows: int, done: dict[tuple[int, int], Any]
    ) -> torch.Tensor:
        name = "" if made is None else getattr(made.func, "__name__", "")
        if made is None or any(draw in name for draw in _DRAWS):
            raise _UnknownError
        if made.is_write and id(made.result) in {tensor for tensor, _ in self._held}:
            raise _UnknownError  # it counts something
        copies: dict[int, torch.Tensor] = {}

        def given(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                value = self._real(leaf, made.versions[id(leaf)], rows, done)
                if leaf is made.result:  # which others may have been made from before
                    value = copies.setdefault(id(leaf), value.clone())
                return value
            if isinstance(leaf, torch.SymInt):
                if free_unbacked_symbols(leaf):  # a size that the data make
                    raise _UnknownError
                expression = leaf.node.expr
                return int(expression.subs(dict.fromkeys(expression.free_symbols, rows)))
            return leaf

        if math.prod(map(given, made.result.shape)) > _MOST_ELEMENTS:
            raise _UnknownError
        args, kwargs = pytree.tree_map(given, (made.args, made.kwargs))
        result = made.func(*args, **kwargs)
        return copies[id(made.result)] if made.is_write else result
