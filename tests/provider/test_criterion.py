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
    losses = PartLoss(criterion)
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
