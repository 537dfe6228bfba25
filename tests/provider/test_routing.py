"""Values reach every stage that uses them, and gradients find their way back, added up."""

import pytest
import torch

from ravnest.errors import WireError
from ravnest.provider.compression import Packing
from ravnest.provider.routing import (
    Onward,
    gradients_for_previous,
    pack_backward,
    pack_forward,
    unpack,
    unpack_gradients,
)
from ravnest.stage.graph import Wire
from ravnest.wire.messages import Carried


def wire(value, *stages):
    return Wire(value=value, stages=stages, dtype="float32")


def test_a_value_travels_to_all_who_use_it():
    """Made on stage 0 for stages 1 and 3; stage 2 only passes it on."""
    x = torch.ones(2)
    carried, tensors = pack_forward([wire(5, 1, 3), wire(6, 2)], {5: x, 6: 2.5}, Onward())
    mine, onward = unpack(carried, tensors, 1)
    assert set(mine) == {5}
    assert onward.goes_to == {5: (3,), 6: (2,)}
    carried, tensors = pack_forward([], {}, onward)
    mine, onward = unpack(carried, tensors, 2)
    assert mine == {6: 2.5}
    carried, tensors = pack_forward([], {}, onward)
    mine, onward = unpack(carried, tensors, 3)
    assert torch.equal(mine[5], x)
    assert not onward.payloads


def test_what_is_only_handed_on_stays_packed():
    """Packed again on every stage, it would lose digits on every stage."""
    x = torch.randn(300)
    packed = Packing("int4s").pack((x,), None)
    mine, onward = unpack((Carried(value=5, goes_to=(1, 3)),), packed, 1)
    assert mine[5] is packed[0]
    _, tensors = pack_forward([], {}, onward)
    for packing in (Packing(None), Packing("int4s")):
        assert packing.pack(tensors, None)[0] is packed[0]
    (other,) = Packing("bf16").pack(tensors, None)
    assert other.codec == "bf16"
    arrived = unpack_gradients((Carried(value=5),), packed)
    assert gradients_for_previous({}, arrived, onward)[5] is packed[0]


def test_gradients_are_added_where_ways_meet():
    one, two = torch.ones(2), torch.full((2,), 2.0)
    onward = Onward({5: None, 7: None}, {5: (3,), 7: (3,)})
    arrived = unpack_gradients(*pack_backward({5: two, 7: two, 9: two}))
    found = gradients_for_previous({5: one, 6: one}, arrived, onward)
    assert {value: float(gradient[0]) for value, gradient in found.items()} == {5: 3, 6: 1, 7: 2}


@pytest.mark.parametrize(
    ("carried", "tensors", "message"),
    [
        ((Carried(value=1), Carried(value=1)), (torch.ones(1),) * 2, "comes twice"),
        ((Carried(value=1),), (), "fewer tensors"),
        ((), (torch.ones(1),), "more tensors"),
        ((Carried(value=1, number=2),), (), "is not a tensor"),
    ],
)
def test_contradictory_messages_are_refused(carried, tensors, message):
    with pytest.raises(WireError, match=message):
        unpack_gradients(carried, tensors)
