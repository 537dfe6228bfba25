"""Losses by name give what torch gives, and the shares of parts add up to the whole."""

import pytest
import torch
from samples_of_recipes import loss, recipe
from torch import nn

from ravnest.errors import JobError
from ravnest.provider.batches import part_bounds, rows_of
from ravnest.provider.criterion import PartLoss
from ravnest.recipes.criterion import build_criterion
from ravnest.wire.messages import MicroBatch

torch.manual_seed(0)
SCORES = torch.randn(6, 5)
CLASSES = torch.tensor([0, 4, 2, -100, 1, 2])
NUMBERS = torch.rand(6, 5)
WORDS = torch.randint(0, 5, (6, 7))


def value(outputs, target, name, **params):
    return build_criterion(recipe(loss(name, **params)))(outputs, {"target_0": target})


@pytest.mark.parametrize(
    ("name", "params", "target", "torch_loss"),
    [
        ("cross_entropy", {}, CLASSES, nn.CrossEntropyLoss()),
        ("cross_entropy", {"reduction": "sum"}, CLASSES, nn.CrossEntropyLoss(reduction="sum")),
        (
            "cross_entropy",
            {"label_smoothing": 0.1, "weight": [1.0, 2.0, 3.0, 4.0, 5.0], "ignore_index": 2},
            CLASSES.clamp(min=0),
            nn.CrossEntropyLoss(torch.arange(1.0, 6.0), ignore_index=2, label_smoothing=0.1),
        ),
        ("cross_entropy", {}, NUMBERS, nn.CrossEntropyLoss()),
        ("nll", {}, CLASSES, nn.NLLLoss()),
        (
            "bce_with_logits",
            {"pos_weight": 3.0},
            NUMBERS,
            nn.BCEWithLogitsLoss(pos_weight=torch.tensor([3.0])),
        ),
        ("mse", {}, NUMBERS, nn.MSELoss()),
        ("l1", {"reduction": "sum"}, NUMBERS, nn.L1Loss(reduction="sum")),
        ("smooth_l1", {"beta": 0.5}, NUMBERS, nn.SmoothL1Loss(beta=0.5)),
        ("huber", {"delta": 0.3}, NUMBERS, nn.HuberLoss(delta=0.3)),
        ("poisson_nll", {}, NUMBERS, nn.PoissonNLLLoss()),
        ("soft_margin", {}, NUMBERS.sign(), nn.SoftMarginLoss()),
        ("kl_div", {}, NUMBERS, nn.KLDivLoss(reduction="batchmean")),
    ],
)
def test_a_loss_by_name_is_that_of_torch(name, params, target, torch_loss):
    torch.testing.assert_close(value(SCORES, target, name, **params), torch_loss(SCORES, target))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_loss_of_the_models_own_counts_by_rows(reduction):
    """Or as it is, if it is a sum."""
    criterion = build_criterion(recipe(loss("output", reduction=reduction)))
    rows, whole = torch.rand(6), {"target_0": CLASSES}
    of_rows = rows.mean if reduction == "mean" else rows.sum
    torch.testing.assert_close(criterion(of_rows(), whole), of_rows())
    shares = [
        criterion.share_of_batch(
            getattr(rows[first:last], reduction)(), {"target_0": CLASSES[first:last]}, whole
        )
        for first, last in part_bounds(6, 4)
    ]
    torch.testing.assert_close(sum(shares), of_rows())
    with pytest.raises(JobError, match=r"'output' is one that the model computes itself"):
        criterion(SCORES, whole)


def test_probabilities_are_compared_by_bce():
    shares = SCORES.sigmoid()
    torch.testing.assert_close(value(shares, NUMBERS, "bce"), nn.BCELoss()(shares, NUMBERS))


def test_kl_div_can_be_given_scores():
    target = NUMBERS.softmax(-1)
    expected = nn.KLDivLoss(reduction="batchmean")(SCORES.log_softmax(-1), target)
    torch.testing.assert_close(value(SCORES, target, "kl_div", logits=True), expected)


def test_classes_may_be_the_last_axis_or_the_second():
    scores = torch.randn(6, 7, 5)
    expected = nn.CrossEntropyLoss()(scores.transpose(1, 2), WORDS)
    torch.testing.assert_close(value(scores, WORDS, "cross_entropy"), expected)
    torch.testing.assert_close(value(scores.transpose(1, 2), WORDS, "cross_entropy"), expected)


def test_where_the_classes_could_be_either_axis_it_must_be_said():
    scores, words = torch.randn(6, 5, 5), torch.randint(0, 5, (6, 5))
    with pytest.raises(JobError, match="axis 1 or at axis 2: say class_axis"):
        value(scores, words, "cross_entropy")
    expected = nn.CrossEntropyLoss()(scores.transpose(1, 2), words)
    torch.testing.assert_close(value(scores, words, "cross_entropy", class_axis=-1), expected)


