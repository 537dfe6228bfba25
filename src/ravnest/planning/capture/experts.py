"""Mixtures of experts of transformers, written out so that a graph can hold them.

transformers dispatches its experts to one of several implementations. One loops over the experts
that were hit, which no graph can follow; one calls kernels that take the numbers of tokens on trust
and exist for some devices only; one copies an expert's weights for each token. While a model is
captured, the experts compute what they all compute in ordinary operators: the tokens of each expert
side by side, padded to as many as the busiest one has, and one product for all experts.

Other models loop over the experts that were hit in code of their own. Where that is what they do,
by the looks of it, the loop goes over all experts: the tokens of the others are none.
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


def hit_experts(constants: Constants, tensor: torch.Tensor) -> int | None:
    """How many experts there are, if the tensor lists those that were hit: of a count for each, or
    of a row of flags for each, the places where there is any."""
    name, args = constants.made_by(tensor)
    if name != "nonzero" or args[0].dim() != 1 or not isinstance(args[0].shape[0], int):
        return None
    (hit,) = args
    name, args = constants.made_by(hit)
    counted = name in _EXCEED and args[1] == 0 and constants.made_by(args[0])[0] in _COUNTS
    return hit.shape[0] if counted or name == "any" else None


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
