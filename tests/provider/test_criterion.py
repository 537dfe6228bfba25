"""The parts of a batch add up to the batch's loss, whatever kind of criterion it is."""

import logging

import pytest
import torch
from torch import nn

from ravnest.errors import NodeError
from ravnest.provider.batches import part_bounds, rows_of
from ravnest.provider.criterion import PartLoss
from ravnest.wire.messages import MicroBatch


def parts_of(criterion, outputs, labels, count, rows=8):
    """What each part of a batch contributes."""
    losses = criterion if isinstance(criterion, PartLoss) else PartLoss(criterion)
    found = []
    for number, (start, stop) in enumerate(part_bounds(rows, count)):
        of = MicroBatch(
            batch=0,
            part=number,
            parts=count,
            rows=stop - start,
            batch_rows=rows,
            update=0,
            closes_update=number + 1 == count,
        )
        mine = [rows_of(item, rows, start, stop) for item in (outputs, labels)]
        found.append(losses(*mine, labels, of))
    return torch.stack(found)


def tokens(ignored=()):
    torch.manual_seed(0)
    outputs, labels = torch.randn(8, 5, 6), torch.randint(0, 5, (8, 6))
    for row, column in ignored:
        labels[row, column:] = -100
    return outputs, labels


UNEVEN = [(0, 1), (1, 0), (2, 3), (7, 2)]
CLASSES = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.5])


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize(
    "criterion",
    [
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(weight=CLASSES),
        nn.CrossEntropyLoss(label_smoothing=0.1, weight=CLASSES),
        nn.CrossEntropyLoss(reduction="sum"),
        nn.CrossEntropyLoss(ignore_index=3),
    ],
    ids=["plain", "weighted", "smoothed", "sum", "another index ignored"],
)
def test_cross_entropy_counts_what_is_not_ignored(criterion, count):
    """Row 1 is ignored as a whole, so that a part of it alone has no mean of its own."""
    outputs, labels = tokens(UNEVEN if criterion.ignore_index == -100 else ())
    whole = criterion(outputs, labels)
    assert torch.allclose(parts_of(criterion, outputs, labels, count).sum(), whole, rtol=1e-5)


@pytest.mark.parametrize("weight", [None, torch.rand(200) + 0.5], ids=["plain", "weighted"])
def test_classes_in_uint8_are_all_counted(weight):
    """As torch does, to which -100 is not the class 156."""
    torch.manual_seed(0)
    outputs = torch.randn(8, 200)
    labels = torch.tensor([156, 1, 156, 3, 7, 156, 199, 0], dtype=torch.uint8)
    criterion = nn.CrossEntropyLoss(weight=weight)
    parts = parts_of(criterion, outputs, labels, 3)
    assert torch.allclose(parts.sum(), criterion(outputs, labels), rtol=1e-5)


def test_nll_and_soft_targets():
    outputs, labels = tokens(UNEVEN)
    logs = outputs.log_softmax(1)
    whole = nn.NLLLoss(weight=CLASSES)(logs, labels)
    parts = parts_of(nn.NLLLoss(weight=CLASSES), logs, labels, 3)
    assert torch.allclose(parts.sum(), whole, rtol=1e-5)
    soft = torch.rand(8, 5, 6).softmax(1)
    whole = nn.CrossEntropyLoss()(outputs, soft)
    assert torch.allclose(parts_of(nn.CrossEntropyLoss(), outputs, soft, 3).sum(), whole, rtol=1e-5)


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize(
    "criterion",
    [
        nn.MSELoss(),
        lambda outputs, labels: (outputs - labels).abs().mean(),
        lambda outputs, labels: ((outputs - labels) ** 2).sum(),
    ],
    ids=["a module", "a mean of our own", "a sum of our own"],
)
def test_means_and_sums_are_told_apart(criterion, count, caplog):
    torch.manual_seed(1)
    outputs, labels = torch.randn(8, 4), torch.randn(8, 4)
    whole = criterion(outputs, labels)
    with caplog.at_level(logging.WARNING, logger="ravnest"):
        found = parts_of(criterion, outputs, labels, count).sum()
    assert torch.allclose(found, whole, rtol=1e-5)
    assert not caplog.records


def contrastive(outputs, labels):
    """Every row against all others."""
    scores = outputs @ outputs.T
    return nn.functional.cross_entropy(scores, torch.arange(len(outputs)))


@pytest.mark.parametrize("count", [2, 8])
def test_a_criterion_that_compares_rows_is_refused(count):
    torch.manual_seed(2)
    outputs = torch.randn(8, 4)
    with pytest.raises(NodeError, match="micro_batches=1"):
        parts_of(contrastive, outputs, torch.zeros(8), count)
    assert parts_of(contrastive, outputs, torch.zeros(8), 1).isfinite().all()


def test_a_mean_over_other_things_than_rows_is_said(caplog):
    outputs, labels = tokens([(0, 4), (2, 5)])

    def masked(outputs, labels):
        return nn.functional.cross_entropy(outputs, labels)

    with caplog.at_level(logging.WARNING, logger="ravnest"):
        parts_of(masked, outputs, labels, 2)
    (record,) = caplog.records
    assert "other things than the rows" in record.getMessage()


def test_structured_outputs_and_labels_can_be_tried():
    outputs = {"scores": torch.randn(8, 3), "note": "as it is"}
    labels = (torch.arange(8), {"wanted": torch.randn(8, 3)})

    def criterion(outputs, labels):
        return nn.functional.mse_loss(outputs["scores"], labels[1]["wanted"])

    for count in (2, 8):
        found = parts_of(criterion, outputs, labels, count).sum()
        assert torch.allclose(found, criterion(outputs, labels), rtol=1e-5)