@pytest.mark.parametrize("axis", [0, -2, 2])
def test_shares_of_classes_are_not_taken_over_rows(axis):
    with pytest.raises(JobError, match=f"class_axis is {axis}: .* from 1 to 1"):
        value(SCORES, SCORES.softmax(-1), "cross_entropy", class_axis=axis)


def test_scores_that_do_not_suit_the_targets_are_refused_with_both_shapes():
    with pytest.raises(JobError, match=r"\[6, 5\] do not suit targets of shape \[6, 7\]"):
        value(SCORES, WORDS, "cross_entropy")


def test_small_types_of_targets_are_fine():
    expected = nn.CrossEntropyLoss()(SCORES, CLASSES.clamp(min=0))
    found = value(SCORES, CLASSES.clamp(min=0).to(torch.uint8), "cross_entropy")
    torch.testing.assert_close(found, expected)
    scores, many = torch.randn(4, 300), torch.tensor([156, 3, 255, 156])  # -100 is 156 in uint8
    expected = nn.CrossEntropyLoss()(scores, many)
    torch.testing.assert_close(value(scores, many.to(torch.uint8), "cross_entropy"), expected)


def test_a_single_output_is_compared_with_a_plain_number():
    """Where torch would compare every row with every other."""
    output, target = torch.randn(6, 1), torch.randn(6)
    torch.testing.assert_close(value(output, target, "mse"), nn.MSELoss()(output[:, 0], target))
    with pytest.raises(JobError, match=r"\[6, 5\] and the target \[6\]"):
        value(SCORES, target, "mse")


def test_a_batch_in_which_nothing_counts_has_no_loss_but_a_gradient():
    scores = SCORES.clone().requires_grad_()
    found = value(scores, torch.full((6,), -100), "cross_entropy")
    found.backward()
    assert float(found.detach()) == 0.0
    assert scores.grad is not None
    assert not scores.grad.any()


def test_losses_are_added_up_with_their_weights_and_outputs_are_found_by_their_path():
    both = recipe(
        loss("cross_entropy", output=("heads", 0)), loss("mse", "z", output=("value",), times=0.25)
    )
    outputs = {"heads": (SCORES, None), "value": NUMBERS}
    batch = {"target_0": CLASSES, "target_1": SCORES}
    expected = nn.CrossEntropyLoss()(SCORES, CLASSES) + 0.25 * nn.MSELoss()(NUMBERS, SCORES)
    torch.testing.assert_close(build_criterion(both)(outputs, batch), expected)


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ((), "the model's output is no tensor but a mapping with 'scores', 'more'"),
        (("score",), "the model's output has no 'score': it is a mapping with 'scores', 'more'"),
        (("more", 2), r"the model's output\['more'\] has no 2: it is a sequence of 1"),
        (("scores", "shape"), r"has no 'shape': it is a tensor of shape \[6, 5\]"),
        (("__class__",), "has no '__class__'"),
    ],
)
def test_a_path_that_leads_nowhere_says_what_there_is(path, complaint):
    criterion = build_criterion(recipe(loss("cross_entropy", output=path)))
    with pytest.raises(JobError, match=complaint):
        criterion({"scores": SCORES, "more": [SCORES]}, {"target_0": CLASSES})


@pytest.mark.parametrize("parts", [1, 2, 3, 6])
@pytest.mark.parametrize(
    "losses",
    [
        (loss("cross_entropy", times=2.0),),
        (loss("cross_entropy", reduction="sum"),),
        (loss("cross_entropy"), loss("mse", "z")),
    ],
)
def test_the_shares_of_parts_add_up_to_the_loss_of_the_batch(parts, losses):
    """Also where the masked targets are all in one part."""
    criterion = build_criterion(recipe(*losses))
    batch = {"target_0": torch.tensor([-100, -100, 3, 1, 4, 0]), "target_1": NUMBERS}
    share = PartLoss(criterion)
    total = 0.0
    for part, (start, stop) in enumerate(part_bounds(6, parts)):
        of = MicroBatch(
            batch=0,
            part=part,
            parts=parts,
            rows=stop - start,
            batch_rows=6,
            update=0,
            closes_update=False,
        )
        total += share(SCORES[start:stop], rows_of(batch, 6, start, stop), batch, of)
    torch.testing.assert_close(total, criterion(SCORES, batch))


def test_half_precision_is_summed_in_full():
    output = torch.full((4096,), 1.0, dtype=torch.bfloat16)
    found = value(output, torch.zeros(4096), "l1", reduction="sum")
    assert float(found) == 4096.0
