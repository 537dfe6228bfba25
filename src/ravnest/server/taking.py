"""Whether the other side of a connection takes what it is sent; if not, the connection is ended.

A slow reader takes a little now and then, however long the whole may last; somebody who takes
nothing holds memory and a file descriptor for ever. Only the system knows what has arrived, also of
what was written before a connection was closed.
"""

import asyncio
import socket
import struct
import sys
from collections.abc import Callable

UNTAKEN_S = 60.0
"""How long something may be on its way, at least, to somebody who takes nothing of it."""

# Of the system's `struct tcp_info`, which only grows at its end.
_INFO_BYTES = 148
_UNACKNOWLEDGED = struct.Struct("24xI")
_TAKEN = struct.Struct("120xQ")
_UNSENT = struct.Struct("144xI")


def taken(connection: socket.socket) -> int | None:
    """The bytes that have arrived at the other side; None if all have, or the system tells not."""
    if sys.platform != "linux":
        return None
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except OSError:  # closed
        return None
    if len(info) < _INFO_BYTES:
        return None
    if not _UNACKNOWLEDGED.unpack_from(info)[0] and not _UNSENT.unpack_from(info)[0]:
        return None
    arrived: int = _TAKEN.unpack_from(info)[0]
    return arrived


class Taking:
    """Looks now and then, so that what is sent costs nothing more."""

    def __init__(
        self, transport: asyncio.Transport, taken: Callable[[socket.socket], int | None] = taken
    ) -> None:
        self._transport = transport
        # Now, for one that is closed cannot be asked for it.
        self._connection: socket.socket = transport.get_extra_info("socket")
        self._taken = taken
        self._before: int | None = None
        self._timer = asyncio.get_running_loop().call_later(UNTAKEN_S, self.look)

    def look(self) -> None:
        self._timer.cancel()
        now = self._taken(self._connection)
        if now is not None and now == self._before:
            self._transport.abort()
            return
        self._before = now
        self._timer = asyncio.get_running_loop().call_later(UNTAKEN_S, self.look)

    def stop(self) -> None:
        self._timer.cancel()
