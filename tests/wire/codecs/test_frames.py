"""Packed tensors beside messages: they arrive as they were packed, and hostile frames do not."""

import contextlib
import random

import msgspec
import pytest
import torch

from ravnest.errors import WireError
from ravnest.wire.codecs import CODECS, Packed, codec_named
from ravnest.wire.encoding import Parcel, decode, encode, opened
from ravnest.wire.framing import Frame
from ravnest.wire.messages import Command, Envelope, TensorMeta

FLUSH = Command(order="flush")


def received(frame):
    return decode(Frame(1, frame.header, (bytearray(b"".join(frame.body)),)))


@pytest.mark.parametrize("name", CODECS)
def test_packed_and_plain_tensors_side_by_side(name):
    torch.manual_seed(1)
    values, counts, small = torch.randn(30, 50), torch.arange(999), torch.rand(3)
    sent = Parcel(FLUSH, (small, codec_named(name).pack(values), counts))
    arrived = received(encode(sent, 1))
    assert isinstance(arrived.tensors[1], Packed)
    assert torch.equal(arrived.tensors[0], small)
    assert torch.equal(arrived.tensors[2], counts)
    assert arrived.tensors[1].nbytes == sent.tensors[1].nbytes
    expected, found = opened(sent)[1], opened(arrived)[1]
    assert (found.dtype, found.shape) == (values.dtype, values.shape)
    assert torch.equal(found, expected)


def test_parts_are_views_of_what_arrived():
    frame = encode(Parcel(FLUSH, (codec_named("int8").pack(torch.ones(256)),)), 1)
    body = bytearray(b"".join(frame.body))
    arrived = decode(Frame(1, frame.header, (body,)))
    body[0] = 3
    assert arrived.tensors[0].parts[0][0] == 3


def test_opening_what_is_not_packed_copies_nothing():
    tensor = torch.rand(5)
    assert opened(Parcel(FLUSH, (tensor,)))[0] is tensor


def test_a_plain_tensor_is_told_as_older_messages_told_it():
    """What was recorded before there were codecs is still understood."""
    header = msgspec.msgpack.encode([["Command", "flush", 0], [["TensorMeta", "float32", [2]]]])
    (tensor,) = decode(Frame(1, header, (bytearray(64),))).tensors
    assert tensor.tolist() == [0, 0]


def plain(dtype="uint8", shape=(16,)):
    return TensorMeta(dtype=dtype, shape=shape)


def packed(codec="int8", parts=2, dtype="float32"):
    return TensorMeta(dtype=dtype, shape=(256,), codec=codec, parts=parts)


HOSTILE = {
    "an unknown codec": ((packed("zip"), plain(), plain()), "unknown way 'zip'"),
    "parts without a codec": ((packed(""), plain(), plain()), "unknown way ''"),
    "a codec without parts": ((packed(parts=0), plain(), plain()), "has 0 parts"),
    "fewer parts than said": ((plain(), packed(parts=2), plain()), "has 1 parts"),
    "packed twice": ((packed(), packed(parts=1), plain(), plain()), "is packed itself"),
    "packed twice, no parts": ((packed(), packed(parts=0), plain(), plain()), "is packed itself"),
    "an unknown type": ((packed(dtype="object"), plain(), plain()), "unknown type 'object'"),
    "parts of an unknown type": ((packed(), plain("object"), plain()), "unknown type"),
    "parts without bytes": ((packed(), plain(shape=(129,)), plain()), "does not fit"),
    "bytes without parts": ((packed(parts=1), plain()), "explains 64"),
    "too many parts": ((packed(parts=9), *[plain()] * 9), "cannot be understood"),
    "negative parts": ((packed(parts=-1), plain()), "cannot be understood"),
}


@pytest.mark.parametrize(("metas", "message"), HOSTILE.values(), ids=list(HOSTILE))
def test_hostile_headers_are_refused(metas, message):
    header = msgspec.msgpack.encode(Envelope(FLUSH, metas))
    with pytest.raises(WireError, match=message):
        decode(Frame(1, header, (bytearray(128),)))


def test_a_claim_far_beyond_its_bytes_is_refused_when_it_is_opened():
    metas = (TensorMeta(dtype="float32", shape=(2**40,), codec="int8", parts=2), plain(), plain())
    header = msgspec.msgpack.encode(Envelope(FLUSH, metas))
    arrived = decode(Frame(1, header, (bytearray(128),)))
    with pytest.raises(WireError, match="are not int8's"):
        opened(arrived)


@pytest.mark.parametrize("name", CODECS)
def test_random_frames(name):
    """Whatever the bytes, a WireError or tensors; nothing else comes out."""
    dice = random.Random(name)
    tensors = (torch.rand(4), codec_named(name).pack(torch.randn(300)))
    frame = encode(Parcel(FLUSH, tensors), 1)
    for _ in range(1500):
        header, body = bytearray(frame.header), bytearray(b"".join(frame.body))
        for content in (header, body):
            for _ in range(dice.randint(0, 4)):
                content[dice.randrange(len(content))] = dice.randrange(256)
        with contextlib.suppress(WireError):
            for tensor in opened(decode(Frame(1, bytes(header), (body,)))):
                assert isinstance(tensor, torch.Tensor)
