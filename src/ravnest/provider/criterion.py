"""The user's criterion, applied to parts of a batch so that they add up to the batch's loss.

Most criteria are means over rows: a part then counts by its share of the rows. Cross entropy is a
mean over the targets that are not to be ignored, of which a part may have more or fewer than its
share, so these are counted. Some criteria are sums, and count as they are. Whatever else there is
(a loss that compares rows with each other) has no value for a part. A criterion that knows better
says so itself: `criterion.share_of_batch(outputs, part, whole)`.

Which of these it is, the first part shows, or a later one if that has only zeros or no finite
value. What seems to be a mean over rows is looked at again now and then: the first batches may have
had nothing to ignore.
"""

import copy
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ravnest.errors import NodeError
from ravnest.provider.batches import doubled, part_bounds, rows_of
from ravnest.provider.proof import tensors_in
from ravnest.wire.messages import MicroBatch

logger = logging.getLogger("ravnest")


class OwnLoss:
    """The loss that the model computes itself, of labels that are among its inputs. It is taken for
    a mean over rows: parts of a batch count by theirs."""

    def __call__(self, outputs: Any, _: Any = None) -> torch.Tensor:
        found = outputs
        if isinstance(outputs, Mapping):
            found = outputs.get("loss")
        elif isinstance(outputs, tuple | list) and not hasattr(outputs, "loss"):
            found = outputs[0] if outputs else None
        elif not isinstance(outputs, torch.Tensor):
            found = getattr(outputs, "loss", None)
        if isinstance(found, torch.Tensor) and found.dim() == 0 and found.is_floating_point():
            return found
        shapes = [list(tensor.shape) for tensor in tensors_in(outputs)][:5]
        raise NodeError(
            'criterion="output" takes the loss from what the model returns: a single number, or '
            f"one that is called `loss`, or comes first. This model returns tensors of shapes "
            f"{shapes} (models of transformers have a loss if they are given labels). Give a "
            "criterion(outputs, batch) instead, or let the model return its loss"
        )


def criterion_of(given: Any) -> Callable[[Any, Any], Any] | None:
    """What was given, or what its name stands for."""
    if given == "output":
        return OwnLoss()
    if given is not None and not callable(given):
        raise NodeError(
            f'criterion is {given!r}; expected criterion(outputs, batch), or "output" for the loss '
            "that the model computes itself"
        )
    return given  # type: ignore[no-any-return]


