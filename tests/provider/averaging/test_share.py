"""What a stage gives to its rings and takes from them."""

import copy
from collections import Counter

import pytest
import torch
from torch import nn

from ravnest.provider.averaging.fragments import fragments_of
from ravnest.provider.averaging.settings import Averaging
from ravnest.provider.averaging.share import Outcome, Rules, Share
from ravnest.provider.averaging.vectors import Layout


class Stage:
    def __init__(self, **parameters):
        self.parameters = parameters

    def tensors(self):
        return self.parameters


def averaged_state(shape, state, difference=4.0, kind=torch.optim.SGD, **settings):
    """An optimizer's state of one parameter after a round that adds this to what it averages."""
    weights = {"w": nn.Parameter(torch.zeros(shape))}
    optimizer = kind(weights.values(), lr=0.1, **settings)
    optimizer.state[weights["w"]] = state = copy.deepcopy(state)
    share = Share(
        Stage(**weights), weights, lambda: optimizer, Rules(1, blocking=False), average_optim=True
    )
    layout = Layout.of(weights, weights)
    share.add_ring(0, [layout])
    facts, snapshot = share.facts(0, (0,)), share.snapshot(0, (0,))
    rest = (layout.rest_of(snapshot.vectors[0]),)
    for vector in snapshot.moments[0]:
        vector.fill_(difference)
    parts = ((layout, snapshot.vectors[0]),)
    moments = ((facts.moments[0], snapshot.moments[0]),)
    share.averaged(Outcome(0, (0,), parts, rest, moments, still=False, samples=1.0, updates=2))
    share.apply()
    return {kind: float(torch.as_tensor(value).sum()) for kind, value in state.items()}


def test_squares_do_not_vanish_by_what_others_say():
    """Adam divides by their root: one step after that was two hundred times as long, and many
    rounds that each left a share of them made steps as long as others liked."""
    state = {"exp_avg": torch.ones(1), "exp_avg_sq": torch.ones(1)}
    found = averaged_state((1,), state, -40.0, torch.optim.Adam, betas=(0.9, 0.5))
    assert found == {"exp_avg": 0.0, "exp_avg_sq": 0.25}, "as after two updates without gradients"
    state = {"square_avg": torch.ones(1)}
    found = averaged_state((1,), state, -40.0, torch.optim.RMSprop, alpha=0.5)
    assert found == {"square_avg": 0.25}
    state = {"sum": torch.ones(1)}
    found = averaged_state((1,), state, -40.0, torch.optim.Adagrad)
    assert found == {"sum": 1.0}, "it never forgets"


STATES = {
    "as usual": ((1,), {"exp_avg": torch.ones(1), "step": torch.ones(())}, {"exp_avg": 5}),
    "a key with a slash": ((1,), {"mom/x": torch.ones(1)}, {"mom/x": 5}),
    "keys of several types": (
        (1,),
        {"b": torch.ones(1), 0: torch.ones(1), None: 3},
        {"b": 5, 0: 5},
    ),
    "a scalar": ((), {"exp_avg": torch.ones(()), "step": torch.ones(())}, {"exp_avg": 5}),
    "a counter by another name": ((1,), {"sum": torch.ones(1), "n": torch.ones(())}, {"sum": 5}),
    "a counter in a vector": ((1,), {"sum": torch.ones(1), "step": torch.ones(1)}, {"sum": 5}),
    "factors": ((2, 3), {"row": torch.zeros(2, 1), "col": torch.zeros(3)}, {"row": 8, "col": 12}),
}


@pytest.mark.parametrize(("shape", "state", "changed"), STATES.values(), ids=list(STATES))
def test_an_optimizers_state_is_averaged_but_for_its_counters(shape, state, changed):
    before = {kind: float(torch.as_tensor(value).sum()) for kind, value in state.items()}
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
