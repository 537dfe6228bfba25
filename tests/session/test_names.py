"""What people call losses, optimizers and schedules, and what they are in the registry."""

import functools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler

from ravnest.api.jobs import LossSpec, Named
from ravnest.errors import JobError
from ravnest.recipes.losses import LOSSES
from ravnest.recipes.optimizers import OPTIMIZERS
from ravnest.recipes.schedules import factors
from ravnest.session.names import loss_named, named, optimizer_named, schedule_named

LOSS_OBJECTS = [
    nn.CrossEntropyLoss(),
    nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]), label_smoothing=0.1),
    nn.CrossEntropyLoss(ignore_index=1, reduction="sum"),
    nn.NLLLoss(),
    nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 3.0, 2.0])),
    nn.MSELoss(),
    nn.L1Loss(reduction="sum"),
    nn.SmoothL1Loss(beta=0.5),
    nn.HuberLoss(delta=2.0),
    nn.PoissonNLLLoss(full=True),
    nn.SoftMarginLoss(),
    nn.KLDivLoss(reduction="batchmean", log_target=True),
]


@pytest.mark.parametrize("loss", LOSS_OBJECTS, ids=str)
def test_a_loss_of_torch_and_what_it_is_called_give_the_same_number(loss):
    torch.manual_seed(1)
    found = loss_named(loss)
    built = LOSSES[found.name].build(LOSSES.values(found))
    scores = torch.randn(6, 3)
    if found.name in ("cross_entropy", "nll"):
        target = torch.tensor([0, 1, 2, 2, 1, 0])
    else:
        target = torch.rand(6, 3)
    total = built.total(scores, target)
    is_sum = found.params.get("reduction") == "sum"
    mean = total if is_sum else total / built.count(scores, target)
    torch.testing.assert_close(mean, loss(scores, target))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("mse", Named(name="mse")),
        (F.cross_entropy, Named(name="cross_entropy")),
        (nn.L1Loss, Named(name="l1")),
        (("huber", {"delta": 2}), Named(name="huber", params={"delta": 2})),
        ({"name": "huber", "delta": 2}, Named(name="huber", params={"delta": 2})),
        (functools.partial(F.huber_loss, delta=2), Named(name="huber", params={"delta": 2})),
        (Named(name="l1"), Named(name="l1")),
        (
            ("cross_entropy", {"weight": np.array([1.0, 2.0]), "ignore_index": np.int64(1)}),
            Named(name="cross_entropy", params={"weight": [1.0, 2.0], "ignore_index": 1}),
        ),
    ],
)
def test_all_ways_to_say_a_loss(given, expected):
    assert loss_named(given) == expected
    assert LossSpec(name=expected.name, target={"field": "y"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (nn.CTCLoss(), r"the same as CTCLoss\(\); the names are bce, .*script"),
        (lambda outputs, labels: outputs.sum(), "the same as .*lambda"),
        ("cross_entrpy", "did you mean 'cross_entropy'"),
        (nn.MSELoss(reduction="none"), "'reduction' of the loss 'mse' is 'none'"),
        (nn.BCEWithLogitsLoss(weight=torch.ones(3)), "no parameter 'weight'"),
        (nn.BCEWithLogitsLoss(pos_weight=torch.ones(2, 2)), r"pos_weight has shape \[2, 2\]"),
        (nn.KLDivLoss(), "batchmean"),
        (7, "the same as 7"),
    ],
)
def test_a_loss_that_is_not_the_same_is_refused(given, message):
    with pytest.raises(JobError, match=message):
        loss_named(given)


def of_torch(name):
    return getattr(torch.optim, OPTIMIZERS[name].torch_name, None)


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if of_torch(name)])
def test_an_optimizer_of_torch_keeps_the_defaults_of_torch(name):
    """Also where the registry has others for those who say the name."""
    model = nn.Linear(3, 2)
    kind = of_torch(name)
    for given in (kind, kind(model.parameters())):
        found = optimizer_named(given, {}, model)
        assert found.name == name
        made = kind(model.parameters(), **OPTIMIZERS.values(found))
        assert made.defaults == kind(model.parameters()).defaults


def test_parameters_of_an_optimizer_come_from_everywhere():
    model = nn.Linear(3, 2)
    assert optimizer_named("sgd", {"lr": 0.5}).params == {"lr": 0.5}
    assert optimizer_named(functools.partial(torch.optim.SGD, lr=0.5), {}).params["lr"] == 0.5
    made = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.9)
    assert optimizer_named(made, {}, model).params["momentum"] == 0.9


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.optim.LBFGS, "the same as LBFGS"),
        (torch.optim.SGD(nn.Linear(3, 2).parameters()), "not made for all parameters"),
        (lambda model: torch.optim.SGD([{"params": [p]} for p in model.parameters()]), "2 groups"),
        (lambda model: torch.optim.SGD(model.parameters(), maximize=True), "maximize=True"),
        (
            lambda model: torch.optim.Adam(model.parameters(), decoupled_weight_decay=True),
            "decoupled_weight_decay=True",
        ),
        ("sdg", "did you mean 'sgd'"),
    ],
)
def test_an_optimizer_that_is_not_the_same_is_refused(given, message):
    model = nn.Linear(3, 2)
    is_made_here = callable(given) and not isinstance(given, type)
    with pytest.raises(JobError, match=message):
        optimizer_named(given(model) if is_made_here else given, {}, model)


SCHEDULES = [
    (lr_scheduler.StepLR, {"step_size": 2}),
    (lr_scheduler.MultiStepLR, {"milestones": [2, 4], "gamma": 0.5}),
    (lr_scheduler.ExponentialLR, {"gamma": 0.8}),
    (lr_scheduler.LinearLR, {"start_factor": 0.1, "total_iters": 4}),
    (lr_scheduler.LinearLR, {}),
    (lr_scheduler.PolynomialLR, {"total_iters": 5, "power": 2.0}),
    (lr_scheduler.CosineAnnealingWarmRestarts, {"T_0": 2, "T_mult": 2}),
]


@pytest.mark.parametrize(
    ("kind", "params"), SCHEDULES, ids=lambda one: getattr(one, "__name__", "")
)
def test_a_schedule_of_torch_goes_the_same_way(kind, params):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = kind(optimizer, **params)
    factor = factors(schedule_named((kind, params)), steps=8)
    for step in range(8):
        assert factor(step) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12)
        optimizer.step()
        scheduler.step()


def test_schedules_by_name_and_those_that_are_not_the_same():
    assert schedule_named(None) is None
    assert schedule_named("cosine") == Named(name="cosine")
    with pytest.raises(JobError, match=r"nothing like eta_min=0\.1"):
        schedule_named((lr_scheduler.CosineAnnealingWarmRestarts, {"T_0": 2, "eta_min": 0.1}))
    with pytest.raises(JobError, match="the names are constant"):
        schedule_named(lr_scheduler.OneCycleLR)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    with pytest.raises(JobError, match="give its class"):
        schedule_named(lr_scheduler.StepLR(optimizer, 2))


def test_other_things_have_names_only():
    assert named(("top_k", {"k": 3})) == Named(name="top_k", params={"k": 3})
    with pytest.raises(JobError, match="no name"):
        named(lambda outputs, labels: 0)
