"""The user's criterion, applied to parts of a batch so that they add up to the batch's loss.

Most criteria are means over rows: a part then counts by its share of the rows. Cross entropy is a
mean over the targets that are not to be ignored, of which a part may have more or fewer than its
share, so these are counted. Some criteria are sums, and count as they are. Whatever else there is
(a loss that compares rows with each other) has no value for a part; the first part shows it.
"""

import copy
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ravnest.errors import NodeError
from ravnest.provider.batches import rows_of
from ravnest.wire.messages import MicroBatch

logger = logging.getLogger("ravnest")
_EQUAL = 1e-3
"""Relative differences up to this come from rounding."""


class PartLoss:
    """Gives every micro-batch its share of the loss of its batch."""

    def __init__(self, criterion: Callable[[Any, Any], Any]) -> None:
        self._criterion = criterion
        self._adds_up = getattr(criterion, "reduction", "mean") == "sum"
        self._summed = _summed(criterion)
        self._known = self._adds_up or self._summed is not None

    def __call__(self, outputs: Any, part: Any, whole: Any, of: MicroBatch) -> torch.Tensor:
        """`part` and `whole` are the labels of this part and of the whole batch."""
        if of.parts == 1:
            return self._value(outputs, part)
        if self._summed is not None and isinstance(whole, torch.Tensor):
            counted = _counted(self._summed, whole)
            if counted is not None and bool(counted > 0):
                return self._check(self._summed(outputs, part)) / counted
        loss = self._value(outputs, part)
        if not self._known:
            self._find_out(outputs, part, of, float(loss.detach()))
            self._known = True
        return loss if self._adds_up else loss * (of.rows / of.batch_rows)

    def _value(self, outputs: Any, labels: Any) -> torch.Tensor:
        return self._check(self._criterion(outputs, labels))

    def _check(self, loss: Any) -> torch.Tensor:
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            found = list(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise NodeError(f"the criterion must return a tensor with one number, not {found}")
        return loss.reshape(())

    # ---- what kind of criterion is this? ----

    def _find_out(self, outputs: Any, part: Any, of: MicroBatch, value: float) -> None:
        """Compare the value of these rows with those of their halves (of a single row: with that
        of the row twice)."""
        try:
            with torch.no_grad():
                found, halves, rows = self._compared(outputs, part, of.rows, value)
        except Exception as error:
            logger.debug("the criterion cannot be tried on fewer rows: %s", error)
            return
        mean = sum(half * count for half, count in zip(halves, rows, strict=True)) / sum(rows)
        slack = _EQUAL * max(abs(mean), abs(found), 1e-12)
        if abs(found - mean) <= slack:
            return
        if abs(found - sum(halves)) <= slack:
            self._adds_up = True
            return
        if not min(halves) - slack <= found <= max(halves) + slack:
            raise NodeError(
                "the criterion is no mean over the rows of a batch, nor a sum: of rows with the "
                f"values {halves[0]:.4g} and {halves[1]:.4g} it makes {found:.4g}. If it compares "
                "rows with each other, batches must stay whole: Node(micro_batches=1), better "
                "clusterize(micro_batches=1)"
            )
        logger.warning(
            "the criterion is a mean over other things than the rows of a batch (words that are "
            "not masked?). The parts of a batch count by their rows; for exact values pass "
            "nn.CrossEntropyLoss itself, or keep batches whole with micro_batches=1"
        )

    def _compared(
        self, outputs: Any, part: Any, rows: int, value: float
    ) -> tuple[float, list[float], tuple[int, int]]:
        """The value of some rows, those of their halves, and how many rows these have."""
        if rows == 1:
            twice = float(self._value(_doubled(outputs), _doubled(part)))
            return twice, [value, value], (1, 1)
        middle = rows // 2
        halves = [
            float(self._value(*(rows_of(item, rows, start, stop) for item in (outputs, part))))
            for start, stop in ((0, middle), (middle, rows))
        ]
        return value, halves, (middle, rows - middle)


def _doubled(item: Any) -> Any:
    """One row, twice."""
    if isinstance(item, torch.Tensor):
        return torch.cat((item, item)) if item.dim() and item.shape[0] == 1 else item
    if isinstance(item, dict):
        return type(item)({key: _doubled(value) for key, value in item.items()})
    if isinstance(item, tuple | list):
        return type(item)(_doubled(value) for value in item)
    return item


def _summed(criterion: object) -> nn.Module | None:
    """The same criterion as a sum, if it is one whose mean is over counted targets."""
    if type(criterion) not in (nn.CrossEntropyLoss, nn.NLLLoss):
        return None
    assert isinstance(criterion, nn.Module)
    if getattr(criterion, "reduction", None) != "mean":
        return None
    summed = copy.copy(criterion)
    summed.reduction = "sum"  # type: ignore[assignment]
    return summed


def _counted(criterion: Any, target: torch.Tensor) -> torch.Tensor | None:
    """What the mean is over: targets that are not ignored, by the weight of their class."""
    if target.is_floating_point():  # probabilities of classes: a mean over rows
        return torch.tensor(target.numel() / target.shape[1]) if target.dim() > 1 else None
    kept = target[target != criterion.ignore_index]
    if criterion.weight is None:
        return torch.tensor(float(kept.numel()))
    total: torch.Tensor = criterion.weight[kept.to(criterion.weight.device)].sum()
    return total.cpu()
