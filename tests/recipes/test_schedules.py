"""Schedules are those of torch where torch has them, and go on where an earlier run has ended."""

import pytest
import torch
from samples_of_recipes import named
from torch.optim import lr_scheduler as of_torch

from ravnest.errors import JobError
from ravnest.recipes.optimizers import OPTIMIZERS, build_optimizer, optimizer_memory
from ravnest.recipes.schedules import SCHEDULES, build_schedule, factors

STEPS = 20
RATE = 0.5


def rates(make, steps=STEPS):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=RATE)
    scheduler = make(optimizer)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize(
    ("schedule", "make"),
    [
        (named("step", step_size=3, gamma=0.5), lambda o: of_torch.StepLR(o, 3, 0.5)),
        (
            named("multistep", milestones=[2, 9], gamma=0.3),
            lambda o: of_torch.MultiStepLR(o, [2, 9], 0.3),
        ),
        (named("exponential", gamma=0.9), lambda o: of_torch.ExponentialLR(o, 0.9)),
        (named("cosine"), lambda o: of_torch.CosineAnnealingLR(o, STEPS)),
        (
            named("cosine_restarts", period=3),
            lambda o: of_torch.CosineAnnealingWarmRestarts(o, 3),
        ),
        (
            named("cosine_restarts", period=3, growth=2),
            lambda o: of_torch.CosineAnnealingWarmRestarts(o, 3, 2),
        ),
        (
            named("linear", start=0.25, end=0.75, steps=8),
            lambda o: of_torch.LinearLR(o, 0.25, 0.75, 8),
        ),
        (named("polynomial", power=2), lambda o: of_torch.PolynomialLR(o, STEPS, 2.0)),
        (
            named("one_cycle"),
            lambda o: of_torch.OneCycleLR(o, RATE, total_steps=STEPS, cycle_momentum=False),
        ),
    ],
)
def test_a_schedule_by_name_is_that_of_torch(schedule, make):
    steps = STEPS - 1  # torch's own cycle ends with an error after its last step
    found = rates(build_schedule(schedule, steps=STEPS), steps)
    assert found == pytest.approx(rates(make, steps), rel=1e-6)


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_a_run_that_follows_another_goes_on_with_its_rates(name):
    needed = {"step_size": 4, "milestones": [3, 9], "gamma": 0.8, "period": 6, "warmup": 5}
    params = {key: needed[key] for key in SCHEDULES[name].params if key in needed}
    schedule = named(name, **params)
    whole = rates(build_schedule(schedule, steps=STEPS))
    rest = rates(build_schedule(schedule, steps=STEPS, done=7), STEPS - 7)
    assert rest == pytest.approx(whole[7:])
    if name != "constant":
        assert len(set(whole)) > 1


@pytest.mark.parametrize("name", ["warmup_cosine", "warmup_linear", "inverse_sqrt"])
def test_a_warm_up_begins_above_nothing_rises_and_falls(name):
    factor = factors(named(name, warmup=4), STEPS)
    found = [factor(step) for step in range(STEPS)]
    assert found[:4] == [0.25, 0.5, 0.75, 1.0]
    assert found[4:] == sorted(found[4:], reverse=True)
    assert found[-1] < found[4] <= 1.0


@pytest.mark.parametrize("name", ["cosine", "linear", "warmup_cosine", "polynomial"])
def test_after_its_end_a_schedule_stays_where_it_is(name):
    params = {"warmup": 2} if name.startswith("warmup") else {}
    factor = factors(named(name, **params), STEPS)
    assert factor(STEPS) == factor(STEPS + 50) == pytest.approx(0.0)


def test_a_cycle_may_begin_at_its_top():
    cycle = factors(named("one_cycle", rise=0.1), 10)
    rates = [cycle(step) for step in range(10)]
    assert rates[0] == 1.0
    assert rates == sorted(rates, reverse=True)


def test_a_schedule_over_nothing_is_refused():
    with pytest.raises(JobError, match="0 steps"):
        factors(named("cosine"), 0)


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_every_optimizer_makes_a_step(name):
    from ravnest.provider.compute.optimizers import optimizer_named

    weight = torch.nn.Parameter(torch.ones(3, 2))
    factory, params = build_optimizer(named(name))
    optimizer = optimizer_named(factory)([weight], **params)
    (weight**2).sum().backward()
    optimizer.step()
    assert float(weight.detach().max()) < 1.0


@pytest.mark.parametrize(
    ("optimizer", "copies"),
    [
        (named("sgd"), 0),
        (named("sgd", momentum=0.9), 1),
        (named("adam"), 2),
        (named("adamw", amsgrad=True), 3),
        (named("rmsprop"), 1),
        (named("rmsprop", momentum=0.9, centered=True), 3),
        (named("adagrad"), 1),
        (named("adadelta"), 2),
        (named("adamax"), 2),
        (named("nadam"), 2),
        (named("radam"), 2),
    ],
)
def test_the_memory_of_an_optimizer_is_what_it_keeps(optimizer, copies):
    weight = torch.nn.Parameter(torch.ones(30, 20))
    factory, params = build_optimizer(optimizer)
    made = factory([weight], **params)
    (weight**2).sum().backward()
    made.step()
    kept = sum(value.numel() for value in made.state[weight].values() if value.dim())
    assert optimizer_memory(optimizer) == copies == kept / weight.numel()
