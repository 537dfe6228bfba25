"""A member's place in a ring, told things that an honest leader would not say."""

import pytest
import torch

from ravnest.errors import WireError
from ravnest.provider.averaging.fragments import fragments_of
from ravnest.provider.averaging.ring import RingPlace, Surroundings
from ravnest.provider.averaging.settings import Averaging
from ravnest.provider.averaging.share import Facts, Snapshot
from ravnest.provider.document import RingDocument, RingMember
from ravnest.wire.codecs import codec_named
from ravnest.wire.encoding import Parcel
from ravnest.wire.messages import RingBegin, RingCall, RingCancel

MEMBERS = (RingMember("node_0", "", 0), RingMember("node_1", "", 1))


def called(codec):
    """The second of two members, with its snapshot taken; and what it has sent."""
    tensors = {"w": torch.randn(6)}
    fragments = fragments_of(tensors, {"w"}, Averaging(), compresses=codec is not None)
    asked, sent = [], []
    place = RingPlace(
        RingDocument(0, ("w",), MEMBERS, 1),
        fragments,
        Surroundings(
            send=lambda node, parcel: sent.append(parcel.message),
            take_snapshot=lambda ring, number, some: asked.append(number),
            apply=lambda outcome: None,
            skipped=lambda ring: None,
            released=lambda ring, last: None,
            codec_for=lambda node: None if codec is None else codec_named(codec),
        ),
        round_s=600,
        wait_s=600,
    )
    call = RingCall(ring=0, round=1, leader=0, fragment=0, shares=(), still=False, last=False)
    place.heard("node_0", Parcel(call))
    place.snapshot_begun(asked[0], Facts(1.0, 1.0, 1, ()))
    place.snapshot_taken(asked[0], Snapshot((fragments[0].layout.gather(tensors),), ()))
    return place, sent


def begin(**other):
    usual = {"members": (0, 1), "weights": (1.0, 1.0), "moments": False, "changes": False}
    return Parcel(RingBegin(ring=0, round=1, **{**usual, **other}))


def test_changes_of_nothing_in_common_are_the_leaders_fault():
    place, _ = called(None)
    with pytest.raises(WireError, match="nothing in common"):
        place.heard("node_0", begin(changes=True))


@pytest.mark.parametrize("weight", [1e308, float("nan"), float("inf"), -1.0])
def test_weights_that_are_no_numbers_of_samples_are_refused(weight):
    place, sent = called("int8")
    place.heard("node_0", begin(weights=(weight, 1.0), changes=True))
    assert any(isinstance(message, RingCancel) for message in sent)


def test_a_member_of_another_ring_has_no_say():
    place, _ = called(None)
    with pytest.raises(WireError, match="not a member"):
        place.heard("node_7", begin())
