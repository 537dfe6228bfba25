"""The Leaf's labels stay in step with the Root's data; its metrics and files are right."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ravnest.errors import DataError, NodeError
from ravnest.provider.accuracy import accuracy
from ravnest.provider.batches import part_bounds, rows_of
from ravnest.provider.leaf import LabelFeed, Leaf, LeafSettings, set_aside
from ravnest.provider.proof import proof_of
from ravnest.provider.shards import Shard, shard
from ravnest.wire.messages import MicroBatch


def part(batch, rows=8, number=0, of=1):
    first, last = part_bounds(rows, of)[number]
    return MicroBatch(
        batch=batch,
        part=number,
        parts=of,
        rows=last - first,
        batch_rows=rows,
        update=batch,
        closes_update=number + 1 == of,
    )


def shuffled(rows):
    data = TensorDataset(torch.arange(float(rows)), torch.arange(rows) * 10)
    return DataLoader(data, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("rows", [32, 30], ids=["even", "a smaller last batch"])
def test_shuffled_epochs_stay_in_step(rows):
    """The Root loops over its loader, the Leaf asks for as many batches as it is sent."""
    root, leaf = shuffled(rows), LabelFeed(shuffled(rows), "labels")
    number = 0
    for _ in range(4):
        for item in root:
            mine = leaf.part(part(number, len(item[0])), proof_of(item))
            assert torch.equal(mine[1], item[1])
            number += 1
        leaf.restart()


def test_parts_of_a_batch_get_their_rows():
    feed = LabelFeed([torch.arange(7)], "labels")
    found = [feed.part(part(0, 7, k, 3), ()).tolist() for k in range(3)]
    assert found == [[0, 1], [2, 3], [4, 5, 6]]


def test_labels_may_be_a_tensor():
    feed = LabelFeed(torch.arange(10), "labels")
    assert feed.part(part(0, 4), ()).tolist() == [0, 1, 2, 3]
    assert feed.part(part(1, 4), ()).tolist() == [4, 5, 6, 7]
    feed.restart()
    assert feed.part(part(2, 4), ()).tolist() == [0, 1, 2, 3]


def test_missing_and_short_labels_are_named():
    with pytest.raises(DataError, match="has no `labels`"):
        LabelFeed(None, "labels").part(part(0), ())
    feed = LabelFeed([torch.zeros(8)], "test_labels")
    feed.part(part(0), ())
    with pytest.raises(DataError, match="`test_labels` of the Leaf ends before"):
        feed.part(part(1), ())


def test_a_tensor_that_ends_within_a_batch_is_too_short():
    feed = LabelFeed(torch.arange(6), "labels")
    feed.part(part(0, 4), ())
    with pytest.raises(DataError, match="ends before"):
        feed.part(part(1, 4), ())


def test_batches_of_another_size_are_named():
    """Half as many rows, in halves: every part would have had the same labels."""
    root = (torch.rand(8, 3), torch.arange(8))
    feed = LabelFeed([(root[0][:4], root[1][:4])], "labels")
    with pytest.raises(DataError, match="8 rows at the Root and 4 rows at the Leaf"):
        feed.part(part(0, 8, 0, 2), proof_of(root))


@pytest.mark.parametrize("labels", [torch.arange(4), ("one", "text"), 3])
def test_labels_that_cannot_be_divided_are_refused(labels):
    with pytest.raises(DataError, match=r"has 8 rows.*micro_batches=1"):
        LabelFeed([labels], "labels").part(part(0, 8, 0, 2), ())
    assert LabelFeed([labels], "labels").part(part(0, 8), ()) is labels


def test_the_feed_remembers_what_is_in_every_batch():
    """Positions are equal at first sight; the second batch shows that they always are."""
    positions = torch.arange(8).expand(4, 8)
    feed = LabelFeed([(positions, torch.arange(k, k + 4)) for k in (0, 4)], "labels")
    feed.part(part(0, 4), proof_of((positions, torch.arange(8, 12))))
    with pytest.raises(DataError, match="not on the same batch"):
        feed.part(part(1, 4), proof_of((positions, torch.arange(12, 16))))


# ---- several clusters -------------------------------------------------------------------------


@pytest.mark.parametrize("index", [0, 1, 2])
@pytest.mark.parametrize("rows", [72, 60], ids=["even", "a smaller last batch"])
def test_root_and_leaf_read_the_same_share(rows, index):
    """Epoch after epoch, although the share may end before the data does."""
    share = Shard(index, 3)
    root, leaf = shard(shuffled(rows), share), LabelFeed(shuffled(rows), "labels", share)
    number = 0
    for _ in range(4):
        for item in root:
            mine = leaf.part(part(number, len(item[0])), proof_of(item))
            assert torch.equal(mine[1], item[1])
            number += 1
        leaf.restart()


@pytest.mark.parametrize("rows", [20, 18], ids=["even", "a smaller last batch"])
def test_labels_in_a_tensor_are_shared_by_batches(rows):
    labels = torch.arange(rows)
    whole = list(labels.split(4))
    for index in range(2):
        feed, number = LabelFeed(labels, "labels", Shard(index, 2)), 0
        for _ in range(3):
            for expected in whole[index::2]:
                assert torch.equal(feed.part(part(number, len(expected)), ()), expected)
                number += 1
            feed.restart()


def test_labels_in_a_tensor_may_end_before_the_share_does():
    feed = LabelFeed(torch.arange(10), "labels", Shard(1, 2))
    feed.part(part(0, 4), ())
    with pytest.raises(DataError, match=r"ends before.*node\.shard\(loader\)"):
        feed.part(part(1, 4), ())


def test_a_single_short_batch_of_a_cluster_has_no_place_in_a_tensor():
    """Others have had 8 rows before it, which the Leaf cannot know."""
    feed = LabelFeed(torch.arange(10), "labels", Shard(1, 2))
    feed.part(part(0, 2), ())
    with pytest.raises(DataError, match=r"single batch.*drop_last=True"):
        feed.restart()
    feed = LabelFeed(torch.arange(16), "labels", Shard(1, 2))
    assert feed.part(part(0, 8), ()).tolist() == list(range(8, 16))
    feed.restart()


def test_an_iterator_goes_on_in_the_next_epoch():
    feed, number = LabelFeed(iter(range(12)), "labels", Shard(1, 2)), 0
    for epoch in ([1, 3], [5, 7], [9, 11]):
        for expected in epoch:
            assert feed.part(part(number), ()) == expected
            number += 1
        feed.restart()


def test_a_root_that_reads_everything_is_told_what_to_do():
    leaf = LabelFeed(shuffled(64), "labels", Shard(0, 2))
    root = iter(shuffled(64))
    leaf.part(part(0), proof_of(next(root)))
    with pytest.raises(DataError, match=r"2 clusters.*node\.shard\(loader\).*shard_data=False"):
        leaf.part(part(1), proof_of(next(root)))
    alone = LabelFeed(shuffled(64), "labels")
    with pytest.raises(DataError) as error:
        alone.part(part(0), proof_of(next(root)))
    assert "node.shard" not in str(error.value)


def test_only_training_labels_are_shared():
    items = [torch.full((4,), float(k)) for k in range(4)]
    leaf = Leaf(
        LeafSettings(
            criterion=lambda outputs, batch: (outputs * batch).mean(),
            labels=items,
            test_labels=items,
            metrics={"label": lambda o, b: b.mean()},
            shard=Shard(1, 2),
        )
    )
    losses = [float(leaf.loss(torch.ones(4), part(k, 4), ())) for k in range(2)]
    assert losses == [1.0, 3.0]
    for number in range(4):
        leaf.judge(torch.zeros(4), part(number, 4), ())
    assert leaf.validation_ended()["label"] == 1.5


# ---- losses and metrics -----------------------------------------------------------------------


def test_the_parts_of_a_batch_add_up_to_its_loss(tmp_path):
    """Mean or sum, whatever the criterion does; and one line per update."""
    outputs, labels = torch.randn(7, 5), torch.randint(0, 5, (7,))
    for reduction in ("mean", "sum"):
        criterion = nn.CrossEntropyLoss(reduction=reduction)
        path = tmp_path / f"{reduction}.txt"
        leaf = Leaf(LeafSettings(criterion=criterion, labels=[labels], loss_file=path))
        for k in range(3):
            of = part(0, 7, k, 3)
            rows = rows_of(outputs, 7, *part_bounds(7, 3)[k])
            total = leaf.finished_part(leaf.loss(rows, of, ()), of)
        leaf.updated()
        expected = float(criterion(outputs, labels))
        assert total == pytest.approx(expected)
        assert float(path.read_text()) == pytest.approx(expected)


@pytest.mark.parametrize("criterion", [None, lambda o, b: 3.0, lambda o, b: o])
def test_a_useless_criterion_is_refused(criterion):
    leaf = Leaf(LeafSettings(criterion=criterion, labels=[torch.arange(4)]))
    with pytest.raises(NodeError, match="criterion"):
        leaf.loss(torch.rand(4, 2), part(0, 4), ())


def test_earlier_files_are_kept(tmp_path):
    path = tmp_path / "losses.txt"
    for run in ("first", "second", "third"):
        set_aside(path)
        path.write_text(run)
    assert (tmp_path / "losses.1.txt").read_text() == "first"
    assert (tmp_path / "losses.2.txt").read_text() == "second"


HALF = [[0.31, 0.34, 0.35], [0.3, 0.29, 0.41], [0.41, 0.29, 0.3]]
ACCURACIES = {
    "classes": (torch.eye(3), (None, torch.tensor([0, 1, 1])), (2, 3)),
    "sequences": (torch.eye(3).repeat(2, 1, 1), torch.tensor([[0, 1, 2], [0, 0, -100]]), (4, 5)),
    "channels first": (torch.eye(3).view(1, 3, 3), torch.tensor([[0, 1, 0]]), (2, 3)),
    "yes or no": (torch.tensor([1.0, -1.0]), torch.tensor([1, 1]), (1, 2)),
    "probability of yes": (torch.tensor([0.9, 0.1, 0.6]), torch.tensor([1, 0, 0]), (2, 3)),
    "yes or no in a column": (torch.tensor([[1.0], [-1.0]]), torch.tensor([0, 0]), (1, 2)),
    "several of yes or no": (torch.tensor([[2.0, 1.0, -1.0]]), torch.tensor([[1, 1, 0]]), (3, 3)),
    "truth values": (torch.tensor([2.0, -1.0]), torch.tensor([True, True]), (1, 2)),
    "how many": (torch.arange(8.0).view(8, 1), torch.arange(8).view(8, 1), None),
    "how many, from a column": (torch.arange(8.0).view(8, 1), torch.arange(8), None),
    "dict": ({"logits": torch.eye(2)}, {"labels": torch.tensor([0, 0])}, (1, 2)),
    "one-hot": (torch.eye(3), torch.eye(3)[[0, 1, 1]], (2, 3)),
    "one-hot in whole numbers": (torch.eye(3).softmax(1), torch.eye(3).long()[[0, 1, 1]], (2, 3)),
    "probabilities": (torch.eye(2), (None, torch.tensor([[0.7, 0.3], [0.9, 0.1]])), (1, 2)),
    "probabilities in half precision": (torch.eye(3), torch.tensor(HALF).bfloat16(), (0, 3)),
    "one-hot positions": (torch.eye(3).expand(2, 3, 3), torch.eye(3).expand(2, 3, 3), (6, 6)),
    "one-hot channels": (torch.eye(3)[None, :, [0, 0]], torch.eye(3)[None, :, :2], (1, 2)),
    "regression": (torch.rand(3), torch.rand(3), None),
    "regression of several": (torch.rand(3, 2), torch.rand(3, 2), None),
    "one number each": (torch.rand(3, 1), torch.ones(3, 1), None),
    "autoencoder": (torch.rand(3, 4), torch.rand(3, 4) * 2, None),
    "no labels": (torch.rand(3, 2), {"text": "x"}, None),
}


@pytest.mark.parametrize(("outputs", "batch", "expected"), ACCURACIES.values(), ids=ACCURACIES)
def test_accuracy(outputs, batch, expected):
    assert accuracy(outputs, batch).count() == expected


def test_a_validation_is_averaged_over_rows_and_written(tmp_path):
    path = tmp_path / "val.txt"
    items = [torch.zeros(8), torch.zeros(2)]
    leaf = Leaf(
        LeafSettings(
            test_labels=items,
            metrics={"mean": lambda o, b: float(o.mean()), "sum": lambda o, b: (o.sum(), len(o))},
            accuracy_file=path,
        )
    )
    leaf.judge(torch.ones(8), part(0, 8), ())
    leaf.judge(torch.zeros(2), part(1, 2), ())
    assert leaf.validation_ended() == {"mean": pytest.approx(0.8), "sum": pytest.approx(0.8)}
    assert float(path.read_text()) == pytest.approx(0.8)
    leaf.judge(torch.zeros(8), part(2, 8), ())
    assert leaf.validation_ended()["mean"] == 0.0


def test_what_is_no_score_is_not_written_as_one(tmp_path, caplog):
    path = tmp_path / "val.txt"
    for metrics in ({}, {"loss": lambda o, b: 0.5}):
        leaf = Leaf(
            LeafSettings(
                test_labels=[torch.rand(8, 3)],
                criterion=nn.functional.mse_loss,
                metrics=metrics,
                accuracy_file=path,
            )
        )
        for number in range(2):
            leaf.judge(torch.rand(8, 3), part(number), ())
            assert set(leaf.validation_ended()) == {"loss"}
    assert not path.exists()
    assert caplog.text.count("val.txt is not written") == 2


def test_an_accuracy_of_some_batches_is_none_of_all(tmp_path):
    """Of many labels a row may have, a batch happens to have one in every row."""
    leaf = Leaf(LeafSettings(test_labels=[torch.eye(2), torch.ones(2, 2)]))
    for number in range(2):
        leaf.judge(torch.eye(2), part(number, 2), ())
    assert leaf.validation_ended() == {}


SEVERAL = {
    "of many labels, one in each row": (
        [torch.tensor([[2.0, 1.0]]), torch.tensor([[2.0, 1.0]])],
        [torch.tensor([[1, 0]]), torch.tensor([[1, 1]])],
        3 / 4,  # not (1 + 2) / (1 + 2): rows in one batch, labels in the other
    ),
    "scores that look like probabilities": (
        [torch.tensor([0.4, 0.3]), torch.tensor([3.0, -3.0])],
        [torch.tensor([1, 1]), torch.tensor([1, 0])],
        1.0,
    ),
    "how many, at first none or one": (
        [torch.tensor([0.0, 1.0]), torch.tensor([2.0, 5.0])],
        [torch.tensor([0, 1]), torch.tensor([2, 5])],
        None,
    ),
}


@pytest.mark.parametrize(("outputs", "labels", "expected"), SEVERAL.values(), ids=SEVERAL)
def test_all_batches_of_a_validation_are_judged_by_one_rule(outputs, labels, expected):
    leaf = Leaf(LeafSettings(test_labels=labels))
    for number, output in enumerate(outputs):
        leaf.judge(output, part(number, len(output)), ())
    assert leaf.validation_ended() == ({} if expected is None else {"accuracy": expected})


def test_the_accuracy_among_several_metrics_is_the_score(tmp_path):
    path = tmp_path / "val.txt"
    metrics = {"perplexity": lambda o, b: 7.0, "accuracy": lambda o, b: 0.5}
    leaf = Leaf(LeafSettings(test_labels=[torch.zeros(8)], metrics=metrics, accuracy_file=path))
    leaf.judge(torch.ones(8), part(0), ())
    leaf.validation_ended()
    assert float(path.read_text()) == 0.5


def judged(metrics, criterion=None):
    leaf = Leaf(LeafSettings(test_labels=[torch.zeros(8)], metrics=metrics, criterion=criterion))
    leaf.judge(torch.ones(8), part(0, 8), ())
    return leaf.validation_ended()


def test_a_loss_of_the_users_own_is_not_mixed_with_the_criterion():
    def criterion(outputs, batch):
        return outputs.mean()

    assert judged({"loss": lambda o, b: 100.0}, criterion) == {"loss": 100.0}
    assert judged({"other": lambda o, b: 100.0}, criterion) == {"other": 100.0, "loss": 1.0}


def test_a_metric_may_give_sum_and_count_as_a_list():
    assert judged({"share": lambda o, b: [1.0, 4]}) == {"share": 0.25}


@pytest.mark.parametrize("value", ["3", {"f1": 1.0}, torch.zeros(8), (1, 2, 3), [None, 2]])
def test_a_metric_that_gives_no_number_is_named(value):
    with pytest.raises(NodeError, match="the metric 'f1' must return one number"):
        judged({"f1": lambda o, b: value})


def test_a_validation_that_was_broken_off_is_forgotten():
    items = [torch.full((4,), float(k)) for k in range(3)]
    leaf = Leaf(LeafSettings(test_labels=items, metrics={"label": lambda o, b: b.mean()}))
    for number in range(2):
        leaf.judge(torch.zeros(4), part(number, 4), ())
    leaf.forget()
    for number in range(2, 5):
        leaf.judge(torch.zeros(4), part(number, 4), proof_of(items[number - 2]))
    assert leaf.validation_ended() == {"label": 1.0}
