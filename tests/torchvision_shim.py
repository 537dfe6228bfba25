"""Import torchvision even where its compiled extension cannot be loaded.

A CUDA build of torchvision beside a CPU build of torch has no compiled operators. Importing it
then fails with "operator torchvision::nms does not exist", because torchvision attaches shape
rules to two operators that nobody declared; transformers' vision code and timm import torchvision
and fail with it. Declaring the schemas (without an implementation) is all that the import needs:
the classification and segmentation models never call these operators.

Call :func:`import_torchvision` before importing torchvision, timm or transformers. With a matching
torchvision build it is a plain import. This file knows nothing about models.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import torch

_MISSING_OPERATORS = ("nms", "qnms")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

# A declared schema lives as long as its Library object.
_declarations: list[torch.library.Library] = []


def import_torchvision() -> ModuleType:
    """Return the torchvision module, declaring its missing operators only if the import fails."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if _declarations or "operator torchvision::" not in str(error):
            raise
    _declare_missing_operators()
    _forget_half_imported("torchvision")
    return importlib.import_module("torchvision")


def _declare_missing_operators() -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in _MISSING_OPERATORS:
        library.define(operator + _SCHEMA)
    _declarations.append(library)


def _forget_half_imported(package: str) -> None:
    """Drop the submodules that a failed import left behind, so that the next one starts clean."""
    for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
        del sys.modules[name]
