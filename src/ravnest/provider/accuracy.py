"""The share of right classes, for outputs and labels in the forms that classifications have.

Labels are numbers of classes; or one-hot, or probabilities of classes, in the outputs' own shape:
then the class with the largest entry counts, on both sides; or a whole 0 or 1 for each score. Of
anything else there is no accuracy.

One batch may fit several forms: of the many labels that a row may have, each row of a batch happens
to have one. So a batch is counted by every rule that its form allows, and a validation is judged by
a rule that all of its batches allow.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

_NEARLY = 0.02
"""Probabilities in half precision add up to 1 no better."""
_NOT_COUNTED = -100
"""torch's own mark among labels."""

_Count = tuple[float, int]


@dataclass(frozen=True)
class Accuracy:
    """What was right, and of how many, by each rule that fits all batches so far; the first of them
    is the one that counts."""

    counts: Mapping[str, _Count]

    def plus(self, other: "Accuracy") -> "Accuracy":
        return Accuracy(
            {
                rule: (right + other.counts[rule][0], total + other.counts[rule][1])
                for rule, (right, total) in self.counts.items()
                if rule in other.counts
            }
        )

    def count(self) -> _Count | None:
        """Right ones, and all; None if this is no classification."""
        return next(iter(self.counts.values()), None)

    def figure(self) -> float | None:
        count = self.count()
        return None if count is None else count[0] / max(count[1], 1)


def accuracy(outputs: Any, batch: Any) -> Accuracy:
    """Of one batch."""
    scores, labels = _first_tensor(outputs), _labels_of(batch)
    if scores is None or labels is None:
        return Accuracy({})
    return Accuracy(dict(_judged(scores, labels.to(scores.device))))


def _judged(scores: torch.Tensor, labels: torch.Tensor) -> Iterator[tuple[str, _Count]]:
    single = scores.shape == (*labels.shape, 1)
    if scores.shape == labels.shape:
        for axis in _axes_of_classes(labels):
            yield f"largest over {axis}", _counted(scores.argmax(axis), labels.argmax(axis))
    elif scores.dim() == labels.dim() + 1 and not single and not labels.is_floating_point():
        found = scores.argmax(-1 if scores.shape[:-1] == labels.shape else 1)
        if found.shape == labels.shape:
            yield "number of the class", _counted(found, labels)
    if (single or scores.shape == labels.shape) and _are_yes_or_no(labels):
        scores = scores.reshape(labels.shape)
        if bool(((scores >= 0) & (scores <= 1)).all()):
            yield "probability of 1", _counted(scores > 0.5, labels)
        yield "score of 1", _counted(scores > 0, labels)


def _counted(found: torch.Tensor, labels: torch.Tensor) -> _Count:
    counted = labels != _NOT_COUNTED
    return float((found == labels)[counted].sum()), int(counted.sum())


def _are_yes_or_no(labels: torch.Tensor) -> bool:
    """Numbers that say how many of something there are go beyond 1; so do those of classes."""
    if labels.is_floating_point() or labels.is_complex():
        return False
    return bool(((labels == 0) | (labels == 1) | (labels == _NOT_COUNTED)).all())


def _axes_of_classes(labels: torch.Tensor) -> Iterator[int]:
    """Over which one-hot labels, or the probabilities of classes, add up to 1."""
    labels = labels.float()
    for axis in dict.fromkeys((1, labels.dim() - 1)) if labels.dim() > 1 else ():
        one = (labels.sum(axis) - 1).abs() < _NEARLY
        if labels.shape[axis] > 1 and bool((labels >= 0).all() & one.all()):
            yield axis


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
