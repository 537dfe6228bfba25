"""The first frame of a stream, from neighbours of other releases."""

import asyncio

import msgspec
import pytest

from ravnest.errors import WireError
from ravnest.wire.encoding import Frame
from ravnest.wire.framing import Ack, chunks
from ravnest.wire.greeting import read_greeting
from ravnest.wire.messages import PROTOCOL

OF_PROTOCOL_4 = ["Hello", 4, "run", "node", "session", 0]
LATER = ["Hello", PROTOCOL + 1, "run", "node", "session", 0, 1 << 18]


class Said:
    """A stream on which one frame has arrived."""

    def __init__(self, message):
        frame = Frame(1, msgspec.msgpack.encode([message, []]), ())
        self.bytes = b"".join(bytes(part) for parts in chunks(frame, Ack(0, 0)) for part in parts)

    async def read(self):
        return self.bytes


@pytest.mark.parametrize("greeting", [OF_PROTOCOL_4, LATER], ids=["older", "later"])
def test_a_neighbour_of_another_release_is_told_which_protocol_is_spoken(greeting):
    words = f"it speaks protocol {greeting[1]}, this provider {PROTOCOL}"
    with pytest.raises(WireError, match=words):
        asyncio.run(read_greeting(Said(greeting), 5))
