"""A real server in a thread of its own, with TLS, records on disk and tokens of any age."""

import asyncio
import threading

from ravnest.api.limits import encode
from ravnest.api.requests import NewToken
from ravnest.server.changes import Put
from ravnest.server.running import Listening, serve
from ravnest.server.service.service import Options
from ravnest.server.state.world import Settings

PATIENCE_S = 30.0


class RealServer:
    """Between `with` and its end; `token(role)` makes one, as the operator would."""

    def __init__(self, folder):
        self._options = Options(folder=folder, settings=Settings(settle_s=0.5))
        self._begun = threading.Event()
        self._failure = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        if not self._begun.wait(PATIENCE_S) or self._failure is not None:
            raise RuntimeError("the server has not started") from self._failure
        return self

    def __exit__(self, *_):
        self._ready.stop()
        self._thread.join(PATIENCE_S)

    def _run(self):
        try:
            asyncio.run(serve(self._options, Listening("127.0.0.1", 0), self._is_ready))
        except Exception as error:
            self._failure = error
        finally:
            self._begun.set()

    def _is_ready(self, ready):
        self._ready, self.service = ready, ready.service
        self._loop = asyncio.get_running_loop()
        self.url = f"https://127.0.0.1:{ready.port}"
        self._begun.set()

    def token(self, role, made_hours_ago=0.0):
        """Good for an hour."""

        async def make():
            wanted = NewToken(role=role, hours=1.0)
            made_at = self.service.clock() - 3600 * made_hours_ago
            record, token = self.service.access.make(wanted, made_at)
            await self.service.core.keep([Put("token", record.id, encode(record))])
            return str(token)

        return asyncio.run_coroutine_threadsafe(make(), self._loop).result(PATIENCE_S)
