"""Messages and tensors arrive as they were; what is not one of our messages is refused."""

import contextlib
import os
import random

import msgspec
import pytest
import torch

from ravnest.errors import WireError
from ravnest.wire.encoding import Parcel, decode, encode
from ravnest.wire.framing import Frame
from ravnest.wire.messages import (
    PROTOCOL,
    Backward,
    Carried,
    Command,
    Failed,
    Forward,
    Hello,
    MicroBatch,
)

OF = MicroBatch(batch=3, part=1, parts=2, rows=4, batch_rows=9, update=2, closes_update=True)
MESSAGES = [
    Hello(protocol=PROTOCOL, run="r", node="n", session="s", received=0, chunk_bytes=1),
    Forward(
        of=OF,
        task="train",
        carried=(
            Carried(value=1, goes_to=(1, 2)),
            Carried(value=2, goes_to=(3,), number=2.5),
            Carried(value=3, goes_to=(3,), number=True),
        ),
        proof=(1, 2**61),
    ),
    Backward(of=OF, carried=(), squared_norm=0.25, loss=float("nan")),
    Command(order="flush", number=4),
    Failed(node="node_1", reason="ünïcode"),
    Failed(node="node_1", reason="node_2 is gone", culprit="node_2"),
]
TENSORS = {
    "every type": tuple(
        torch.arange(6).reshape(2, 3).to(dtype)
        for dtype in (
            torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64,
            torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
        )
    ),
    "odd shapes": (torch.tensor(3.0), torch.empty(0, 4), torch.ones(1, 1, 1), torch.rand(7)),
    "not contiguous": (torch.rand(4, 6).t(), torch.rand(4, 6)[:, ::2], torch.rand(3).expand(2, 3)),
    "one of many": (torch.rand(4)[::4], torch.rand(4, 6)[:1, ::6], torch.rand(4, 6).t()[3, ::4]),
    "with gradient": (torch.rand(3, requires_grad=True) * 2,),
    "special numbers": (torch.tensor([float("nan"), float("inf"), -0.0]),),
    "none": (),
}  # fmt: skip


def raw(tensor):
    """Bytes, because NaN is not equal to itself and -0.0 is equal to 0.0."""
    flat = tensor.new_empty(tensor.numel()).copy_(tensor.detach().reshape(-1))
    return bytes(flat.view(torch.uint8).tolist())


def there_and_back(parcel):
    frame = encode(parcel, 1)
    return decode(Frame(1, frame.header, (bytearray(b"".join(frame.body)),)))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_every_message_survives(message):
    found = there_and_back(Parcel(message)).message
    assert msgspec.msgpack.encode(found) == msgspec.msgpack.encode(message)
    assert type(found) is type(message)


@pytest.mark.parametrize("tensors", TENSORS.values(), ids=list(TENSORS))
def test_every_tensor_survives(tensors):
    found = there_and_back(Parcel(Command(order="flush"), tensors)).tensors
    assert [(t.dtype, t.shape) for t in found] == [(t.dtype, t.shape) for t in tensors]
    for one, other in zip(found, tensors, strict=True):
        assert raw(one) == raw(other)
        assert not one.requires_grad


def test_a_sparse_tensor_arrives_dense():
    sparse = torch.eye(3).to_sparse()
    (found,) = there_and_back(Parcel(Command(order="flush"), (sparse,))).tensors
    assert torch.equal(found, torch.eye(3))


def test_tensors_are_not_copied_to_be_sent():
    tensor = torch.rand(1000)
    (view,) = encode(Parcel(Command(order="flush"), (tensor,)), 1).body[:1]
    tensor[0] = 42.0
    assert memoryview(view)[:4].tobytes() == tensor[:1].numpy().tobytes()


def test_a_type_without_a_name_is_refused():
    with pytest.raises(WireError, match="cannot be sent"):
        encode(Parcel(Command(order="flush"), (torch.zeros(2, dtype=torch.float8_e5m2),)), 1)


def header(**changes):
    document = {"dtype": "float32", "shape": [2]} | changes
    meta = ["TensorMeta", document["dtype"], document["shape"]]
    return msgspec.msgpack.encode([["Command", "flush", 0], [meta]])


HOSTILE = {
    "no message": (b"", "cannot be understood"),
    "another language": (b'{"a": 1}', "cannot be understood"),
    "unknown message": (msgspec.msgpack.encode([["Evil"], []]), "cannot be understood"),
    "unknown order": (msgspec.msgpack.encode([["Command", "rm", 0], []]), "cannot be understood"),
    "negative count": (
        msgspec.msgpack.encode([["Command", "flush", -1], []]),
        "cannot be understood",
    ),
    "unknown type": (header(dtype="object"), "unknown type 'object'"),
    "negative size": (header(shape=[-1]), "cannot be understood"),
    "larger than its bytes": (header(shape=[2**40, 2**20]), "does not fit"),
    "bytes left over": (msgspec.msgpack.encode([["Command", "flush", 0], []]), "explains 0"),
    "too many dimensions": (header(shape=[1] * 65), "cannot be understood"),
    "nested without end": (b"\x91" * 5000, "cannot be understood"),
    "lone surrogate": (
        msgspec.msgpack.encode([["Failed", "x", "y"], []]).replace(b"\xa1y", b"\xa1\xff"),
        "cannot be understood",
    ),
}


@pytest.mark.parametrize(("content", "message"), HOSTILE.values(), ids=list(HOSTILE))
def test_hostile_headers_are_refused(content, message):
    with pytest.raises(WireError, match=message):
        decode(Frame(1, content, (bytearray(8 + 56),)))


def test_random_headers_are_refused():
    """Whatever the bytes, a WireError or a message of ours; nothing else comes out."""
    dice = random.Random(1)
    honest = encode(Parcel(MESSAGES[1], (torch.rand(4),)), 1).header
    for _ in range(3000):
        content = bytearray(honest)
        for _ in range(dice.randint(1, 6)):
            content[dice.randrange(len(content))] = dice.randrange(256)
        for header in (bytes(content), os.urandom(dice.randint(1, 40))):
            with contextlib.suppress(WireError):
                decode(Frame(1, header, (bytearray(64),)))
