"""Metrics: a sum and how many, so that batches of different sizes add up."""

import math

import pytest
import torch
from samples_of_recipes import column, dataset, loss, named, recipe
from sklearn.metrics import f1_score, precision_score, recall_score

from ravnest.errors import JobError
from ravnest.provider.leaf import Judgement
from ravnest.recipes.checking import check_recipe
from ravnest.recipes.metrics import build_metrics, finish_metrics

SCORES = torch.tensor([[4.0, 1, 0], [0, 1, 2], [3, 2, 1], [0, 5, 1], [1, 0, 2]])
CLASSES = torch.tensor([0, 1, 1, 1, -100])


def judged(of, batches):
    metrics, judgement = build_metrics(of), Judgement()
    for outputs, target in batches:
        for name, metric in metrics.items():
            value = metric(outputs, {"target_0": target})
            if value is not None:
                judgement.add(name, value, len(target))
    return finish_metrics(of, judgement.means())


def both_halves(outputs, target):
    return [(outputs[:2], target[:2]), (outputs[2:], target[2:])]


def test_classes_are_judged_without_those_that_do_not_count():
    of = recipe(metrics=(named("accuracy"), named("top_k", k=2), named("perplexity")))
    found = judged(of, both_halves(SCORES, CLASSES))
    loss_of_all = float(torch.nn.functional.cross_entropy(SCORES, CLASSES))
    assert found["accuracy"] == 0.5
    assert found["top_2"] == 1.0
    assert found["loss"] == pytest.approx(loss_of_all)
    assert found["perplexity"] == pytest.approx(math.exp(loss_of_all))


def test_words_are_judged_wherever_their_classes_are():
    scores, words = torch.randn(4, 6, 5), torch.randint(0, 5, (4, 6))
    expected = float((scores.argmax(-1) == words).float().mean())
    of = recipe(metrics=(named("accuracy"), named("top_k", k=1)))
    for outputs in (scores, scores.transpose(1, 2)):
        found = judged(of, [(outputs, words)])
        assert found["accuracy"] == found["top_1"] == pytest.approx(expected)


def test_single_scores_are_yes_above_nothing():
    scores, there = torch.tensor([2.0, -1, 3, -2, 1]), torch.tensor([1, 1, 0, 0, 1])
    of = recipe(
        loss("bce_with_logits"),
        metrics=(named("accuracy"), named("precision"), named("recall"), named("f1")),
    )
    for outputs in (scores, scores[:, None]):
        found = judged(of, both_halves(outputs, there))
        assert found["accuracy"] == pytest.approx(0.6)
        assert found["precision"] == found["recall"] == found["f1"] == pytest.approx(2 / 3)


PER_CLASS = (named("precision"), named("recall"), named("f1"))


def test_of_more_than_two_classes_it_is_the_mean_over_the_classes():
    """By hand, with four classes of which the last neither occurs nor is chosen.

    truth   0 0 0 1 1 2    class 0: 2 right, 1 missed, 0 wrong   precision 1    recall 2/3  f1 4/5
    chosen  0 0 1 1 2 1    class 1: 1 right, 1 missed, 2 wrong   precision 1/3  recall 1/2  f1 2/5
                           class 2: 0 right, 1 missed, 1 wrong   all 0
    """
    truth, chosen = torch.tensor([0, 0, 0, 1, 1, 2]), torch.tensor([0, 0, 1, 1, 2, 1])
    scores = torch.nn.functional.one_hot(chosen, 4).float()
    of = recipe(metrics=PER_CLASS)
    for batches in ([(scores, truth)], both_halves(scores, truth)):
        found = judged(of, batches)
        assert found["precision"] == pytest.approx((1 + 1 / 3 + 0) / 3)
        assert found["recall"] == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)
        assert found["f1"] == pytest.approx((4 / 5 + 2 / 5 + 0) / 3)