# ---- a kind that the first part does not show -------------------------------------------------


def weighted_sum(outputs, labels):
    wanted, weights = labels
    return ((outputs - wanted) ** 2 * weights).sum()


def masked_mean(outputs, labels):
    wanted, mask = labels
    return ((outputs - wanted) ** 2 * mask).sum() / mask.sum().clamp(min=1)


@pytest.mark.parametrize("rows", [[], [0, 1], [0, 1, 2, 3]], ids=["none", "a half", "a part"])
def test_a_sum_that_begins_with_zeros_is_a_sum(rows):
    torch.manual_seed(3)
    losses, outputs = PartLoss(weighted_sum), torch.randn(8)
    for first in (True, False):
        labels = (torch.randn(8), torch.rand(8))
        if first:
            labels[1][rows] = 0
        whole = weighted_sum(outputs, labels)
        assert torch.allclose(parts_of(losses, outputs, labels, 2).sum(), whole, rtol=1e-5)


def test_a_mean_that_begins_with_a_masked_half_is_no_sum(caplog):
    torch.manual_seed(3)
    losses, outputs, wanted = PartLoss(masked_mean), torch.randn(8), torch.randn(8)
    mask = torch.ones(8)
    mask[:2] = 0
    parts_of(losses, outputs, (wanted, mask), 2)
    whole = masked_mean(outputs, (wanted, torch.ones(8)))
    found = parts_of(losses, outputs, (wanted, torch.ones(8)), 2).sum()
    assert torch.allclose(found, whole, rtol=1e-5)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_show_nothing(value):
    torch.manual_seed(4)
    losses = PartLoss(lambda outputs, labels: ((outputs - labels) ** 2).sum())
    outputs, labels = torch.randn(8, 4), torch.randn(8, 4)
    broken = outputs.clone()
    broken[::2] = value
    parts_of(losses, broken, labels, 2)
    whole = ((outputs - labels) ** 2).sum()
    assert torch.allclose(parts_of(losses, outputs, labels, 2).sum(), whole, rtol=1e-5)


def test_halves_that_cancel_show_nothing(caplog):
    """A critic's loss is around zero: rounding is to be measured by what was added up."""
    torch.manual_seed(5)
    losses = PartLoss(lambda outputs, labels: outputs.mean())
    cancelling = torch.tensor([1.0, 2.0, -1.0, -2.0 + 1e-6] * 2)
    outputs = torch.randn(8)
    with caplog.at_level(logging.WARNING, logger="ravnest"):
        parts_of(losses, cancelling, torch.zeros(8), 2)
        found = parts_of(losses, outputs, torch.zeros(8), 2).sum()
    assert torch.allclose(found, outputs.mean(), rtol=1e-5)
    assert not caplog.records


def test_what_is_ignored_only_later_is_said_once(caplog):
    calls = []

    def criterion(outputs, batch):
        calls.append(1)
        return nn.functional.cross_entropy(outputs, batch[1], ignore_index=-100)

    losses, whole, masked = PartLoss(criterion), tokens(), tokens(UNEVEN)
    with caplog.at_level(logging.WARNING, logger="ravnest"):
        for _ in range(20):
            parts_of(losses, whole[0], (whole[0], whole[1]), 2)
        assert not caplog.records
        assert len(calls) < 40 + 2 * 7  # it is tried now and then, not for every part
        for _ in range(50):
            parts_of(losses, masked[0], (masked[0], masked[1]), 2)
    (record,) = caplog.records
    assert "other things than the rows" in record.getMessage()


def test_labels_in_a_list_can_be_tried():
    def criterion(outputs, labels):
        return sum(((row - wanted) ** 2).sum() for row, wanted in zip(outputs, labels, strict=True))

    torch.manual_seed(6)
    outputs, labels = torch.randn(8, 4), [torch.randn(4) for _ in range(8)]
    for count in (2, 8):
        found = parts_of(criterion, outputs, labels, count).sum()
        assert torch.allclose(found, criterion(outputs, labels), rtol=1e-5)


# ---- what would not be trained ----------------------------------------------------------------


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, outputs, labels):
        return ((outputs - labels) ** 2).mean() * self.scale


def test_parameters_of_a_criterion_are_said_not_to_be_trained(caplog):
    with caplog.at_level(logging.WARNING, logger="ravnest"):
        PartLoss(nn.CrossEntropyLoss(weight=CLASSES))
        PartLoss(Scaled().requires_grad_(False))
        assert not caplog.records
        losses = PartLoss(Scaled())
        for _ in range(3):
            parts_of(losses, torch.randn(8), torch.randn(8), 2)
    (record,) = caplog.records
    assert "not trained: scale" in record.getMessage()


@pytest.mark.parametrize("count", [1, 2])
def test_a_loss_without_gradients_is_refused(count):
    outputs, labels = torch.randn(8, 3, requires_grad=True), torch.arange(8) % 3

    def share(outputs, labels):
        return (outputs.argmax(1) != labels).float().mean()

    with pytest.raises(NodeError, match="does not depend on the model's output"):
        parts_of(share, outputs, labels, count)
    assert parts_of(nn.functional.cross_entropy, outputs, labels, count).requires_grad
    with torch.no_grad():
        assert parts_of(share, outputs, labels, count).isfinite().all()
