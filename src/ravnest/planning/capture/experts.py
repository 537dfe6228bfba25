"""Mixtures of experts of transformers, written out so that a graph can hold them.

transformers dispatches its experts to one of several implementations. One loops over the experts
that were hit, which no graph can follow; one calls kernels that take the numbers of tokens on trust
and exist for some devices only; one copies an expert's weights for each token. While a model is
captured, the experts compute what they all compute in ordinary operators: the tokens of each expert
side by side, padded to as many as the busiest one has, and one product for all experts.

Other models loop over the experts that were hit in code of their own. Where that is what they do,
by the looks of it, the loop goes over all experts: the tokens of the others are none. Where the
loop asks whether an expert has any, the answer is that of the model's own loop, in which each has.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

from ravnest.planning.capture.constants import Constants

_HOME = "transformers.integrations.moe"


_EXCEED = {"greater", "gt", "__gt__", "ne", "not_equal", "__ne__"}
_COUNTS = {"sum", "count_nonzero", "bincount"}
_EQUAL = {"eq", "__eq__", "equal"}
_SAME_ENTRIES = {
    "permute", "transpose", "mT", "flatten", "view", "reshape", "squeeze", "unsqueeze", "one_hot",
    "contiguous", "detach", "to", "int", "long", "bool", "float",
}  # fmt: skip
"""What leaves it to each entry which expert it names, or which expert's flag it is."""


class HitExperts:
    """Loops over the experts that were hit, and what is asked in their turns."""

    def __init__(self, constants: Constants) -> None:
        self._constants = constants
        self._numbers: list[torch.Tensor] = []
        self._turn: int | None = None
        """The number that was last asked for."""
        self._sources: list[torch.Tensor] = []
        """Which tokens were given to which experts: the loops follow from these."""

    def all_of(self, tensor: torch.Tensor) -> tuple[int, bool] | None:
        """How many experts there are, if the tensor lists those that were hit, and whether each
        number lies in a row of its own: of a count for each expert, or of a row of flags for each,
        the places where there is any."""
        name, args = self._constants.made_by(tensor)
        in_rows = tensor.dim() == 2
        if not in_rows and (name in _SAME_ENTRIES or name == "__getitem__"):
            name, args = self._constants.made_by(args[0])
        if name != "nonzero" or args[0].dim() != 1 or not isinstance(args[0].shape[0], int):
            return None
        (hit, *_) = args
        name, args = self._constants.made_by(hit)
        if name in _EXCEED and args[1] == 0:
            name, args = self._constants.made_by(args[0])
            counted = name in _COUNTS
        else:
            counted = name == "any"
        if not counted:
            return None
        self._sources += self._same_entries(args[0])
        return hit.shape[0], in_rows

    def begin(self, numbers: list[torch.Tensor]) -> None:
        self._numbers += numbers

    def asked(self, number: torch.Tensor, answer: Any) -> None:
        """A loop has asked for a number; of one of these, whose turn it is."""
        if type(answer) is int and self._is_number(number):
            self._turn = answer

    def found(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        """The tokens of the expert whose turn it is are not none: in the model, its turn would not
        have come. (The others, which the loop goes over as well, do nothing with none.)"""
        if not (name == "nonzero" or (name == "where" and len(args) == 1)) or not self._numbers:
            return
        if self._is_of_turn(args[0]):
            for tensor in result if isinstance(result, tuple) else (result,):
                torch._check(tensor.shape[0] >= 1)

    def _is_of_turn(self, flags: Any) -> bool:
        """Do these flags say which tokens the expert has whose turn it is?"""
        for tensor in self._same_entries(flags):
            name, args = self._constants.made_by(tensor)
            if name in (*_EQUAL, "__getitem__", "select") and len(args) >= 2:
                index = args[-1]
                turn = self._is_number(index) or (type(index) is int and index == self._turn)
                return turn and any(
                    given is source
                    for given in self._same_entries(args[0])
                    for source in self._sources
                )
        return False

    def _is_number(self, value: Any) -> bool:
        """One that a loop goes over, in whatever shape."""
        return any(
            tensor is number for tensor in self._same_entries(value) for number in self._numbers
        )

    def _same_entries(self, value: Any) -> list[torch.Tensor]:
        """The tensor, and what it was made from by rearranging."""
        found = []
        while isinstance(value, torch.Tensor):
            found.append(value)
            name, args = self._constants.made_by(value)
            value = args[0] if name in _SAME_ENTRIES else None
        return found


@contextlib.contextmanager
def experts_written_out() -> Iterator[None]:
    """Whatever implementation a model has chosen; its own configuration is not touched."""
    interface = getattr(sys.modules.get(_HOME), "ExpertsInterface", None)
    if interface is None:
        yield
        return

    def written_out(_: Any, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        return _side_by_side

    with mock.patch.object(interface, "get_interface", written_out):
        yield


def _side_by_side(
    self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """`self` is transformers' module: its parameters, and flags that say how they are laid out."""
    tokens, chosen = top_k_index.shape
    experts = top_k_index.reshape(-1)
    numbers = torch.arange(self.num_experts, device=experts.device)
    count = (experts.unsqueeze(0) == numbers.unsqueeze(1)).sum(1)
    first = count.cumsum(0) - count
    order = experts.argsort(stable=True)
    places = torch.arange(tokens * chosen, device=experts.device)
    slots = places[places < count.max()]
    rows = order[(first.unsqueeze(1) + slots).clamp(max=tokens * chosen - 1)] // chosen
    taken = (slots < count.unsqueeze(1)).unsqueeze(-1)
    given = torch.where(taken, hidden_states[rows], 0)
    if self.has_gate:
        inner = self._apply_gate(_linear(self, "gate_up_proj", given))
    else:
        inner = self.act_fn(_linear(self, "up_proj", given))
    found = _linear(self, "down_proj", inner)
    if getattr(self, "has_post_expert_norm", False):
        found = self.post_expert_norm(found)
    result = found[experts, order.argsort() - first[experts]] * top_k_weights.reshape(-1, 1)
    return result.view(tokens, chosen, -1).sum(1).to(hidden_states.dtype)


def _linear(module: Any, name: str, given: torch.Tensor) -> torch.Tensor:
    weight = getattr(module, name)
    factor = weight if module.is_transposed else weight.transpose(1, 2)
    result = torch.bmm(given.to(weight.dtype), factor)
    return result + getattr(module, f"{name}_bias").unsqueeze(1) if module.has_bias else result
