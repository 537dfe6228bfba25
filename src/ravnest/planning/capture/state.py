"""Refuse state that a graph would forget from one call to the next.

A graph carries over what is registered: parameters and buffers. A tensor in a plain attribute, in a
dict or in a closure becomes a constant, so a model that writes to it would run on the first value
for ever.
"""

from collections.abc import Mapping

import torch
from torch import nn

from ravnest.errors import CaptureError
from ravnest.planning.capture.attributes import Changes
from ravnest.planning.capture.memory import refuse_shared_memory
from ravnest.planning.capture.program import HeldTensor, Program
from ravnest.planning.capture.writes import written_at

_REMEDY = (
    "Only parameters and buffers are carried over from call to call: keep it with "
    "register_buffer(name, tensor)."
)


def refuse_replaced_parameters(model: nn.Module, before: Mapping[str, nn.Parameter]) -> None:
    after = dict(model.named_parameters(remove_duplicate=False))
    for name, parameter in before.items():
        if after.get(name) is not parameter:
            raise CaptureError(
                f"the model replaces its parameter {name!r} while it runs. An optimizer, and a "
                "stage, would go on with the old one. Write into it instead (with "
                "torch.no_grad(): parameter.copy_(new)), or compute a tensor from it and use that."
            )
    for name in after.keys() - before.keys():
        raise CaptureError(
            f"the model makes its parameter {name!r} when it is first called, so that nobody would "
            "train it. Make it in __init__, or call the model once on the example before planning."
        )


def is_remade(module: nn.Module, name: str, buffer: torch.Tensor, new: torch.Tensor) -> bool:
    """Whether the new value of a buffer is one that each call can make for itself.

    A stage writes new values into a buffer, which cannot become a tensor of another kind. But a
    table that is no part of the model's state (positions, frequencies), and that grows to what its
    first call needs, is made by every call of a stage. Whether the model's later calls read more
    from it than that, the comparison with the model shows.
    """
    if buffer.shape == new.shape and buffer.dtype == new.dtype:
        return False
    if name not in module._non_persistent_buffers_set:
        kinds = [f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in (buffer, new)]
        raise CaptureError(
            f"the model replaces its buffer {name!r}, which is {kinds[0]}, by {kinds[1]} while it "
            "runs. A buffer has to keep its type and shape: register it as it will be used."
        )
    return True


def refuse_lost_state(program: Program, held: Mapping[str, HeldTensor], changes: Changes) -> None:
    """Constants of the graph that the model has written to, or has replaced for its next call."""
    names = {id(entry.tensor): entry.name for entry in held.values() if entry.kind == "constant"}
    used = {name for op in program.ops for name in op.held()}
    for place, tensor in changes.tensors.items():
        if names.get(id(tensor)) in used:
            raise CaptureError(
                f"the model reads the tensor {place!r} and replaces it while it runs. {_REMEDY}"
            )
    constants = {entry.name: entry.tensor for entry in held.values() if entry.kind == "constant"}
    for op, written in written_at(program.ops):
        if constants.keys() & written:
            label = _label(held, written)
            raise CaptureError(
                f"the model writes to {label}, which is neither a parameter nor a buffer "
                f"({op.source or 'unknown line'}). {_REMEDY}"
            )
    registered = {entry.name: entry.tensor for entry in held.values() if entry.kind != "constant"}
    refuse_shared_memory(registered, _read(constants, used, held))


def _label(held: Mapping[str, HeldTensor], written: set[str]) -> str:
    found = next((n for n, e in held.items() if e.kind == "constant" and e.name in written), "")
    return "a tensor" if not found or "lifted_tensor" in found else f"the tensor {found!r}"


def _read(
    constants: Mapping[str, torch.Tensor], used: set[str], held: Mapping[str, HeldTensor]
) -> dict[str, torch.Tensor]:
    return {
        name: entry.tensor
        for name, entry in held.items()
        if entry.kind == "constant" and entry.name in used and entry.name in constants
    }
