"""Whole rounds in one process, with real tensors: against the plain weighted mean."""

import random

import pytest
import torch

from ravnest.errors import WireError
from ravnest.provider.averaging.exchange import CHUNK_BYTES, Exchange, Track
from ravnest.provider.averaging.fragments import Fragment, divided
from ravnest.provider.averaging.outer import Nesterov
from ravnest.provider.averaging.vectors import Layout
from ravnest.wire.codecs import codec_named

PARAMETERS = ("weight", "half", "exact", "wave")


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


def tracks(layout, held):
    vectors = layout.gather(held)
    return vectors, [Track(v, n) for v, n in zip(vectors, layout.trained(), strict=True)]


def exchange(ring, number, tracks, members, *about, chunk_bytes=CHUNK_BYTES, **more):
    for track in tracks:
        track.divide(len(members), chunk_bytes)
    return Exchange(ring, number, tracks, members, *about, **more)


def exchanged(exchanges, seed=0):
    """Let chunks travel in random order until all are done."""
    dice = random.Random(seed)
    links = [list(exchange.begin()) for exchange in exchanges]
    sent = 0
    while any(links):
        sender = dice.choice([k for k, link in enumerate(links) if link])
        message, payload = links[sender].pop(0)
        sent += payload.nbytes
        receiver = (sender + 1) % len(exchanges)
        copy = payload.clone() if isinstance(payload, torch.Tensor) else payload
        onward = exchanges[receiver].arrived(message, copy)
        if onward is not None:
            links[receiver].append(onward)
    assert all(exchange.is_done for exchange in exchanges)
    return sent


def play(members, weights, *, still, chunk_bytes=64, seed=0, parameters=PARAMETERS):
    """Returns every member's tensors after the round."""
    held = [tensors(seed + k) for k in range(members)]
    layout = Layout.of(held[0], parameters)
    everybody = tuple(range(members))
    found, exchanges = [], []
    for k in everybody:
        vectors, mine = tracks(layout, held[k])
        found.append(vectors)
        exchanges.append(
            exchange(3, 1, mine, everybody, weights, k, still=still, chunk_bytes=chunk_bytes)
        )
    rest = [layout.rest_of(vectors) for vectors in found]
    exchanged(exchanges, seed)
    for mine, vectors, before in zip(held, found, rest, strict=True):
        if still:
            layout.write(vectors, mine)
        else:
            layout.apply(vectors, before, mine)
    return held


def expected(members, weights, seed=0):
    """Of what has a mean."""
    share = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    given = [tensors(seed + k) for k in range(members)]
    found = {}
    for name, like in given[0].items():
        if name == "count":
            continue
        wide = torch.complex128 if like.is_complex() else torch.float64
        mean = sum(s * each[name].to(wide) for s, each in zip(share, given, strict=True))
        found[name] = mean.to(like.dtype)
    return found


@pytest.mark.parametrize("still", [True, False])
@pytest.mark.parametrize("weights", [[1.0, 1.0], [3.0, 1.0, 2.0], [1.0, 5.0, 1.0, 0.0, 2.0]])
def test_all_members_end_with_the_weighted_mean(weights, still):
    members = len(weights)
    wanted = expected(members, weights)
    for mine in play(members, weights, still=still):
        for name, value in wanted.items():
            loose = value.dtype is torch.bfloat16
            torch.testing.assert_close(
                mine[name], value, atol=2e-2 if loose else 1e-6, rtol=1e-2 if loose else 1e-6
            )


def test_the_last_round_leaves_no_difference_at_all():
    first, *others = play(4, [1.0, 2.0, 3.0, 4.0], still=True, seed=5)
    for other in others:
        assert all(torch.equal(first[name], other[name]) for name in first if name != "count")
        assert other["count"] != first["count"]


def test_a_chunk_of_another_size_is_refused():
    layout = Layout.of(tensors(0))
    one, two = (
        exchange(3, 1, tracks(layout, tensors(k))[1], (0, 1), [1.0, 1.0], k) for k in (0, 1)
    )
    message, payload = next(one.begin())
    with pytest.raises(WireError, match="belongs"):
        two.arrived(message, payload[1:])


def test_not_a_number_and_infinity_reach_everybody():
    held = [{"w": torch.tensor([1.0, float("nan"), 2.0, float("inf")])}, {"w": torch.zeros(4)}]
    layout = Layout.of(held[0])
    found = [tracks(layout, each) for each in held]
    exchanges = [
        exchange(0, 1, mine, (0, 1), [1.0, 1.0], k, still=True) for k, (_, mine) in enumerate(found)
    ]
    exchanged(exchanges)
    for vectors, _ in found:
        assert vectors.single.isnan().tolist() == [False, True, False, False]
        assert vectors.single[3] == float("inf")


