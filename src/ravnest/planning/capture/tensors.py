"""The tensors a model owns, each once however many names it has."""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ravnest.errors import CaptureError
from ravnest.planning.capture.program import HeldTensor
from ravnest.stage.graph import TensorKind

_PREFIX = "model."


def held_tensors(
    model: nn.Module, constants: Mapping[str, Any] | None = None
) -> dict[str, HeldTensor]:
    """Every name of every tensor → one entry, shared by names that are tied.

    `constants` are tensors that the capture found in the model's code. The two modes of a model
    number theirs independently, so each is named after its content instead.
    """
    by_identity: dict[int, HeldTensor] = {}
    found: dict[str, HeldTensor] = {}

    def add(name: str, tensor: torch.Tensor, kind: TensorKind) -> None:
        if tensor.layout is not torch.strided:
            raise CaptureError(
                f"the {kind} {name!r} is stored as {tensor.layout}; a stage holds dense tensors "
                "only. Keep its indices and its values as two buffers and add up with "
                "torch.index_add, or make it dense (to_dense())."
            )
        trainable = kind == "parameter" and tensor.requires_grad
        label = f"constant.{_digest(tensor)}" if kind == "constant" else name
        entry = HeldTensor(label, kind, tensor, trainable)
        found[name] = by_identity.setdefault(id(tensor), entry)

    for name, parameter in model.named_parameters(remove_duplicate=False):
        add(name, parameter, "parameter")
    for name, buffer in model.named_buffers(remove_duplicate=False):
        add(name, buffer, "buffer")
    for full_name, constant in (constants or {}).items():
        name = full_name.removeprefix(_PREFIX)
        if isinstance(constant, torch.Tensor) and name not in found:
            add(name, constant, "constant")
    return found


def _digest(tensor: torch.Tensor) -> str:
    kind = f"{tensor.dtype}{tuple(tensor.shape)}".encode()
    plain = tensor.detach().cpu().contiguous().reshape(-1)
    return hashlib.sha256(kind + plain.view(torch.uint8).numpy().tobytes()).hexdigest()[:16]
