"""Where the stages' weights come from: the model in memory, or safetensors files on disk.

A model that does not fit this machine is built on the meta device, without weights; its tensors are
then read by name, one stage at a time.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open

from ravnest.errors import CaptureError
from ravnest.planning.study import Study
from ravnest.stage.graph import TensorSpec
from ravnest.stage.operators import dtype_name


class WeightSource(Protocol):
    def read(self, specs: Sequence[TensorSpec]) -> Mapping[str, torch.Tensor]:
        """These tensors, by name."""
        ...


class FromModel:
    """The model's own tensors, not copied."""

    def __init__(self, study: Study) -> None:
        self._held = study.held

    def read(self, specs: Sequence[TensorSpec]) -> Mapping[str, torch.Tensor]:
        return {spec.name: self._held[spec.name].tensor for spec in specs}


class FromFiles:
    """A safetensors file, or every safetensors file of a folder (a sharded checkpoint)."""

    def __init__(self, path: Path, study: Study) -> None:
        files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        if not files or not files[0].is_file():
            raise CaptureError(f"weights={str(path)!r}: there is no safetensors file there")
        self._path = path
        self._file_of: dict[str, Path] = {}
        for file in files:
            try:
                with safe_open(file, framework="pt") as opened:
                    self._file_of.update(dict.fromkeys(opened.keys(), file))
            except (SafetensorError, OSError) as error:
                raise CaptureError(f"{file} cannot be read: {error}") from error
        self._names = study.names_of
        self._held = study.held

    def read(self, specs: Sequence[TensorSpec]) -> Mapping[str, torch.Tensor]:
        return {spec.name: self._tensor(spec) for spec in specs}

    def _tensor(self, spec: TensorSpec) -> torch.Tensor:
        for name in self._names.get(spec.name, (spec.name,)):
            if name in self._file_of:
                break
        else:
            return self._own(spec)
        with safe_open(self._file_of[name], framework="pt") as opened:
            tensor: torch.Tensor = opened.get_tensor(name)
        if tuple(tensor.shape) != spec.shape:
            raise CaptureError(
                f"{self._path}: {name!r} has shape {list(tensor.shape)}, "
                f"the model expects {list(spec.shape)}"
            )
        if dtype_name(tensor.dtype) != spec.dtype:
            raise CaptureError(
                f"{self._path}: {name!r} is {dtype_name(tensor.dtype)}, the model expects "
                f"{spec.dtype}; build the model with that dtype"
            )
        return tensor

    def _own(self, spec: TensorSpec) -> torch.Tensor:
        """Checkpoints leave out what a model computes when it is built, e.g. a table of angles."""
        tensor = self._held[spec.name].tensor
        if tensor.is_meta:
            raise CaptureError(
                f"{self._path} does not hold the tensor {spec.name!r}, and the model has no values "
                "for it either: give it some before planning, or add it to the file"
            )
        return tensor
