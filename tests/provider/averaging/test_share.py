"""What a stage gives to its rings and takes from them."""

import copy
import math
from collections import Counter

import pytest
import torch
from torch import nn

from ravnest.provider.averaging.fragments import fragments_of
from ravnest.provider.averaging.settings import Averaging
from ravnest.provider.averaging.share import Outcome, Rules, Share
from ravnest.provider.averaging.vectors import Layout
from ravnest.provider.compute.optimizers import Muon


class Stage:
    def __init__(self, **parameters):
        self.parameters = parameters

    def tensors(self):
        return self.parameters


def averaged_state(
    shape, state, difference=4.0, kind=torch.optim.SGD, still=False, updates=2, **settings
):
    """An optimizer's state of one parameter after a round that adds this to what it averages, or
    puts this in its place."""
    weights = {"w": nn.Parameter(torch.zeros(shape))}
    optimizer = kind(weights.values(), lr=0.1, **settings)
    optimizer.state[weights["w"]] = state = copy.deepcopy(state)
    share = share_of(weights, optimizer)
    averaged(share, difference, still, updates)
    return {kind: float(torch.as_tensor(value).sum()) for kind, value in state.items()}


def share_of(weights, optimizer):
    share = Share(
        Stage(**weights), weights, lambda: optimizer, Rules(1, blocking=False), average_optim=True
    )
    share.add_ring(0, [Layout.of(weights, weights)])
    return share


def averaged(share, value, still, updates):
    """A round that changes no weights, and says this of the optimizer's state."""
    (layout,) = share._rings[0].layouts
    facts, snapshot = share.facts(0, (0,)), share.snapshot(0, (0,))
    rest = (layout.rest_of(snapshot.vectors[0]),)
    for vector in snapshot.moments[0]:
        vector.fill_(value)
    for vector in () if still else snapshot.vectors[0]:
        vector.zero_()
    parts = ((layout, snapshot.vectors[0]),)
    moments = ((facts.moments[0], snapshot.moments[0]),)
    share.averaged(Outcome(0, (0,), parts, rest, moments, still, samples=1.0, updates=updates))
    share.apply()


@pytest.mark.parametrize("still", [False, True])
def test_squares_do_not_vanish_by_what_others_say(still):
    """Adam divides by their root: one step after that was two hundred times as long, and many
    rounds that each left a share of them made steps as long as others liked."""
    state = {"exp_avg": torch.ones(1), "exp_avg_sq": torch.ones(1)}
    found = averaged_state((1,), state, -40.0, torch.optim.Adam, still, betas=(0.9, 0.5))
    assert found == {"exp_avg": 1.0, "exp_avg_sq": 0.25}, "as after two updates without gradients"
    state = {"square_avg": torch.ones(1)}
    found = averaged_state((1,), state, -40.0, torch.optim.RMSprop, still, alpha=0.5)
    assert found == {"square_avg": 0.25}
    found = averaged_state((1,), state, -40.0, torch.optim.RMSprop, still, alpha=0.5, centered=True)
    assert found == {"square_avg": 1.0}, "what is taken off them would be more"
    state = {"sum": torch.ones(1)}
    found = averaged_state((1,), state, -40.0, torch.optim.Adagrad, still)
    assert found == {"sum": 1.0}, "it never forgets"


OPTIMIZERS = {
    "adam": (torch.optim.Adam, {}),
    "amsgrad": (torch.optim.Adam, {"amsgrad": True}),
    "adamw": (torch.optim.AdamW, {}),
    "nadam": (torch.optim.NAdam, {}),
    "adamax": (torch.optim.Adamax, {}),
    "sgd": (torch.optim.SGD, {"momentum": 0.9}),
    "adadelta": (torch.optim.Adadelta, {"lr": 1.0}),
    "rmsprop": (torch.optim.RMSprop, {"momentum": 0.9}),
    "centred": (torch.optim.RMSprop, {"centered": True}),
    "adagrad": (torch.optim.Adagrad, {}),
    "adafactor": (torch.optim.Adafactor, {}),
    "muon": (Muon, {}),
}


