"""Whole rounds in one process, with real tensors: against the plain weighted mean."""

import random

import pytest
import torch

from ravnest.errors import WireError
from ravnest.provider.averaging.exchange import Exchange
from ravnest.provider.averaging.vectors import Layout


def tensors(seed):
    torch.manual_seed(seed)
    return {
        "weight": torch.randn(7, 11),
        "half": torch.randn(5).to(torch.bfloat16),
        "exact": torch.randn(3, dtype=torch.float64),
        "wave": torch.randn(4, dtype=torch.complex64),
        "count": torch.tensor(10 * seed + 3),
        "nothing": torch.empty(0),
        "scale": torch.tensor(float(seed)),
    }


def play(members, weights, *, keep_mean, chunk_bytes=64, seed=0):
    """Returns every member's tensors after the round."""
    dice = random.Random(seed)
    held = [tensors(seed + k) for k in range(members)]
    layout = Layout.of(held[0])
    exchanges = [
        Exchange(3, 1, layout.gather(held[k]), k, weights, keep_mean=keep_mean,
                 chunk_bytes=chunk_bytes)
        for k in range(members)
    ]  # fmt: skip
    links = [list(exchange.begin()) for exchange in exchanges]
    while any(links):
        sender = dice.choice([k for k, link in enumerate(links) if link])
        message, payload = links[sender].pop(0)
        receiver = (sender + 1) % members
        onward = exchanges[receiver].arrived(message, payload.clone())
        if onward is not None:
            links[receiver].append(onward)
    assert all(exchange.is_done for exchange in exchanges)
    for mine, exchange in zip(held, exchanges, strict=True):
        if keep_mean:
            layout.write(exchange.outcome, mine)
        else:
            layout.add(exchange.outcome, mine)
    return held


def expected(members, weights, seed=0):
    share = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    given = [tensors(seed + k) for k in range(members)]
    found = {}
    for name, like in given[0].items():
        wide = torch.complex128 if like.is_complex() else torch.float64
        mean = sum(s * each[name].to(wide) for s, each in zip(share, given, strict=True))
        found[name] = (mean if like.is_floating_point() or like.is_complex() else mean.round()).to(
            like.dtype
        )
    return found


@pytest.mark.parametrize("keep_mean", [True, False])
@pytest.mark.parametrize("weights", [[1.0, 1.0], [3.0, 1.0, 2.0], [1.0, 5.0, 1.0, 0.0, 2.0]])
def test_all_members_end_with_the_weighted_mean(weights, keep_mean):
    members = len(weights)
    wanted = expected(members, weights)
    for mine in play(members, weights, keep_mean=keep_mean):
        for name, value in wanted.items():
            loose = value.dtype is torch.bfloat16
            torch.testing.assert_close(
                mine[name], value, atol=2e-2 if loose else 1e-6, rtol=1e-2 if loose else 1e-6
            )


def test_the_last_round_leaves_no_difference_at_all():
    first, *others = play(4, [1.0, 2.0, 3.0, 4.0], keep_mean=True, seed=5)
    for other in others:
        assert all(torch.equal(first[name], other[name]) for name in first)


def test_a_chunk_of_another_size_is_refused():
    layout = Layout.of(tensors(0))
    one, two = (Exchange(3, 1, layout.gather(tensors(k)), k, [1.0, 1.0]) for k in (0, 1))
    message, payload = next(one.begin())
    with pytest.raises(WireError, match="belongs"):
        two.arrived(message, payload[1:])


def test_not_a_number_and_infinity_reach_everybody():
    held = [{"w": torch.tensor([1.0, float("nan"), 2.0, float("inf")])}, {"w": torch.zeros(4)}]
    layout = Layout.of(held[0])
    a, b = (Exchange(0, 1, layout.gather(held[k]), k, [1.0, 1.0], keep_mean=True) for k in (0, 1))
    for source, target in ((a, b), (b, a)):
        for message, payload in list(source.begin()):
            onward = target.arrived(message, payload)
            assert onward is not None
            assert source.arrived(*onward) is None
    for exchange in (a, b):
        found = exchange.outcome.single
        assert found.isnan().tolist() == [False, True, False, False]
        assert found[3] == float("inf")
