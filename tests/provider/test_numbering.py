"""Batches, parts and updates are numbered without gaps, whatever the sizes."""

from ravnest.provider.numbering import BatchNumbers


def train(numbers, rows):
    return [(of.batch, of.part, of.rows, of.update, of.closes_update) for of, *_ in
            numbers.training(rows)]  # fmt: skip


def test_the_last_part_of_the_last_batch_closes_an_update():
    numbers = BatchNumbers(micro_batches=2, update_frequency=2, least_rows=1)
    assert train(numbers, 4) == [(0, 0, 2, 0, False), (0, 1, 2, 0, False)]
    assert train(numbers, 3) == [(1, 0, 1, 0, False), (1, 1, 2, 0, True)]
    assert train(numbers, 1) == [(2, 0, 1, 1, False)]


def test_the_end_of_an_epoch_ends_an_update_that_had_begun():
    numbers = BatchNumbers(micro_batches=1, update_frequency=3, least_rows=1)
    train(numbers, 8)
    numbers.update_ended()
    numbers.update_ended()
    assert train(numbers, 8) == [(1, 0, 8, 1, False)]
    assert numbers.without_gradients(5).batch == 2
    assert train(numbers, 8) == [(3, 0, 8, 1, False)]
    assert train(numbers, 8) == [(4, 0, 8, 1, True)]


def test_parts_have_no_fewer_rows_than_the_model_can_take():
    numbers = BatchNumbers(micro_batches=8, update_frequency=1, least_rows=3)
    found = [(first, last) for _, first, last in numbers.training(10)]
    assert found == [(0, 3), (3, 6), (6, 10)]
    assert [(first, last) for _, first, last in numbers.training(2)] == [(0, 2)]
