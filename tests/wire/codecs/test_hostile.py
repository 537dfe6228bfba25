"""Packed tensors from a stranger: refused with a WireError, before memory is taken, or harmless."""

import contextlib
import dataclasses
import random

import numpy as np
import pytest
import torch
import zstandard

from ravnest.errors import WireError
from ravnest.wire.codecs import CODECS, Packed, codec_named, unpack

every_codec = pytest.mark.parametrize("name", CODECS)


def honest(name, shape=(20, 100)):
    torch.manual_seed(1)
    packed = codec_named(name).pack(torch.randn(shape))
    assert isinstance(packed, Packed)
    return packed


@every_codec
@pytest.mark.parametrize(
    "shape",
    [
        (), (0,), (1,), (255,), (2**40,), (2**62,) * 64, (2**31, 2**31), (-20, -100), (0, 2**62),
        (20, 120), (20, 80), (100_000,),
    ],
    ids=str,
)  # fmt: skip
def test_a_shape_that_does_not_suit_the_parts(name, shape):
    """The largest ones could not be made: that they are refused says that nobody tried."""
    packed = dataclasses.replace(honest(name), shape=shape)
    with pytest.raises(WireError):
        unpack(packed)


@every_codec
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float64, torch.complex64])
def test_a_type_that_is_never_packed(name, dtype):
    packed = dataclasses.replace(honest(name), dtype=dtype)
    with contextlib.suppress(WireError):
        unpack(packed)
        assert name == "zstd"
        assert dtype == torch.bool


@every_codec
def test_missing_additional_and_exchanged_parts(name):
    packed = honest(name)
    for parts in (
        (),
        packed.parts[:-1],
        (*packed.parts, packed.parts[-1]),
        packed.parts[::-1] if len(packed.parts) > 1 else (),
        tuple(part[1:] for part in packed.parts),
        tuple(part.double() for part in packed.parts),
        tuple(part.new_empty(0) for part in packed.parts),
    ):
        with pytest.raises(WireError):
            unpack(dataclasses.replace(packed, parts=parts))


@every_codec
@pytest.mark.parametrize("shape", [(20, 100), (70_001,)])
def test_random_content_is_harmless(name, shape):
    packed, dice = honest(name, shape), random.Random(2)
    for _ in range(60):
        parts = tuple(part.clone() for part in packed.parts)
        for part in parts:
            content = part.view(torch.uint8)
            if dice.random() < 0.5:
                content.random_(0, 256)
            else:
                for _ in range(dice.randint(1, 5)):
                    content[dice.randrange(len(content))] = dice.randrange(256)
        with contextlib.suppress(WireError):
            found = unpack(dataclasses.replace(packed, parts=parts))
            assert (found.dtype, found.shape) == (torch.float32, shape)


def test_topk_places_outside_the_tensor():
    packed = honest("topk")
    packed.parts[0][3] = 2000
    with pytest.raises(WireError, match="outside its tensor"):
        unpack(packed)


def test_topk_places_outside_the_last_block_only():
    packed = honest("topk", (70_000,))
    packed.parts[0][0] = -1  # the last one of a whole block
    unpack(packed)
    packed.parts[0][-1] = 70_000 - 65_536
    with pytest.raises(WireError, match="outside its tensor"):
        unpack(packed)


def test_topk_places_that_are_all_the_same():
    packed = honest("topk")
    packed.parts[0].fill_(5)
    found = unpack(packed)
    assert (found != 0).nonzero().tolist() == [[0, 5]]


def compressed(content, **options):
    data = zstandard.ZstdCompressor(**options).compress(content)
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())


def with_size_of(other, part):
    """A small frame has its size in the bytes 5 and 6."""
    return torch.cat([part[:5], other[5:7], part[7:]])


ZSTD = {
    "no frame": torch.zeros(200, dtype=torch.uint8),
    "too little": compressed(bytes(1000)),
    "too much": compressed(bytes(2000)),
    "no size": compressed(bytes(1024), write_content_size=False),
    "more than said": with_size_of(compressed(bytes(1024)), compressed(bytes(2000))),
    "less than said": with_size_of(compressed(bytes(1024)), compressed(bytes(1000))),
    "cut off": compressed(random.Random(3).randbytes(1024))[:-1],
    "skipped by readers": torch.tensor([0x50, 0x2A, 0x4D, 0x18, 0, 0, 0, 0], dtype=torch.uint8),
}


@pytest.mark.parametrize("part", ZSTD.values(), ids=list(ZSTD))
def test_zstd_that_is_not_what_the_shape_says(part):
    with pytest.raises(WireError, match="compressed bytes"):
        unpack(Packed("zstd", torch.float32, (256,), (part,)))


def test_zstd_bombs():
    """The best compression there is: 64 MB from some kB. Ours of the same zeros are longer."""
    zeros = torch.zeros(16 << 20)
    bomb = compressed(zeros.numpy().tobytes())
    with pytest.raises(WireError, match="cannot become"):
        unpack(Packed("zstd", zeros.dtype, tuple(zeros.shape), (bomb,)))
    packed = codec_named("zstd").pack(zeros)
    assert packed.nbytes == zeros.nbytes / 1024
    assert torch.equal(unpack(packed), zeros)