def test_parameters_and_statistics_keep_what_they_have_learnt_meanwhile():
    held = [
        {
            "w": torch.tensor([1.0]),
            "mean": torch.tensor([1.0]),
            "var": torch.tensor([4.0, 1.0]),
            "count": torch.tensor(10),
            "seen": torch.tensor([True, False]),
            "byte": torch.tensor([250], dtype=torch.uint8),
            "mask": torch.tensor([0.0, -torch.inf]),
        },
        {
            "w": torch.tensor([3.0]),
            "mean": torch.tensor([3.0]),
            "var": torch.tensor([1.0, 1.0]),
            "count": torch.tensor(15),
            "seen": torch.tensor([True, True]),
            "byte": torch.tensor([255], dtype=torch.uint8),
            "mask": torch.tensor([0.0, -torch.inf]),
        },
    ]
    layout = Layout.of(held[0], {"w"})
    found = [tracks(layout, each) for each in held]
    before = layout.rest_of(found[0][0])
    exchanged([exchange(0, 1, mine, (0, 1), [1, 1], k) for k, (_, mine) in enumerate(found)])
    mine = held[0]
    mine["w"] += 0.5
    mine["mean"] += 2.0
    mine["var"] *= 0.25
    mine["count"] += 7
    mine["byte"] += 4
    layout.apply(found[0][0], before, mine)
    assert mine["w"].item() == 2.5
    assert mine["mean"].item() == 4.0
    assert mine["var"].tolist() == [0.0, 0.25]  # 1 - 1.5 would be no variance
    assert mine["count"].item() == 17, "whole numbers are this member's own"
    assert mine["seen"].tolist() == [True, False]
    assert mine["byte"].item() == 254
    assert mine["mask"].tolist() == [0.0, -torch.inf]


class Run:
    """Several rounds of one vector, with random learning in between; all in one process."""

    def __init__(self, members, *, codec=None, outer=None, elements=6000):
        torch.manual_seed(1)
        start = torch.randn(elements)
        self.members = tuple(range(members))
        self.values = [{"w": start.clone()} for _ in self.members]
        self.layout = Layout.of(self.values[0], {"w"})
        self.codec = codec
        self.sent = 0
        self.fragments = [
            Fragment.starting_from(self.layout, each, outer=outer) for each in self.values
        ]

    def learn(self, size=0.01):
        for each in self.values:
            each["w"] += size * torch.randn_like(each["w"])

    def round(self, number, *, still=False, weights=None):
        weights = weights or [1.0] * len(self.members)
        changes = len({fragment.base_id for fragment in self.fragments}) == 1
        found, exchanges = [], []
        for k in self.members:
            fragment = self.fragments[k]
            fragment.remember_for(self.codec)
            vectors = self.layout.gather(self.values[k])
            found.append(vectors)
            momentum = fragment.momenta[0] if fragment.momenta else None
            residual = fragment.residual.single if fragment.residual else None
            track = Track(vectors.single, self.layout.trained()[0], fragment.base.single, changes,
                          residual, momentum, None if still else self.codec)  # fmt: skip
            exchanges.append(
                exchange(0, number, [track], self.members, weights, k, still=still,
                         chunk_bytes=4096)
            )  # fmt: skip
        self.sent = exchanged(exchanges)
        for k in self.members:
            if still:
                self.layout.write(found[k], self.values[k])
            else:
                self.layout.apply(found[k], self.layout.rest_of(found[k]), self.values[k])
            self.fragments[k].completed(number, self.members, changes=changes)

    def mean(self):
        return torch.stack([each["w"].double() for each in self.values]).mean(0)


def test_changes_since_a_common_base_give_the_same_mean():
    run = Run(3)
    for number in range(1, 5):
        run.learn()
        wanted = run.mean()
        run.round(number)
        for each in run.values:
            torch.testing.assert_close(each["w"].double(), wanted, atol=1e-6, rtol=1e-6)
        bases = [fragment.base.single for fragment in run.fragments]
        assert all(torch.equal(base, bases[0]) for base in bases)


def test_a_member_that_missed_a_round_finds_back():
    run = Run(3)
    run.learn()
    run.fragments[1].failed()
    wanted = run.mean()
    run.round(1)
    torch.testing.assert_close(run.values[1]["w"].double(), wanted, atol=1e-6, rtol=1e-6)
    assert len({fragment.base_id for fragment in run.fragments}) == 1


