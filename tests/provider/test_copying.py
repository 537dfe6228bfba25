"""A model that would learn to copy its input is refused; whatever else equals its input is not."""

import pytest
import torch
from torch import nn

from ravnest.errors import DataError
from ravnest.provider.copying import CopyWatch
from ravnest.provider.leaf import Leaf, LeafSettings
from ravnest.provider.proof import token_digest, tokens_in
from ravnest.wire.messages import MicroBatch

WORDS, ROWS, LENGTH = 13, 4, 9
cross_entropy = nn.functional.cross_entropy


def part(number=0, parts=1, batch=0):
    rows = ROWS // parts
    return MicroBatch(
        batch=batch,
        part=number,
        parts=parts,
        rows=rows,
        batch_rows=ROWS,
        update=batch,
        closes_update=number + 1 == parts,
    )


def text():
    torch.manual_seed(1)
    return torch.randint(0, WORDS, (ROWS, LENGTH))


def masked(words, share=0.5):
    return words.masked_fill(torch.rand(words.shape) < share, -100)


def plain(outputs, labels):
    return cross_entropy(outputs.flatten(0, 1), labels.flatten())


def shifted(outputs, labels):
    return cross_entropy(outputs[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def smoothed(outputs, labels):
    return cross_entropy(outputs.movedim(2, 1), labels, label_smoothing=0.2)


def squared(outputs, labels):
    return (outputs.softmax(-1) - nn.functional.one_hot(labels, WORDS)).square().sum()


def of_dict(outputs, labels):
    return plain(outputs, labels["labels"])


def look(criterion, labels, inputs, outputs=None, parts=1, reconstructs=False):
    """As on a Leaf, with the first part of the first batch."""
    settings = LeafSettings(criterion=criterion, labels=[labels], reconstructs=reconstructs)
    if outputs is None:
        outputs = torch.randn(ROWS // parts, LENGTH, WORDS)
    tokens = tuple(token_digest(tensor) for tensor in tokens_in(inputs))
    Leaf(settings).loss(outputs, part(0, parts), (), tokens)


@pytest.mark.parametrize("criterion", [plain, smoothed, squared])
@pytest.mark.parametrize("parts", [1, 2])
def test_labels_that_are_the_inputs_are_refused(criterion, parts):
    words = text()
    with pytest.raises(DataError, match="learn to copy its input"):
        look(criterion, words, [words.clone()], parts=parts)


def test_also_in_other_forms():
    words = text()
    for labels in ({"x": words, "labels": words.clone()}, {"x": words, "labels": masked(words)}):
        with pytest.raises(DataError, match="learn to copy its input"):
            look(of_dict, labels, [words])
    channels_first = torch.randn(ROWS, WORDS, LENGTH)
    with pytest.raises(DataError, match="learn to copy its input"):
        look(nn.CrossEntropyLoss(), words, [words], channels_first)
    with pytest.raises(DataError, match="learn to copy its input"):
        look(
            lambda o, b: plain(o["logits"], b),
            words,
            [words.int()],
            {"logits": torch.randn(ROWS, LENGTH, WORDS), "hidden": torch.randn(ROWS, 3)},
        )


def test_what_is_not_copied_is_not_refused():
    words = text()
    look(shifted, words, [words])
    look(plain, words.roll(-1, 1), [words])
    look(plain, words, [words], reconstructs=True)
    hidden = words.masked_fill(torch.rand(words.shape) < 0.5, 0)
    asked = words.masked_fill(hidden == words, -100)
    look(of_dict, {"x": hidden, "labels": asked}, [hidden])
    look(plain, torch.full_like(words, 3), [torch.full_like(words, 3)])  # nothing to tell by
    padded = words.clone()
    padded[:, 4:] = 0
    look(shifted, padded, [padded])
    look(
        lambda o, b: (o - b).square().mean(), torch.rand(ROWS, LENGTH), [], torch.rand(ROWS, LENGTH)
    )
    look(lambda o, b: (o[..., 0] - b).square().mean(), words, [words])  # numbers, not classes
    look(nn.CrossEntropyLoss(), torch.arange(ROWS), [words], torch.randn(ROWS, WORDS))


def test_a_batch_that_tells_nothing_is_followed_by_others():
    words, constant = text(), torch.full((ROWS, LENGTH), 3)
    watch = CopyWatch(plain)
    for labels, refused in ((constant, False), (words, True)):
        outputs, tokens = torch.randn(ROWS, LENGTH, WORDS), [token_digest(labels)]
        if refused:
            with pytest.raises(DataError):
                watch.look(outputs, labels, labels, part(), tokens)
        else:
            watch.look(outputs, labels, labels, part(), tokens)


@pytest.mark.parametrize(
    "criterion",
    [
        lambda outputs, labels: plain(outputs.div_(2.0), labels.roll(-1, 1)),
        lambda outputs, labels: outputs.mean((1, 2)),
        lambda outputs, labels: 3.0,
    ],
    ids=["writes to its input", "no single number", "no tensor"],
)
def test_a_criterion_that_cannot_be_tried_is_left_alone(criterion):
    words, outputs = text(), torch.randn(ROWS, LENGTH, WORDS)
    before = outputs.clone()
    CopyWatch(criterion).look(outputs, words, words, part(), [token_digest(words)])
    assert torch.equal(outputs, before)


def test_what_has_been_looked_at_is_not_looked_at_again():
    calls = []

    def criterion(outputs, labels):
        calls.append(1)
        return shifted(outputs, labels)

    watch, words = CopyWatch(criterion), text()
    for _ in range(3):
        watch.look(torch.randn(ROWS, LENGTH, WORDS), words, words, part(), [token_digest(words)])
    assert len(calls) == 1
