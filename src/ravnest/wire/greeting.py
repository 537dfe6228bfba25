"""The first frame of every stream, which says who speaks."""

import asyncio
import contextlib

from ravnest.errors import WireError
from ravnest.wire.encoding import Parcel, decode, encode
from ravnest.wire.framing import Ack, Assembler, Limits, chunks
from ravnest.wire.messages import PROTOCOL, Hello, Refused
from ravnest.wire.streams import ChunkStream, StreamError


async def refuse(stream: ChunkStream, reason: str) -> None:
    """Say why a stream will not be served."""
    with contextlib.suppress(StreamError):
        for parts in chunks(encode(Parcel(Refused(reason=reason[:1000])), 1), Ack(0, 0)):
            await stream.write(parts)


async def read_greeting(stream: ChunkStream, within_s: float) -> Hello | Refused:
    """The first frame of a stream, which must be small and a greeting."""
    assembler = Assembler(Limits(header_bytes=1 << 16, body_bytes=0))
    try:
        chunk = await asyncio.wait_for(stream.read(), within_s)
    except TimeoutError:
        raise StreamError(f"no greeting within {within_s:g} s") from None
    if chunk is None:
        raise StreamError("the other side closed the connection")
    _, frame = assembler.feed(chunk)
    if frame is None:
        raise WireError("a stream begins with an acknowledgement")
    message = decode(frame).message
    if not isinstance(message, Hello | Refused):
        raise WireError("a stream begins with something else than a greeting")
    if isinstance(message, Hello) and message.protocol != PROTOCOL:
        raise WireError(f"it speaks protocol {message.protocol}, this provider {PROTOCOL}")
    return message
