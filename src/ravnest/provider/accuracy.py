"""The share of right classes, for outputs and labels in the forms that classifications have.

Labels are numbers of classes; or one-hot, or probabilities of classes, in the outputs' own shape:
then the class with the largest entry counts, on both sides. Of anything else there is no accuracy.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

_NEARLY = 0.02
"""Probabilities in half precision add up to 1 no better."""


def accuracy(outputs: Any, batch: Any) -> tuple[float, int] | None:
    """Share of right classes; None if outputs and labels are not those of a classification."""
    scores, labels = _first_tensor(outputs), _labels_of(batch)
    if scores is None or labels is None:
        return None
    labels = labels.to(scores.device)
    if scores.shape == labels.shape and (axis := _axis_of_classes(labels)) is not None:
        right = scores.argmax(axis) == labels.argmax(axis)
        return float(right.sum()), right.numel()
    if labels.is_floating_point():
        return None
    if scores.dim() == labels.dim() + 1:
        found = scores.argmax(-1 if scores.shape[:-1] == labels.shape else 1)
    elif scores.shape == labels.shape:
        found = (scores > 0).to(labels.dtype)
    else:
        return None
    if found.shape != labels.shape:
        return None
    counted = labels != -100  # torch's own mark for "do not count this one"
    return float((found == labels)[counted].sum()), int(counted.sum())


def _axis_of_classes(labels: torch.Tensor) -> int | None:
    """Over which one-hot labels, or the probabilities of classes, add up to 1."""
    labels = labels.float()
    for axis in dict.fromkeys((1, labels.dim() - 1)) if labels.dim() > 1 else ():
        one = (labels.sum(axis) - 1).abs() < _NEARLY
        if labels.shape[axis] > 1 and bool((labels >= 0).all() & one.all()):
            return axis
    return None


def _first_tensor(outputs: Any) -> torch.Tensor | None:
    if isinstance(outputs, torch.Tensor):
        return outputs
    logits = getattr(outputs, "logits", None)
    if isinstance(logits, torch.Tensor):
        return logits
    values: Iterable[Any] = ()
    if isinstance(outputs, Mapping):
        values = [outputs["logits"]] if "logits" in outputs else outputs.values()
    elif isinstance(outputs, tuple | list):
        values = outputs
    tensors = (value for value in values if isinstance(value, torch.Tensor))
    return next((tensor for tensor in tensors if tensor.dim()), None)  # no loss of the model's own


def _labels_of(batch: Any) -> torch.Tensor | None:
    if isinstance(batch, torch.Tensor):
        return batch
    if isinstance(batch, Mapping):
        found = batch.get("labels", batch.get("label"))
        return found if isinstance(found, torch.Tensor) else None
    if isinstance(batch, tuple | list) and batch and isinstance(batch[-1], torch.Tensor):
        return batch[-1]
    return None
