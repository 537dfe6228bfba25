"""What the thread does beside its rings."""

import logging
import math
import queue

import pytest
import torch
from torch import nn

from ravnest.errors import PeerError, WireError
from ravnest.provider.averaging.averager import Averager
from ravnest.provider.averaging.ring import RoundReport
from ravnest.provider.averaging.settings import Averaging
from ravnest.provider.averaging.share import Outcome, Rules, Share
from ravnest.provider.averaging.wishes import MISMATCH
from ravnest.provider.compression import Compression
from ravnest.provider.document import RingDocument, RingMember
from ravnest.wire.encoding import Parcel
from ravnest.wire.link import Arrived, Lost
from ravnest.wire.messages import RingCancel, RingChunk, RingGone, RingGot
from ravnest.wire.peers import Peer

NAMES = tuple("abcdefghij")
MEMBERS = (RingMember("node_0", "", 0), RingMember("node_1", "", 1))


class Stage:
    """Ten million weights."""

    def __init__(self):
        self.weights = {name: nn.Parameter(torch.zeros(1_000_000)) for name in NAMES}

    def tensors(self):
        return self.weights


class LinkTo:
    """What is said over a link that leads nowhere."""

    def __init__(self, node, met=False):
        self.met = met
        self.peer = Peer(node, "")
        self.sent = []
        self.needed = True
        self.within_s = None

    def send(self, parcel):
        self.sent.append(parcel)

    def set_needed(self, needed):
        self.needed = needed

    def hurry(self, within_s):
        self.within_s = within_s

    def consumed(self):
        pass


def averager(
    rings=None, tell_cluster=lambda cluster: None, fail=pytest.fail, codec=None, **settings
):
    stage = Stage()
    share = Share(stage, stage.weights, lambda: None, Rules(1, blocking=False))
    return Averager(
        rings or [RingDocument(0, NAMES, MEMBERS, 0)],
        share,
        Averaging(**settings),
        queue.SimpleQueue(),
        reach=LinkTo,
        on_compute_thread=lambda work: None,
        averaged=lambda outcome: None,
        fail=fail,
        tell_cluster=tell_cluster,
        tell_round=lambda ring: None,
        compression=Compression(rings=codec),
    )


def chunk(ring):
    message = RingChunk(ring=ring, round=1, vector=0, is_mean=False, segment=0, chunk=0, passed=1)
    return Parcel(message, (torch.zeros(4),))


def test_chunks_of_a_round_that_was_given_up_are_not_sent_any_more():
    some = averager(most_mbps=1e-6)
    got = Parcel(RingGot(ring=0, round=1))
    for parcel in (chunk(0), got, chunk(1)):
        some._send("node_1", parcel)
    some._skipped(0, False)
    assert [parcel.message for _, parcel in some._outbox] == [got.message, chunk(1).message]


def test_a_limit_that_lets_no_chunk_through_in_time_is_warned_of(caplog):
    with caplog.at_level(logging.WARNING):
        averager(most_mbps=0.01, round_s=600)
    assert "a chunk of 2.1 MB takes 1678 s at 0.01 Mbit/s" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        averager(most_mbps=0.1, round_s=600)
        averager()
    assert "Mbit/s" not in caplog.text


@pytest.mark.parametrize("says_goodbye", [True, False])
def test_who_belongs_to_a_cluster_that_has_left_is_not_waited_for(says_goodbye):
    """One provider of this cluster has heard or seen its end; the partner of another never came
    up."""
    told = []
    some = averager(two_rings(3), told.append)
    link = LinkTo("node_1")
    goodbye = Parcel(RingGone(ring=0, member=1, by=1, after=0))
    for _ in range(2):
        some._inbox.put(Arrived(link, goodbye) if says_goodbye else Lost(link, PeerError("gone")))
        some._take()
    assert told == [1]
    assert [ring.others for ring in some._rings.values()] == [["node_2"], ["node_12"]]


def test_a_ring_that_is_over_ends_no_run_when_a_cluster_leaves():
    """The ring gave nobody up any more, and was asked to for ever."""
    some = averager(two_rings(3))
    some._rings[1].leave()
    some._left(1)
    assert [ring.neighbours for ring in some._rings.values()] == [["node_2"], []]


def test_a_member_that_is_needed_only_when_there_is_no_more_time_must_hurry_too():
    some = averager(two_rings(3))
    some._link("node_1")
    some.hurry(7.0)
    some._take()
    assert [some._link(node).within_s for node in ("node_1", "node_2")] == [7.0, 7.0]


def two_rings(clusters):
    """A provider of cluster 0 is in both; its partners are different providers of each cluster."""
    return [
        RingDocument(
            ring,
            NAMES[5 * ring : 5 * ring + 5],
            (
                RingMember("node_0", "", 0),
                *(RingMember(f"node_{10 * ring + c}", "", c) for c in range(1, clusters)),
            ),
            0,
        )
        for ring in range(2)
    ]


@pytest.mark.parametrize("clusters", [2, 3, 4, 5])
def test_who_is_not_ones_neighbour_is_for_others_to_judge(clusters):
    """Cluster 2 has left a ring; its member of the other one may live, and be told so by those who
    have a link to it."""
    some = averager(two_rings(clusters))
    some._each(some._connect)
    for node in some._links:
        some._up.add(node)
    some._left(min(2, clusters - 1))
    assert all(len(ring.others) == clusters - 1 for ring in some._rings.values())


