"""Frames survive any division into chunks, and nothing malformed gets past the assembler."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ravnest.errors import WireError
from ravnest.wire import framing
from ravnest.wire.framing import Ack, Assembler, Frame, Limits, ack_chunk


def chunks(frame, ack, *chunk_bytes):
    """Each chunk as the bytes that go over a stream."""
    return (b"".join(parts) for parts in framing.chunks(frame, ack, *chunk_bytes))


FRAME = Frame(7, b"header", (b"abc", bytearray(b"defgh"), memoryview(b"ij")))


def assemble(pieces, limits=None):
    assembler = Assembler(limits)
    found = [assembler.feed(piece) for piece in pieces]
    acks = [ack for ack, _ in found if ack is not None]
    frames = [frame for _, frame in found if frame is not None]
    return acks, frames


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.binary(max_size=50), st.lists(st.binary(max_size=3000), max_size=4)),
        min_size=1,
        max_size=4,
    ),
    st.integers(min_value=110, max_value=2000),
)
def test_what_goes_in_comes_out(contents, chunk_bytes):
    """Several frames on one stream, in chunks of any size that holds a prefix and a header."""
    pieces = []
    for number, (header, body) in enumerate(contents, start=1):
        pieces += chunks(Frame(number, header, body), Ack(number, number - 1), chunk_bytes)
    assert all(len(piece) <= chunk_bytes for piece in pieces)
    acks, frames = assemble(pieces)
    assert acks == [Ack(n, n - 1) for n in range(1, len(contents) + 1)]
    assert [(f.sequence, f.header, b"".join(f.body)) for f in frames] == [
        (number, header, b"".join(body)) for number, (header, body) in enumerate(contents, start=1)
    ]


def test_an_acknowledgement_alone():
    assert assemble([ack_chunk(Ack(9, 4))]) == ([Ack(9, 4)], [])


def test_sizes_beyond_32_bit_are_spoken_of_correctly():
    """The receiver knows how much is to come before it has come; 5 GiB are not allocated here."""
    first = next(chunks(Frame(1, b"h", (b"x",)), Ack(0, 0)))
    huge = bytearray(first[:-1])
    huge[32:40] = (5 << 30).to_bytes(8, "little")
    with pytest.raises(WireError, match=rf"announces 1 \+ {5 << 30} bytes"):
        Assembler(Limits(body_bytes=1 << 32)).feed(bytes(huge))


WHOLE = b"".join(chunks(FRAME, Ack(3, 2)))
PREFIX = 48

MALFORMED = {
    "too short": (WHOLE[:20], "shorter than any prefix"),
    "another protocol": (b"HTTP" + WHOLE[4:], "not Ravnest's protocol"),
    "header cut off": (WHOLE[: PREFIX + 2], "header of a frame is cut off"),
    "longer than announced": (WHOLE + b"!", "after its end"),
    "header too large": (
        WHOLE[:4] + (1 << 30).to_bytes(4, "little") + WHOLE[8:],
        "announces",
    ),
    "used before it came": (
        WHOLE[:24] + (99).to_bytes(8, "little") + WHOLE[32:],
        "more frames used than received",
    ),
    "data in an acknowledgement": (
        WHOLE[:8] + bytes(8) + WHOLE[16:],
        "carries data",
    ),
    "a flipped bit in the header": (
        WHOLE[:PREFIX] + bytes([WHOLE[PREFIX] ^ 1]) + WHOLE[PREFIX + 1 :],
        "checksum",
    ),
    "a flipped bit in the body": (WHOLE[:-1] + bytes([WHOLE[-1] ^ 1]), "checksum"),
}


@pytest.mark.parametrize(("piece", "message"), MALFORMED.values(), ids=list(MALFORMED))
def test_malformed_frames_are_refused(piece, message):
    with pytest.raises(WireError, match=message):
        Assembler().feed(piece)


def test_a_frame_is_not_continued_with_nothing():
    assembler = Assembler()
    first, *_ = chunks(Frame(1, b"h", (bytes(500),)), Ack(0, 0), 200)
    assembler.feed(first)
    with pytest.raises(WireError, match="continued with nothing"):
        assembler.feed(b"")


def test_noise_never_gets_through():
    """Random damage to a valid stream: a WireError, or frames that are exactly those sent."""
    dice = random.Random(0)
    pieces = [
        piece
        for number in range(1, 4)
        for piece in chunks(Frame(number, b"head", (bytes(range(200)),)), Ack(0, 0), 150)
    ]
    sent = assemble(pieces)[1]
    refused = 0
    for _ in range(2000):
        damaged = list(pieces)
        for _ in range(dice.randint(1, 3)):
            at = dice.randrange(len(damaged))
            match dice.randrange(4):
                case 0:
                    piece = bytearray(damaged[at] or b"\0")
                    piece[dice.randrange(len(piece))] ^= 1 << dice.randrange(8)
                    damaged[at] = bytes(piece)
                case 1:
                    del damaged[at : at + 1]
                case 2:
                    damaged.insert(at, damaged[at])
                case 3:
                    damaged[at] = damaged[at][: dice.randrange(len(damaged[at]) + 1)]
            if not damaged:
                break
        try:
            frames = assemble(damaged)[1]
        except WireError:
            refused += 1
            continue
        content = {bytes(frame.body[0]) for frame in frames}
        assert content <= {bytes(frame.body[0]) for frame in sent}
    assert refused > 1000
