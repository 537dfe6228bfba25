"""A message as bytes on a stream, and back.

A stream carries chunks of at most 1 MB, in order. A frame is one or more chunks:

    first chunk   prefix (fixed size) · header · beginning of the body
    further ones  the rest of the body, and nothing but that

The prefix says how long header and body are (64 bit), so the receiver knows when a frame is
complete; it also acknowledges what came the other way. A prefix alone, with sequence number 0, is
an acknowledgement and nothing else. Header and body are covered by one checksum.

Pure: bytes in, frames out. Whatever is malformed raises `WireError`, and the stream is worthless
from there on, because nobody can tell where the next frame would begin.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import xxhash

from ravnest.errors import WireError
from ravnest.wire.buffers import BufferPool

CHUNK_BYTES = 1 << 20
_PREFIX = struct.Struct("<4sIQQQQQ")
_MAGIC = b"RVN1"

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes above these are refused unread."""

    header_bytes: int = 1 << 24
    body_bytes: int = 1 << 36


@dataclass(frozen=True, slots=True)
class Ack:
    """Sequence numbers up to which frames have arrived, and have been used up."""

    received: int
    consumed: int


@dataclass(frozen=True, slots=True)
class Frame:
    """One message, encoded. The body is a list of buffers so that nothing is joined to send it."""

    sequence: int
    header: bytes
    body: Sequence[Buffer] = ()
    ready: Callable[[], None] | None = None
    """Returns when the body may be read; may block."""

    @property
    def size(self) -> int:
        return len(self.header) + sum(len(part) for part in self.body)


def ack_chunk(ack: Ack) -> bytes:
    return _PREFIX.pack(_MAGIC, 0, 0, ack.received, ack.consumed, 0, 0)


def chunks(frame: Frame, ack: Ack, chunk_bytes: int = CHUNK_BYTES) -> Iterator[list[Buffer]]:
    """The frame in pieces of `chunk_bytes`, each as parts that lie where they lay."""
    if frame.sequence < 1:
        raise ValueError("frames are numbered from 1")
    body_bytes = sum(len(part) for part in frame.body)
    prefix = _PREFIX.pack(
        _MAGIC,
        len(frame.header),
        frame.sequence,
        ack.received,
        ack.consumed,
        body_bytes,
        _checksum(frame.header, frame.body),
    )
    pending: list[Buffer] = [prefix, frame.header]
    free = chunk_bytes - len(prefix) - len(frame.header)
    for part in frame.body:
        view = memoryview(part).cast("B")
        while len(view):
            if free <= 0:
                yield pending
                pending, free = [], chunk_bytes
            pending.append(view[:free])
            taken = min(free, len(view))
            view, free = view[taken:], free - taken
    yield pending


def _checksum(header: bytes, body: Sequence[Buffer]) -> int:
    digest = xxhash.xxh3_64(header)
    for part in body:
        digest.update(part)
    return digest.intdigest()


class Assembler:
    """Puts the chunks of one stream together again."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._buffers = BufferPool()
        self._frame: _Partial | None = None
        self._offered: memoryview | None = None

    def room(self, length: int) -> memoryview | None:
        """Where the next chunk is going to lie, if it continues a frame: put it there at once."""
        partial = self._frame
        if partial is None or not 0 < length <= len(partial.body) - partial.filled:
            return None
        self._offered = partial.body[partial.filled : partial.filled + length]
        return self._offered

    def feed(self, chunk: Buffer) -> tuple[Ack | None, Frame | None]:
        """What this chunk completes: an acknowledgement with each first chunk, a frame with each
        last one."""
        if self._frame is not None:
            offered, self._offered = self._offered, None
            return None, self._more(memoryview(chunk), is_in_place=chunk is offered)
        return self._first(memoryview(chunk))

    def _first(self, chunk: memoryview) -> tuple[Ack, Frame | None]:
        if len(chunk) < _PREFIX.size:
            raise WireError(f"a frame begins with {len(chunk)} bytes, shorter than any prefix")
        magic, header_bytes, sequence, received, consumed, body_bytes, checksum = (
            _PREFIX.unpack_from(chunk)
        )
        if magic != _MAGIC:
            raise WireError(f"a frame begins with {bytes(magic)!r}: this is not Ravnest's protocol")
        ack, rest = Ack(received, consumed), chunk[_PREFIX.size :]
        if consumed > received:
            raise WireError("an acknowledgement claims more frames used than received")
        if sequence == 0:
            if header_bytes or body_bytes or len(rest):
                raise WireError("an acknowledgement carries data")
            return ack, None
        limits = self._limits
        if header_bytes > limits.header_bytes or body_bytes > limits.body_bytes:
            raise WireError(
                f"a frame announces {header_bytes} + {body_bytes} bytes; "
                f"at most {limits.header_bytes} + {limits.body_bytes} are accepted"
            )
        if len(rest) < header_bytes:
            raise WireError("the header of a frame is cut off")
        header = bytes(rest[:header_bytes])
        try:
            # Not filled with zeros: memory that nobody has touched is not taken before it fills.
            body = self._buffers.take(body_bytes)
        except MemoryError:
            raise WireError(f"there is no memory for a frame of {body_bytes} bytes") from None
        self._frame = _Partial(sequence, header, body, 0, checksum)
        return ack, self._more(rest[header_bytes:])

    def _more(self, chunk: memoryview, *, is_in_place: bool = False) -> Frame | None:
        partial = self._frame
        assert partial is not None
        missing = len(partial.body) - partial.filled
        if len(chunk) > missing:
            raise WireError(f"a frame goes on for {len(chunk) - missing} bytes after its end")
        if not len(chunk) and missing:
            raise WireError("a frame is continued with nothing")
        if not is_in_place:
            partial.body[partial.filled : partial.filled + len(chunk)] = chunk
        partial.filled += len(chunk)
        if partial.filled < len(partial.body):
            return None
        self._frame = None
        if _checksum(partial.header, (partial.body,)) != partial.checksum:
            raise WireError("a frame does not match its checksum: it was damaged on the way")
        return Frame(partial.sequence, partial.header, (partial.body,))


@dataclass(slots=True)
class _Partial:
    """A frame of which some bytes have not come yet."""

    sequence: int
    header: bytes
    body: memoryview
    filled: int
    checksum: int