@pytest.mark.parametrize("clusters", [2, 3, 5])
@pytest.mark.parametrize(
    "how", ["given up", "all others lost", "told by its pipeline", "told of other tensors"]
)
def test_a_cluster_that_is_out_of_one_ring_leaves_all(clusters, how):
    """Otherwise some of its stages would be averaged with others, and some not."""
    told = []
    some = averager(two_rings(clusters), told.append)
    some._each(some._connect)
    if how == "given up":
        for giver in range(1, clusters):
            gone = RingGone(ring=0, member=0, by=giver, after=0)
            some._inbox.put(Arrived(some._link(f"node_{giver}"), Parcel(gone)))
            some._take()
    elif how == "all others lost":
        for other in range(1, clusters):
            some._lost(f"node_{other}", "its link is broken")
    elif how == "told of other tensors":
        ring = some._rings[0]
        ring.last = RoundReport(1, clusters, 1.0, 1.0, 1)
        ring.due()
        off = RingCancel(ring=0, round=ring._round.number, reason=MISMATCH)
        some._inbox.put(Arrived(some._link("node_1"), Parcel(off)))
        some._take()
    else:
        some.cluster_left(0)
    while not some._inbox.empty():
        some._take()
    assert all(ring._roll.is_over for ring in some._rings.values())
    assert told.count(0) >= 1
    neighbour = some._links["node_11"]
    goodbyes = [parcel.message for parcel in neighbour.sent]
    assert RingGone(ring=1, member=0, by=0, after=0) in goodbyes


@pytest.mark.parametrize("fragments", [1, 4])
@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize(
    ("vain", "rounds", "is_out"), [(8, 8, True), (100, 7, False), (7, 100, False), (0, 0, False)]
)
def test_a_cluster_of_which_one_ring_goes_on_without_another_leaves_all(
    vain, rounds, is_out, here, fragments
):
    """A member that cancelled each round of one ring made a model of stages that were averaged and
    stages that were not. A ring that waits long for one member is none such, nor a short trouble in
    which rounds fail one after the other."""
    told = []
    some = averager(two_rings(3), told.append, fragments=fragments)
    some._each(some._connect)
    other = 1 if here else 7  # which no provider but another one of this cluster has
    for _ in range(vain):
        some._skipped(0, False)
    for _ in range(rounds * fragments):
        some._apply(outcome(other)) if here else some.ring_went_on(other)
    while not some._inbox.empty():
        some._take()
    assert [ring._roll.is_over for ring in some._rings.values()] == [is_out] * 2
    assert told == [0] * is_out


def outcome(ring):
    return Outcome(ring, (), (), (), (), still=False, samples=0.0, updates=0)


def test_deadlines_are_kept_while_there_is_always_something_to_do():
    """The others do not answer, and another ring keeps the thread busy."""
    some = averager(two_rings(2), round_s=1e-9)
    some._rings[0].due()
    number = some._rings[0]._round.number
    for _ in range(2):
        some._inbox.put(lambda: None)
    some._take()
    assert not some._inbox.empty()
    assert some._rings[0]._round.number > number  # that one was given up


ENDLESS = {
    "for a call": ({"wait_s": math.inf}, 1, Averager.ended),
    "for a call, nearly": ({"wait_s": 1e300}, 1, Averager.ended),
    "for a round": ({"round_s": math.inf}, 0, lambda some: some.due(0)),
    "for its turn to send": ({"most_mbps": 1e-300}, 1, lambda some: some.due(0)),
}


@pytest.mark.parametrize(("settings", "place", "begin"), ENDLESS.values(), ids=list(ENDLESS))
def test_a_wait_may_be_without_end(settings, place, begin):
    failures = []
    rings = [RingDocument(0, NAMES, MEMBERS, place)]
    some = averager(rings, fail=failures.append, **settings)
    for _ in range(2):
        some._send("node_0", chunk(0))
    some.start()
    begin(some)
    some.stop()
    assert failures == []


def test_a_member_that_says_goodbye_is_not_waited_for():
    leaving, staying = averager([RingDocument(0, NAMES, MEMBERS, 1)]), averager()
    leaving._leave()
    (goodbye,) = leaving._links["node_0"].sent
    link = staying._link("node_1")
    staying._arrived(link, goodbye)
    assert not link.needed


@pytest.mark.parametrize("error", [KeyError, WireError])
def test_what_others_say_is_no_error_of_this_side(error, caplog):
    """Whatever comes of it here: the member is given up, and the round is off."""
    caplog.set_level(logging.WARNING)
    some = averager(two_rings(3))
    spoilt = []

    def heard(node, parcel):
        raise error(node)

    some._rings[0].heard = heard
    some._rings[0].spoilt = lambda number, reason: spoilt.append(number)
    some._inbox.put(Arrived(LinkTo("node_1"), Parcel(RingGot(ring=0, round=1))))
    some._take()
    assert "goes on without node_1: it sent something unusable" in caplog.text
    assert len(spoilt) == 1
    assert some._rings[0].others == ["node_2"]


def test_a_goodbye_in_the_name_of_this_member_says_nothing():
    """It made the whole cluster go on alone."""
    told = []
    some = averager(two_rings(3), told.append)
    goodbye = Parcel(RingGone(ring=0, member=0, by=0, after=0))
    some._inbox.put(Arrived(LinkTo("node_1"), goodbye))
    some._take()
    assert not told
    assert some._rings[0].others == ["node_1", "node_2"]


def test_clusters_agree_on_a_codec():
    """How much a chunk may be longer follows from it."""
    same = {averager(codec=codec)._rings[0]._agreement for codec in (None, "auto", "int8", "topk")}
    assert len(same) == 4
    allowed = averager(codec="auto")._rings[0]._testimony._codec
    assert allowed == "int8", "what a slow link turns to"