def moved(kind, settings, value, still, every=4, rounds=25):
    """How far each period goes, where each round says this of the optimizer's state."""
    torch.manual_seed(0)
    weights = {"a": nn.Parameter(torch.randn(8, 6)), "b": nn.Parameter(torch.randn(6))}
    optimizer = kind(weights.values(), **{"lr": 0.01, **settings})
    share, found = share_of(weights, optimizer), []
    for turn in range(rounds):
        before = torch.cat([weight.detach().flatten() for weight in weights.values()])
        for _ in range(every):
            for weight in weights.values():
                weight.grad = torch.randn(weight.shape)
            optimizer.step()
        after = torch.cat([weight.detach().flatten() for weight in weights.values()])
        found.append(float((after - before).norm()))
        if value is not None:
            averaged(share, value, still, every * (turn + 1))
    return found


@pytest.mark.parametrize("still", [False, True])
@pytest.mark.parametrize("value", [-1e30, 0.0, 1e6, 1e30])
@pytest.mark.parametrize(("kind", "settings"), OPTIMIZERS.values(), ids=list(OPTIMIZERS))
def test_no_step_is_made_long_by_what_others_say_of_an_optimizers_state(
    kind, settings, value, still
):
    """Over periods, in which it learns on from what each round has left of its state. Momentum that
    others had said went into the weights as it was, and an accumulated step that was negative made
    NaN of them."""
    honest, led = (moved(kind, settings, said, still) for said in (None, value))
    assert all(math.isfinite(length) for length in led)
    assert all(now < 2 * usual for usual, now in zip(honest, led, strict=True))


STATES = {
    "as usual": (
        (1,),
        {"exp_avg": torch.ones(1), "exp_avg_sq": torch.ones(1), "step": torch.ones(())},
        {"exp_avg_sq": 5},
    ),
    "momentum": ((1,), {"momentum_buffer": torch.ones(1), "mom/x": torch.ones(1)}, {}),
    "lengths of steps": (
        (1,),
        {"square_avg": torch.ones(1), "acc_delta": torch.ones(1)},
        {"square_avg": 5},
    ),
    "keys of several types": ((1,), {"sum": torch.ones(1), 0: torch.ones(1), None: 3}, {"sum": 5}),
    "a scalar": (
        (),
        {"exp_avg_sq": torch.ones(()), "mu_product": torch.ones(()), "step": torch.ones(())},
        {"exp_avg_sq": 5},
    ),
    "a number": ((1,), {"sum": 3.0, "exp_inf": torch.ones(1)}, {"exp_inf": 5}),
    "factors": (
        (2, 3),
        {"row_var": torch.zeros(2, 1), "col_var": torch.zeros(3)},
        {"row_var": 8, "col_var": 12},
    ),
}


@pytest.mark.parametrize(("shape", "state", "changed"), STATES.values(), ids=list(STATES))
def test_of_an_optimizers_state_what_steps_are_divided_by_is_averaged(shape, state, changed):
    before = {kind: float(torch.as_tensor(v).sum()) for kind, v in state.items()}
    assert averaged_state(shape, state) == before | changed


class Ears:
    """Of which every round that is due is made at once."""

    def __init__(self, share):
        self.share = share
        self.rounds = Counter()

    def due(self, ring):
        self.rounds[ring] += 1
        self.share.averaged(Outcome(ring, (), (), (), (), False, 0.0, self.share._updates))


def test_the_period_of_a_ring_is_divided_by_the_fragments_it_has():
    weights = {name: nn.Parameter(torch.zeros(2)) for name in "abcde"}
    share = Share(Stage(**weights), weights, lambda: None, Rules(12, blocking=False))
    share.ears = Ears(share)
    averaging = Averaging(fragments=4)
    for ring, names in enumerate(("a", "bcde")):
        tensors = {name: weights[name] for name in names}
        fragments = fragments_of(tensors, weights, averaging)
        share.add_ring(ring, [fragment.layout for fragment in fragments])
    for update in range(1, 121):
        share.updated(update)
        share.apply()
    assert share.ears.rounds == {0: 10, 1: 40}


def test_an_epoch_ends_with_a_round_of_every_fragment():
    weights = {name: nn.Parameter(torch.zeros(2)) for name in "abcd"}
    share = Share(Stage(**weights), weights, lambda: None, Rules(None, blocking=False))
    share.ears = Ears(share)
    fragments = fragments_of(weights, weights, Averaging(fragments=4))
    share.add_ring(0, [fragment.layout for fragment in fragments])
    for epoch in range(1, 3):
        for update in range(10):
            share.updated(10 * (epoch - 1) + update + 1)
        share.epoch_ended()
        while share.has_news:
            share.apply()
        assert share.ears.rounds == {0: 4 * epoch}
