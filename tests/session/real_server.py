"""A real server in a thread of its own, with TLS, records on disk and an operator's token."""

import asyncio
import datetime
import socket
import ssl
import threading

import uvicorn

from ravnest.api.limits import encode
from ravnest.api.requests import NewToken
from ravnest.server.authority import open_authority, server_certificate
from ravnest.server.changes import Put
from ravnest.server.folders import Folders
from ravnest.server.service.app import make_app
from ravnest.server.service.service import Options, Service
from ravnest.server.store import open_store

PATIENCE_S = 30.0


class RealServer:
    """Between `with` and its end; `token(role)` makes one, as the operator would."""

    def __init__(self, folder):
        self._folder = folder
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._socket.getsockname()[1]}"
        self._ready = threading.Event()
        self._failure = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        if not self._ready.wait(PATIENCE_S) or self._failure is not None:
            raise RuntimeError("the server has not started") from self._failure
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join(PATIENCE_S)

    def _end(self):
        self.service.begin_to_close()
        self._server.should_exit = True

    def _run(self):
        try:
            asyncio.run(self._serve())
        except Exception as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self):
        folders = Folders(self._folder)
        folders.make()
        now = datetime.datetime.now(datetime.UTC)
        authority = open_authority(folders.authority, now)
        certificate = server_certificate(authority, folders.authority, ["localhost"], now)
        self.service = Service(
            Options(folder=self._folder), open_store(folders.database), authority
        )
        self._loop = asyncio.get_running_loop()
        certificate_file, key_file = certificate
        config = uvicorn.Config(
            make_app(self.service),
            log_level="warning",
            ssl_certfile=certificate_file,
            ssl_keyfile=key_file,
            ssl_version=ssl.PROTOCOL_TLS_SERVER,
            timeout_graceful_shutdown=5,
        )
        self._server = uvicorn.Server(config)
        serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        self._ready.set()
        await serving

    def token(self, role, made_hours_ago=0.0):
        """Good for an hour."""

        async def make():
            wanted = NewToken(role=role, name=role, hours=1.0)
            made_at = self.service.clock() - 3600 * made_hours_ago
            record, token = self.service.access.make(wanted, made_at)
            self.service.core.keep([Put("token", record.id, encode(record))])
            return str(token)

        return asyncio.run_coroutine_threadsafe(make(), self._loop).result(PATIENCE_S)
