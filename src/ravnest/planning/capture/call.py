"""Example inputs, bound to the names of the model's own arguments.

A call is kept as flat tensors plus a description of their nesting, so that it can be made again
with other tensors: symbolic ones during capture, more or fewer rows in the self-check.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from ravnest.errors import CaptureError
from ravnest.stage import structure
from ravnest.stage.graph import Argument

_MIN_BATCH = 2


@dataclass(frozen=True)
class Call:
    """Example inputs bound to the model's own argument names."""

    arguments: tuple[Argument, ...]
    leaves: tuple[torch.Tensor, ...]
    batch_size: int

    def rebuild(self, leaves: Sequence[torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments of the model for other tensors."""
        args, kwargs = [], {}
        for argument in self.arguments:
            value = structure.rebuild(argument.structure, leaves.__getitem__)
            if argument.positional:
                args.append(value)
            else:
                kwargs[argument.name] = value
        return args, kwargs

    def is_batched(self, leaf: torch.Tensor) -> bool:
        return leaf.dim() > 0 and leaf.shape[0] == self.batch_size

    def described(self) -> str:
        """Types and shapes of the tensors, for messages."""
        kinds = [f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" for x in self.leaves]
        return ", ".join(kinds)

    def about_rows(self) -> str | None:
        """Which inputs count as the batch, for the plan, where that could be doubted."""
        batched, fixed = [], []
        for argument in self.arguments:
            leaves = [self.leaves[leaf] for leaf in structure.result_values(argument.structure)]
            sized = [leaf for leaf in leaves if leaf.dim() > 0]
            if any(self.is_batched(leaf) for leaf in sized):
                batched.append(argument.name)
            fixed += [
                f"{argument.name} {list(leaf.shape)}" for leaf in sized if not self.is_batched(leaf)
            ]
        if not fixed:
            return None
        return (
            f"the batch size ({self.batch_size} in the example) is that of "
            f"{', '.join(batched[:5])}; fixed to the example's size: {', '.join(fixed[:5])}"
        )

    def with_several_rows(self) -> "Call":
        """As it is captured: a single row would be taken for a constant."""
        return self if self.batch_size >= _MIN_BATCH else self.resized(_MIN_BATCH)

    def resized(self, batch_size: int) -> "Call":
        """The same call with the rows of every batched input repeated or dropped."""
        leaves = []
        for leaf in self.leaves:
            if self.is_batched(leaf):
                repeats = -(-batch_size // self.batch_size)
                leaf = leaf.repeat(repeats, *([1] * (leaf.dim() - 1)))[:batch_size]
            leaves.append(leaf)
        return Call(self.arguments, tuple(leaves), batch_size)


def bind_call(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Name the example inputs as the model does; complain about those it does not take."""
    signature = inspect.signature(model.forward)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise CaptureError(
            f"the example inputs do not fit {type(model).__name__}.forward{signature}: {error}. "
            "Pass example_args=(…,) and example_kwargs={…} as you would call the model."
        ) from error
    _refuse_arrays({"example_args": args, "example_kwargs": kwargs})
    leaves: list[torch.Tensor] = []
    arguments = []
    for name, value, positional in _named_arguments(signature, bound.arguments, set(kwargs)):
        described = structure.flatten(value, leaves, f"example input {name!r}")
        arguments.append(Argument(name=name, structure=described, positional=positional))
    leaves = _separate(leaves)
    _refuse_other_device(model, leaves)
    sized = [leaf for leaf in leaves if leaf.dim() > 0]
    if not sized:
        raise CaptureError(
            "the example inputs hold no tensor with a batch dimension. "
            "Pass a sample batch as example_args=(tensor,) or example_kwargs={'name': tensor}."
        )
    batch_size = _common_rows([int(leaf.shape[0]) for leaf in sized])
    if batch_size == 0:
        raise CaptureError(
            "the example batch is empty: its tensors have no rows. Pass a batch of two or more."
        )
    return Call(tuple(arguments), tuple(leaves), batch_size)


def _common_rows(sizes: Sequence[int]) -> int:
    """The leading size that most inputs share; in doubt the first input's.

    A single row is shared by what holds for every row, so it outvotes nobody.
    """
    return max(dict.fromkeys(sizes), key=lambda size: 1 if size == 1 else sizes.count(size))


def _refuse_arrays(given: Any) -> None:
    if isinstance(given, np.ndarray):
        raise CaptureError(
            f"an example input is a NumPy array of shape {list(given.shape)}; "
            "pass torch.from_numpy(x) instead"
        )
    if isinstance(given, Mapping):
        given = list(given.values())
    if isinstance(given, list | tuple):
        for item in given:
            _refuse_arrays(item)


def _refuse_other_device(model: nn.Module, leaves: Sequence[torch.Tensor]) -> None:
    """Shapes alone and data do not mix; torch says so only deep inside the first layer."""
    on_meta = {parameter.is_meta for parameter in model.parameters()}
    if on_meta == {True} and any(not leaf.is_meta for leaf in leaves):
        raise CaptureError(
            "the model is on the meta device, the example inputs are not; build the example inputs "
            "under torch.device('meta') too"
        )
    if on_meta == {False} and any(leaf.is_meta for leaf in leaves):
        raise CaptureError(
            "the example inputs are on the meta device, the model is not; build both under "
            "torch.device('meta'), or neither"
        )


def _separate(leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """One tensor given for two inputs would be captured as one input, for ever the same.

    And one that was made in inference mode could take no part in training.
    """
    seen: set[int] = set()
    separate = []
    for leaf in leaves:
        separate.append(leaf.clone() if id(leaf) in seen or leaf.is_inference() else leaf)
        seen.add(id(leaf))
    return separate


def _named_arguments(
    signature: inspect.Signature, given: Mapping[str, Any], by_keyword: set[str]
) -> Iterator[tuple[str, Any, bool]]:
    for name, value in given.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            for number, item in enumerate(value):
                yield f"{name}_{number}", item, True
        elif kind is inspect.Parameter.VAR_KEYWORD:
            for key, item in value.items():
                yield key, item, False
        else:
            yield name, value, name not in by_keyword