class PartLoss:
    """Gives every micro-batch its share of the loss of its batch."""

    def __init__(self, criterion: Callable[[Any, Any], Any]) -> None:
        self._criterion = criterion
        self._adds_up = getattr(criterion, "reduction", "mean") == "sum"
        self._summed = _summed(criterion)
        told = isinstance(criterion, OwnLoss)
        self._known = told or self._adds_up or self._summed is not None
        self._seems_mean = self._seldom = False
        self._parts_seen = 0
        _warn_of_parameters(criterion)

    def __call__(self, outputs: Any, part: Any, whole: Any, of: MicroBatch) -> torch.Tensor:
        """`part` and `whole` are the labels of this part and of the whole batch."""
        loss = self._share(outputs, part, whole, of)
        if not loss.requires_grad and _can_be_trained(outputs):
            raise NodeError(
                "the criterion's loss does not depend on the model's output: nothing can be "
                "learnt from it. It must be computed from the output by operations that have "
                "gradients (no argmax, detach() or item()); where a batch has nothing to learn "
                "from, return outputs.sum() * 0"
            )
        return loss

    def _share(self, outputs: Any, part: Any, whole: Any, of: MicroBatch) -> torch.Tensor:
        if of.parts == 1:
            return self._value(outputs, part)
        if (share := getattr(self._criterion, "share_of_batch", None)) is not None:
            return self._check(share(outputs, part, whole))
        if self._summed is not None and isinstance(whole, torch.Tensor):
            counted = _counted(self._summed, whole)
            if counted is not None and bool(counted > 0):
                return self._check(self._summed(outputs, part)) / counted
        loss = self._value(outputs, part)
        if self._is_to_be_looked_at():
            self._find_out(outputs, whole, of, loss.detach())
        return loss if self._adds_up else loss * (of.rows / of.batch_rows)

    def _value(self, outputs: Any, labels: Any) -> torch.Tensor:
        try:
            loss = self._criterion(outputs, labels)
        except Exception as error:
            if isinstance(outputs, torch.Tensor) and not outputs.dim():
                raise NodeError(
                    f"the criterion cannot do anything with the model's output, which is a single "
                    f"number ({error}). If that is the loss, which the model has computed itself: "
                    'Node(criterion="output")'
                ) from error
            raise
        return self._check(loss)

    def _check(self, loss: Any) -> torch.Tensor:
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            found = list(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise NodeError(f"the criterion must return a tensor with one number, not {found}")
        return loss.reshape(())

    # ---- what kind of criterion is this? ----

    def _is_to_be_looked_at(self) -> bool:
        """Every part until one shows it; then the 2nd, 4th, 8th, … part, which costs nothing."""
        if self._known:
            return False
        self._parts_seen += 1
        return not self._seldom or self._parts_seen.bit_count() == 1

    def _find_out(self, outputs: Any, whole: Any, of: MicroBatch, loss: torch.Tensor) -> None:
        """Compare the value of these rows with those of their halves (of a single row: with that
        of the row twice)."""
        try:
            with torch.no_grad():
                found, halves, rows = self._compared(outputs, whole, of, float(loss))
        except Exception as error:
            logger.debug("the criterion cannot be tried on fewer rows: %s", error)
            self._seldom = True
            return
        if all(math.isfinite(value) for value in (found, *halves)):
            self._conclude(found, halves, rows, _rounding(loss))

    def _conclude(
        self, found: float, halves: list[float], rows: tuple[int, int], rounding: float
    ) -> None:
        mean = sum(half * count for half, count in zip(halves, rows, strict=True)) / sum(rows)
        slack = rounding * max(abs(found), *map(abs, halves), 1e-12)
        is_mean, is_sum = abs(found - mean) <= slack, abs(found - sum(halves)) <= slack
        if is_mean and is_sum:  # zeros, or halves that cancel each other
            return
        if is_mean:
            self._seems_mean, self._seldom, self._adds_up = True, True, False
        elif is_sum and not self._seems_mean:
            self._adds_up = True
            # With nothing in one half, a mean over what is not masked would look like this too.
            self._known = min(map(abs, halves)) > slack
        else:
            self._known, self._adds_up = True, False
            _complain(found, halves, slack)

    def _compared(
        self, outputs: Any, whole: Any, of: MicroBatch, value: float
    ) -> tuple[float, list[float], tuple[int, int]]:
        """The value of some rows, those of their halves, and how many rows these have."""
        first, _ = part_bounds(of.batch_rows, of.parts)[of.part]

        def labels(start: int, stop: int) -> Any:
            # Of the whole: the fewer the rows, the more things have as many by chance.
            return rows_of(whole, of.batch_rows, first + start, first + stop)

        if of.rows == 1:
            twice = float(self._value(doubled(outputs), doubled(labels(0, 1))))
            return twice, [value, value], (1, 1)
        middle = of.rows // 2
        halves = [
            float(self._value(rows_of(outputs, of.rows, start, stop), labels(start, stop)))
            for start, stop in ((0, middle), (middle, of.rows))
        ]
        return value, halves, (middle, of.rows - middle)


def _complain(found: float, halves: list[float], slack: float) -> None:
    """About a criterion that is neither a mean over rows nor a sum."""
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


def _rounding(loss: torch.Tensor) -> float:
    """Relative differences up to this come from rounding."""
    precision = torch.finfo(loss.dtype).eps if loss.is_floating_point() else 0.0
    return max(1e-3, 4 * precision)


def _can_be_trained(outputs: Any) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors_in(outputs))


def _warn_of_parameters(criterion: object) -> None:
    if not isinstance(criterion, nn.Module):
        return
    own = [name for name, tensor in criterion.named_parameters() if tensor.requires_grad]
    if own:
        logger.warning(
            "the criterion has parameters of its own, which are not trained: %s. Make them part of "
            "the model if they are to learn",
            ", ".join(own),
        )


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
    target = target.long()  # in uint8, -100 would be class 156, and an index a mask
    kept = target[target != criterion.ignore_index]
    if criterion.weight is None:
        return torch.tensor(float(kept.numel()))
    total: torch.Tensor = criterion.weight[kept.to(criterion.weight.device)].sum()
    return total.cpu()