@pytest.mark.parametrize("name", ["fp16", "bf16", "int8", "int4", "topk"])
@pytest.mark.parametrize("members", [2, 3])
def test_compressed_rounds_keep_the_members_together_and_lose_nothing_for_good(name, members):
    run = Run(members, codec=codec_named(name))
    exact = Run(members)
    for number in range(1, 41):
        seed = torch.initial_seed() + number
        for each in (run, exact):
            torch.manual_seed(seed)
            each.learn()
            each.round(number)
    assert run.sent < 0.6 * exact.sent
    bases = [fragment.base.single for fragment in run.fragments]
    assert all(torch.equal(base, bases[0]) for base in bases)
    # What is missing is exactly what the members still remember to send.
    residuals = [fragment.residual for fragment in run.fragments]
    remembered = sum(residual.single.double() for residual in residuals if residual is not None)
    loose = 1e-5 if residuals[0] is not None else 1e-3
    torch.testing.assert_close(run.mean() + remembered, exact.mean(), atol=loose, rtol=loose)
    moved = (exact.mean() - Run(members).mean()).norm()
    assert (run.mean() - exact.mean()).norm() < (0.6 if name == "topk" else 0.05) * moved
    run.round(41, still=True)
    if residuals[0] is not None:
        torch.testing.assert_close(run.mean(), exact.mean(), atol=1e-5, rtol=1e-5)
    assert all(torch.equal(each["w"], run.values[0]["w"]) for each in run.values)


def test_an_outer_optimizer_does_what_torch_does_on_the_mean_change():
    rule = Nesterov(lr=0.7, momentum=0.9)
    run = Run(3, outer=rule)
    reference = torch.nn.Parameter(run.values[0]["w"].clone())
    sgd = torch.optim.SGD([reference], lr=0.7, momentum=0.9, nesterov=True)
    for number in range(1, 6):
        run.learn()
        reference.grad = reference.detach() - run.mean().float()
        sgd.step()
        run.round(number, still=number == 5)
        for each in run.values:
            torch.testing.assert_close(each["w"], reference.detach(), atol=1e-5, rtol=1e-5)
    assert all(torch.equal(each["w"], run.values[0]["w"]) for each in run.values)


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 50])
def test_names_are_divided_into_runs_of_about_equal_size(parts):
    sizes = {f"t{k}": 10 + k % 3 for k in range(12)}
    found = divided(sizes, parts)
    assert [name for run in found for name in run] == list(sizes)
    assert len(found) == min(parts, 12)
    weights = [sum(sizes[name] for name in run) for run in found]
    assert max(weights) - min(weights) <= 24


def test_what_codecs_leave_out_does_not_go_through_the_outer_optimizer_again():
    run = Run(3, codec=codec_named("topk"), outer=Nesterov(0.7, 0.9), elements=4096)
    exact = Run(3, outer=Nesterov(0.7, 0.9), elements=4096)
    for number in range(1, 61):
        for each in (run, exact):
            torch.manual_seed(number)
            each.learn()
            each.round(number)
    assert run.mean().norm() < 1.5 * exact.mean().norm()


def test_a_member_that_weighs_nothing_keeps_what_it_still_has_to_send():
    run = Run(2, codec=codec_named("int8"))
    for fragment in run.fragments:
        fragment.remember_for(run.codec)
    run.fragments[0].residual.single.fill_(1.0)
    before = run.mean()
    run.round(1, weights=[0.0, 1.0])
    remembered = sum(fragment.residual.single.double() for fragment in run.fragments)
    torch.testing.assert_close(
        run.mean() - before + remembered, torch.ones_like(before), atol=1e-5, rtol=1e-5
    )


def test_a_packed_chunk_of_another_size_is_not_unpacked(monkeypatch):
    """A few megabytes may stand for gigabytes."""
    run = Run(2, codec=codec_named("topk"))
    layout, start = run.layout, run.values[0]
    two = [Track(layout.gather(start).single, 6000, run.fragments[0].base.single, changes=True)]
    receiver = exchange(0, 1, two, (0, 1), [1.0, 1.0], 1)
    sender = exchange(0, 1, [Track(torch.zeros(6000), 6000)], (0, 1), [1.0, 1.0], 0)
    message, _ = next(sender.begin())
    packed = codec_named("topk").pack(torch.randn(100_000))
    monkeypatch.setattr("ravnest.provider.averaging.exchange.unpack", None)
    with pytest.raises(WireError, match="belongs"):
        receiver.arrived(message, packed)
