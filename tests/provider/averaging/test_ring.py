"""A member's place in a ring, told things that an honest leader would not say."""

import pytest
import torch

from ravnest.errors import RunError, WireError
from ravnest.provider.averaging.fragments import fragments_of
from ravnest.provider.averaging.ring import RingPlace, Surroundings
from ravnest.provider.averaging.settings import Averaging
from ravnest.provider.averaging.share import Facts, Snapshot
from ravnest.provider.document import RingDocument, RingMember
from ravnest.wire.codecs import codec_named
from ravnest.wire.encoding import Parcel
from ravnest.wire.messages import (
    RingBegin,
    RingCall,
    RingCancel,
    RingChunk,
    RingGone,
    RingPledge,
    RingShare,
)

MEMBERS = (RingMember("node_0", "", 0), RingMember("node_1", "", 1))


def called(codec):
    """The second of two members, with its snapshot taken; and what it has sent."""
    tensors = {"w": torch.randn(6)}
    fragments = fragments_of(tensors, {"w"}, Averaging())
    asked, sent = [], []
    place = RingPlace(
        RingDocument(0, ("w",), MEMBERS, 1),
        fragments,
        Surroundings(
            send=lambda node, parcel: sent.append(parcel.message),
            take_snapshot=lambda ring, number, some: asked.append(number),
            apply=lambda outcome: None,
            skipped=lambda ring, is_refused: None,
            released=lambda ring, last: None,
            cut_off=lambda: None,
            codec_for=lambda node: None if codec is None else codec_named(codec),
        ),
        round_s=600,
        wait_s=600,
    )
    leader = (RingShare(member=0, weight=1.0, rows=1.0, layout=1, moments=0, base=0),)
    call = RingCall(ring=0, round=2, leader=0, fragment=0, shares=leader, still=False, last=False)
    place.heard("node_0", Parcel(call))
    place.snapshot_begun(asked[0], Facts(1.0, 1.0, 1, ()))
    place.snapshot_taken(asked[0], Snapshot((fragments[0].layout.gather(tensors),), ()))
    return place, sent


def begin(**other):
    usual = {
        "members": (0, 1),
        "weights": (1.0, 1.0),
        "rows": (1.0, 1.0),
        "moments": False,
        "changes": False,
    }
    return Parcel(RingBegin(ring=0, round=2, **{**usual, **other}))


@pytest.mark.parametrize("words", [{"moments": True}, {"weights": (1.0, 2.0)}])
def test_a_round_on_other_words_than_were_said_is_off_and_blames_nobody(words):
    """The leader has made them up, and the one that hands them on may be honest."""
    place, sent = called(None)
    place.heard("node_0", begin(**words))
    assert any(isinstance(message, RingCancel) for message in sent)
    assert not any(isinstance(message, RingGone | RingPledge) for message in sent)


@pytest.mark.parametrize("weight", [1e308, float("nan"), float("inf"), -1.0])
def test_weights_that_are_no_numbers_of_samples_are_refused(weight):
    place, sent = called("int8")
    place.heard("node_0", begin(weights=(weight, 1.0), changes=True))
    assert any(isinstance(message, RingCancel) for message in sent)


def test_a_member_of_another_ring_has_no_say():
    place, _ = called(None)
    with pytest.raises(WireError, match="not a member"):
        place.heard("node_7", begin())


@pytest.mark.parametrize("fragments", [(1, 2), (2, 1), (1, 1)])
def test_clusters_with_different_settings_find_out_at_once(fragments):
    tensors = {"v": torch.randn(6), "w": torch.randn(6)}
    line, places, faults = [], [], []

    def place_of(member, settings):
        made = fragments_of(tensors, {"v", "w"}, settings)

        def take_snapshot(ring, number, some):
            place = places[member]
            place.snapshot_begun(number, Facts(1.0, 1.0, 1, ()))
            vectors = tuple(made[k].layout.gather(tensors) for k in some)
            place.snapshot_taken(number, Snapshot(vectors, ()))

        around = Surroundings(
            send=lambda node, parcel: line.append((member, parcel)),
            take_snapshot=take_snapshot,
            apply=lambda outcome: None,
            skipped=lambda ring, is_refused: None,
            released=lambda ring, last: None,
            cut_off=lambda: None,
            codec_for=lambda node: None,
        )
        document = RingDocument(0, ("v", "w"), MEMBERS, member)
        agreement = (settings.mode, settings.outer)
        return RingPlace(document, made, around, round_s=600, wait_s=600, agreement=agreement)

    modes = ("background", "blocking" if fragments == (1, 1) else "background")
    for member in range(2):
        settings = Averaging(mode=modes[member], fragments=fragments[member])
        places.append(place_of(member, settings))
    places[1].due()
    while line:
        source, parcel = line.pop(0)
        try:
            places[1 - source].heard(f"node_{source}", parcel)
        except RunError as error:
            faults.append(str(error))
    assert len(faults) == 2
    assert all("mode, outer or codec differ" in fault for fault in faults)


def pledge():
    """Of the first member: it has not moved its weights, and the other vectors are empty."""
    words = {
        "usual": (0.0,) * 4,
        "sizes": (1.0,) * 4,
        "rows": 1.0,
        "codec": "",
        "key": b"",
        "lock": b"",
    }
    chunks = ((0.0, 0.0), (), (), ())
    return Parcel(RingPledge(ring=0, round=2, by=0, chunks=chunks, has_ended=False, **words))


def chunk(values, **other):
    usual = {"vector": 0, "is_mean": True, "segment": 0, "chunk": 0, "passed": 1}
    return Parcel(RingChunk(ring=0, round=2, **{**usual, **other}), (values,))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_mean_that_is_not_finite_is_not_applied(value):
    place, sent = called(None)
    place.heard("node_0", begin())
    place.heard("node_0", pledge())
    bad = torch.full((3,), value)
    place.heard("node_0", chunk(bad, is_mean=False, segment=0, passed=1))
    place.heard("node_0", chunk(torch.ones(3), segment=1, passed=1))
    assert place.last is None
    (gone,) = (m for m in sent if isinstance(m, RingGone) and m.member == 0)
    assert gone.is_caught
