"""The server to compare with: the same frameworks and TLS, and nothing done with what comes."""

import datetime
import json
import socket
import tempfile
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from ravnest.server.authority import open_authority, server_certificate

messages = 0


async def enrol(request: Request) -> Response:
    await request.body()
    answer = {"provider": 1, "credential": "x", "certificate": "x" * 800, "authority": "x" * 700}
    return Response(json.dumps(answer), media_type="application/json")


async def metrics(request: Request) -> Response:
    return Response(f"ravnest_agent_messages_total {messages}")


async def agent(socket: WebSocket) -> None:
    global messages
    await socket.accept()
    await socket.receive_text()
    await socket.send_text("{}")
    try:
        while True:
            await socket.receive_text()
            messages += 1
    except WebSocketDisconnect:
        pass


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    now = datetime.datetime.now(datetime.UTC)
    server_certificate(open_authority(folder, now), folder, ["127.0.0.1"], now)
    app = Starlette(
        routes=[
            Route("/api/v1/enrol", enrol, methods=["POST"]),
            Route("/api/v1/metrics", metrics),
            WebSocketRoute("/api/v1/agent", agent),
        ]
    )
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    port = listener.getsockname()[1]
    config = uvicorn.Config(
        app,
        log_level="critical",
        ws_ping_interval=None,
        ssl_certfile=str(folder / "server.pem"),
        ssl_keyfile=str(folder / "server.key"),
    )
    print(
        json.dumps({"url": f"https://127.0.0.1:{port}", "authority": str(folder / "ca.pem")}),
        flush=True,
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
