"""The original model's state_dict, key by key, so that fusion can rebuild it."""

import torch
from torch import nn

from ravnest.errors import CaptureError
from ravnest.planning.study import Study
from ravnest.rundir import ModelIndex, StateEntry


def model_index(study: Study, plan_id: str) -> ModelIndex:
    """What fusion needs to know of the model itself."""
    if study.told is not None:
        state, versions = study.told.state, dict(study.told.versions)
    else:
        state, versions = state_entries(study), state_versions(study.model)
    return ModelIndex(plan_id=plan_id, state=state, versions=versions)


def state_entries(study: Study) -> tuple[StateEntry, ...]:
    """Every key of the original state_dict with the tensor behind it."""
    by_identity = {id(held.tensor): held.name for held in study.held.values()}
    by_memory = {
        _memory(held.tensor): held.name
        for held in study.held.values()
        if held.tensor.numel() and not held.tensor.is_meta
    }
    entries = []
    for key, value in study.model.state_dict(keep_vars=True).items():
        name = by_identity.get(id(value))
        if name is None and isinstance(value, torch.Tensor) and not value.is_meta:
            name = by_memory.get(_memory(value))
        if name is None:
            raise CaptureError(
                f"the model's state_dict holds {key!r}, which is neither a parameter nor a buffer; "
                "it could not be restored after training. Register it with register_buffer."
            )
        entries.append(StateEntry(key, name))
    return tuple(entries)


def state_versions(model: nn.Module) -> dict[str, int]:
    metadata = getattr(model.state_dict(), "_metadata", {})
    return {
        path: entry["version"]
        for path, entry in metadata.items()
        if isinstance(entry.get("version"), int)
    }


def _memory(tensor: torch.Tensor) -> tuple[int, tuple[int, ...], torch.dtype]:
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.dtype)