@pytest.mark.parametrize("positive", [0, 1, 2])
def test_a_class_that_is_named_is_looked_for_alone(positive):
    figures = {0: (1, 2 / 3, 4 / 5), 1: (1 / 3, 1 / 2, 2 / 5), 2: (0, 0, 0)}
    truth, chosen = torch.tensor([0, 0, 0, 1, 1, 2]), torch.tensor([0, 0, 1, 1, 2, 1])
    scores = torch.nn.functional.one_hot(chosen, 4).float()
    named_ones = tuple(named(one.name, positive=positive) for one in PER_CLASS)
    found = judged(recipe(metrics=named_ones), both_halves(scores, truth))
    assert tuple(found[one.name] for one in PER_CLASS) == pytest.approx(figures[positive])


def test_of_two_classes_the_second_is_looked_for():
    truth, chosen = torch.tensor([0, 0, 0, 0, 1, 1]), torch.tensor([0, 0, 0, 1, 1, 0])
    scores = torch.nn.functional.one_hot(chosen, 2).float()
    found = judged(recipe(metrics=(named("recall"),)), both_halves(scores, truth))
    assert found["recall"] == 0.5


def test_words_that_do_not_count_are_in_no_class():
    scores, words = torch.randn(6, 7, 5), torch.randint(0, 5, (6, 7))
    words[:, 5:] = -100
    chosen, truth = scores[:, :5].argmax(-1).reshape(-1), words[:, :5].reshape(-1)
    found = judged(recipe(metrics=PER_CLASS), both_halves(scores, words))
    for one, reference in zip(PER_CLASS, (precision_score, recall_score, f1_score), strict=True):
        expected = reference(truth, chosen, average="macro", zero_division=0.0)
        assert found[one.name] == pytest.approx(expected)


def test_classes_of_a_small_type_are_all_counted():
    """-100, which does not count, is 156 in uint8."""
    truth = torch.tensor([156, 3, 156, 7])
    scores = torch.nn.functional.one_hot(torch.tensor([156, 3, 3, 7]), 300).float()
    of = recipe(metrics=(named("accuracy"), named("recall", positive=156)))
    found = judged(of, both_halves(scores, truth.to(torch.uint8)))
    assert (found["accuracy"], found["recall"]) == (0.75, 0.5)


def test_differences_are_judged_number_by_number():
    output, target = torch.randn(5, 3), torch.randn(5, 3)
    of = recipe(loss("mse"), metrics=(named("mse"), named("rmse"), named("mae"), named("bias")))
    found = judged(of, both_halves(output, target))
    difference = output - target
    assert found["mse"] == pytest.approx(float(difference.square().mean()))
    assert found["loss"] == pytest.approx(found["mse"])
    assert found["rmse"] == pytest.approx(math.sqrt(found["mse"]))
    assert found["mae"] == pytest.approx(float(difference.abs().mean()))
    assert found["bias"] == pytest.approx(float(difference.mean()), abs=1e-6)


def test_where_no_metric_is_named_classes_are_judged_by_their_accuracy():
    assert judged(recipe(), [(SCORES, CLASSES)])["accuracy"] == 0.5
    assert set(judged(recipe(loss("mse")), [(SCORES, SCORES)])) == {"loss"}
    one_hot = torch.nn.functional.one_hot(CLASSES[:4], 3).float()
    assert judged(recipe(), [(SCORES[:4], one_hot)])["accuracy"] == 0.5


@pytest.mark.parametrize(
    ("metrics", "complaint"),
    [
        ((named("acuracy"),), r"metrics\[0\]: there is no metric 'acuracy'; did you mean"),
        ((named("top_k"), named("top_k", k=5)), r"metrics\[1\]: there are two metrics 'top_5'"),
    ],
)
def test_metrics_that_cannot_be_are_refused(metrics, complaint):
    data = dataset(column("x"), column("y", "int64"))
    with pytest.raises(JobError, match=complaint):
        check_recipe(recipe(metrics=metrics), data)


def test_classes_cannot_be_judged_by_fractions():
    data = dataset(column("x"), column("y", "float32", 3))
    with pytest.raises(JobError, match="'accuracy' needs whole numbers as targets; 'y' is float32"):
        check_recipe(recipe(loss("mse"), metrics=(named("accuracy"),)), data)
