"""A stretch of the way between two parties: bytes are passed on unread, until it is shut."""

import asyncio
import contextlib

from ravnest.wire.routes import split_address


class Forwarder:
    """Listens at one address for another one. While it is shut nothing listens there."""

    def __init__(self, address, target):
        self.address = address
        self._target = split_address(target, "the target")
        self._server = None
        self._connections = set()
        self.passed = 0
        """Bytes, in both directions."""

    async def open(self):
        self._server = await asyncio.start_server(self._serve, *split_address(self.address, "here"))

    async def shut(self):
        self._server.close()
        for writer in list(self._connections):
            writer.transport.abort()
        self._server = None

    async def _serve(self, reader, writer):
        try:
            onward_reader, onward = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        self._connections |= {writer, onward}
        await asyncio.gather(self._pump(reader, onward), self._pump(onward_reader, writer))
        self._connections -= {writer, onward}

    async def _pump(self, reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                self.passed += len(data)
                writer.write(data)
                await writer.drain()
        writer.close()
