"""Links through the server, as the agent at one end of them sees them."""

import asyncio
from collections import Counter

from websockets.asyncio.server import ServerConnection, serve
from websockets.frames import Opcode

from ravnest.agent import channel
from ravnest.agent.channel import open_socket
from ravnest.agent.tunnel import Tunnels
from ravnest.client.address import ServerAddress
from ravnest.client.http import HttpClient

WAIT_S = 30.0


def test_the_server_is_pinged_beside_a_tunnel_and_not_through_it(monkeypatch):
    """An answer would wait behind all that fills a thin line, and the tunnel be taken for dead."""
    monkeypatch.setattr(channel, "_SILENCE_S", 0.05)

    async def story():
        pinged, dialled, enough = Counter(), asyncio.Event(), asyncio.Event()

        class Counting(ServerConnection):
            def process_event(self, event):
                if getattr(event, "opcode", None) is Opcode.PING:
                    pinged[self.request.path] += 1
                    if pinged["/api/v1/agent"] == 3:
                        enough.set()
                super().process_event(event)

        async def echo(socket):
            if "/relay/" in socket.request.path:
                dialled.set()
            async for piece in socket:
                await socket.send(piece)

        async with (
            asyncio.timeout(WAIT_S),
            serve(echo, "127.0.0.1", 0, create_connection=Counting) as server,
        ):
            port = server.sockets[0].getsockname()[1]
            client = HttpClient(ServerAddress("127.0.0.1", port, "http"), authority=None)
            tunnels = Tunnels(client, "a7")
            host, _, port = (await tunnels.open([8]))[8].rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            await dialled.wait()
            async with open_socket(client, "/agent", most=1000):
                await enough.wait()
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            assert pinged.keys() == {"/api/v1/agent"}
            writer.close()
            await tunnels.close()
            client.close()

    asyncio.run(story())
