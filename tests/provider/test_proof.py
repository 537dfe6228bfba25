"""Equal batches agree, others do not, and what says nothing is no evidence."""

import msgspec
import pytest
import torch

from ravnest.provider.proof import Comparison, proof_of
from ravnest.wire.messages import Forward, MicroBatch

X, Y = torch.rand(4, 3), torch.tensor([1, 2, 3, 4])
OTHER = (torch.rand(4, 3), torch.tensor([4, 3, 2, 1]))
MASK, CLASS = torch.ones(4, 3, dtype=torch.long), torch.zeros(4, dtype=torch.long)
SAME = {
    "equal": ((X, Y), (X.clone(), Y.clone())),
    "augmented inputs, equal labels": ((X, Y), (OTHER[0], Y)),
    "augmented inputs, labels of one class": ((X, CLASS), (OTHER[0], CLASS)),
    "inputs here, labels there": ((X,), (Y,)),
    "by name": ({"x": X, "y": Y}, (Y,)),
    "nothing to compare": ((X,), ("text", 3)),
    "nothing but a mask to compare": ((MASK, X), (MASK, "text")),
    "vectors of other lengths": ((X, torch.arange(9)), (torch.arange(7),)),
    "a row more of something else": ((X, Y, torch.rand(9, 3)), (torch.rand(7, 3), Y)),
}
DIFFERENT = {
    "all": ((X, Y), OTHER),
    "labels alone": ((X, Y), (OTHER[1],)),
    "by name": ((X, Y), {"labels": OTHER[1]}),
    "a mask of ones": ({"x": X, "mask": MASK, "y": Y}, {"mask": MASK, "y": OTHER[1]}),
    "an empty tensor": ((torch.zeros(0), Y), (torch.zeros(0), OTHER[1])),
    "a plain number": ((torch.tensor(1.0), Y), (torch.tensor(1.0), OTHER[1])),
    "one class here, another there": ((CLASS,), (CLASS + 1,)),
    "one row": ((X[:1], Y[:1]), (OTHER[0][:1], OTHER[1][:1])),
}


def agree(theirs, mine, by=None):
    return (by or Comparison()).difference(proof_of(theirs), proof_of(mine)) is None


@pytest.mark.parametrize(("theirs", "mine"), SAME.values(), ids=list(SAME))
def test_equal_batches_agree(theirs, mine):
    assert agree(theirs, mine)


@pytest.mark.parametrize(("theirs", "mine"), DIFFERENT.values(), ids=list(DIFFERENT))
def test_other_batches_do_not(theirs, mine):
    assert not agree(theirs, mine)


def test_both_numbers_of_rows_are_said():
    found = Comparison().difference(proof_of((torch.rand(8, 3), Y)), proof_of((X, Y + 1)))
    assert found is not None
    assert "8 rows" in found
    assert "4 rows" in found


def test_what_is_the_same_in_every_batch_is_no_evidence():
    positions, comparison = torch.arange(5), Comparison()
    assert agree((positions, Y), (positions, Y + 1), comparison)  # who could know?
    assert not agree((positions, Y), (positions, Y + 2), comparison)


def test_one_batch_again_and_again_agrees():
    comparison = Comparison()
    assert all(agree((X, Y), (X, Y), comparison) for _ in range(50))


@pytest.mark.parametrize("rows", [1, 2, 8])
def test_augmented_inputs_beside_labels_that_are_often_of_one_class(rows):
    """Whether labels say something is a matter of luck; that inputs are augmented is learnt."""
    torch.manual_seed(0)
    comparison = Comparison()
    for _ in range(500):
        labels = torch.randint(0, 2, (rows,)).float()
        assert agree((torch.rand(rows, 3), labels), (torch.rand(rows, 3), labels), comparison)


def test_augmented_inputs_in_epochs_of_one_batch():
    comparison = Comparison()
    for _ in range(50):
        assert agree((torch.rand(4, 3), Y), (torch.rand(4, 3), Y), comparison)
        comparison.epoch_ended()


def test_a_constant_mask_does_not_excuse_differences_for_ever():
    """Measurements beside a mask of ones might be augmented, but not all of them all the time."""
    comparison, mask = Comparison(), torch.ones(4, 3)
    found = [
        agree((torch.rand(4, 2), mask), (torch.rand(4, 2), mask), comparison) for _ in range(20)
    ]
    assert not all(found)


def test_proofs_fit_a_message():
    of = MicroBatch(batch=0, part=0, parts=1, rows=4, batch_rows=4, update=0, closes_update=False)
    items = [X.to(kind) for kind in (torch.bfloat16, torch.bool, torch.uint8, torch.complex64)]
    sent = Forward(of=of, task="train", carried=(), proof=proof_of([items, torch.tensor(3), Y]))
    received = msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=Forward)
    assert received.proof == sent.proof
    assert len(sent.proof) == 18
