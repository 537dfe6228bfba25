"""A server from its folder to its end: authority, store, first tokens, listening, signals."""

import asyncio
import contextlib
import datetime
import ipaddress
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import uvicorn

from ravnest.api.limits import encode
from ravnest.api.requests import NewToken, Role
from ravnest.descriptors import allow_many_files
from ravnest.errors import ServerError, TokenError
from ravnest.locks import only_one
from ravnest.sandbox.bubblewrap import remedy, why_not
from ravnest.server.authority import open_authority, server_certificate
from ravnest.server.belonging import belong_together
from ravnest.server.changes import Put
from ravnest.server.connection_limits import (
    HEADER_BYTES,
    READ_PATIENCE_S,
    ConnectionLimits,
    HttpProtocol,
    WebSocketProtocol,
    listen,
)
from ravnest.server.folders import Folders
from ravnest.server.service.app import make_app
from ravnest.server.service.control import MESSAGE_BYTES
from ravnest.server.service.service import Options, Service
from ravnest.server.store import Store, open_store
from ravnest.whole import PRIVATE, write_whole

_OPERATOR_HOURS = 24.0 * 365 * 10
_GRACE_S = 10
_BACKLOG = 2048
_PING_S = _PONG_S = 20.0


@dataclass(frozen=True)
class Listening:
    """Where and how the server is reached."""

    host: str = "0.0.0.0"
    port: int = 8470
    tls: bool = True


@dataclass(frozen=True)
class Ready:
    """A server that answers."""

    port: int
    scheme: str
    operator_token: Path
    join_token: str | None
    """Made at the first start; those of later starts are made by the operator."""
    service: Service
    stop: Callable[[], None]
    """May be called from any thread."""


async def serve(
    options: Options,
    listening: Listening,
    on_ready: Callable[[Ready], None],
    *,
    store: str | None = None,
    token_hours: float = 24.0,
) -> None:
    """Until a signal comes, `Ready.stop` is called, or the store fails (a `ServerError`)."""
    no_sandbox = await asyncio.to_thread(why_not, network=False)
    if no_sandbox is not None and options.require_sandbox:
        raise ServerError(f"--require-sandbox: {no_sandbox}; {remedy()}")
    allow_many_files()
    folders = Folders(options.folder)
    with contextlib.ExitStack() as stack:
        # Of two servers with the same folder and port the second ends here.
        limits = ConnectionLimits(per_address=not options.behind_proxy)
        listener = stack.enter_context(_listen(listening, limits))
        folders.make()
        # And with the same folder, another port and, by mistake, another store: here.
        stack.enter_context(_alone_in(folders))
        # Before anything is written: these files may be why the disk is full.
        folders.empty_incoming()
        folders.must_be_one()
        now = datetime.datetime.now(datetime.UTC)
        authority = open_authority(folders.authority, now)
        certificate, key = server_certificate(authority, folders.authority, options.names, now)
        url = store or str(folders.database)
        opened = stack.enter_context(_opened(url))
        belong_together(folders, opened, url)
        service = Service(options, opened, authority)
        service.no_sandbox = no_sandbox or ""
        join_token = await _first_tokens(service, token_hours)
        port = listener.getsockname()[1]
        scheme = "https" if listening.tls else "http"
        write_whole(folders.root / "address", _addresses(scheme, port, options.names).encode())
        config = uvicorn.Config(
            limits.asgi(make_app(service)),
            http=HttpProtocol,
            h11_max_incomplete_event_size=HEADER_BYTES,
            ws=WebSocketProtocol,
            ws_max_size=MESSAGE_BYTES,
            ws_per_message_deflate=False,
            ws_ping_interval=_PING_S,
            ws_ping_timeout=_PONG_S,
            access_log=False,
            log_config=None,
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_graceful_shutdown=_GRACE_S,
            timeout_keep_alive=int(READ_PATIENCE_S),  # `ConnectionLimits` is sooner
            ssl_certfile=certificate if listening.tls else None,
            ssl_keyfile=key if listening.tls else None,
        )
        loop = asyncio.get_running_loop()

        def ready(server: _Server) -> None:
            def stop() -> None:
                loop.call_soon_threadsafe(server.end)

            token = folders.operator_token
            on_ready(Ready(port, scheme, token, join_token, service, stop))

        await _Server(config, service, limits, ready).serve([listener])
        if service.core.failure is not None:
            raise ServerError(str(service.core.failure))


class _Server(uvicorn.Server):
    def __init__(
        self,
        config: uvicorn.Config,
        service: Service,
        limits: ConnectionLimits,
        ready: Callable[["_Server"], None],
    ) -> None:
        super().__init__(config)
        self._service = service
        self._limits = limits
        self._ready = ready
        self._watch: asyncio.Task[None] | None = None

    def end(self) -> None:
        """In order; at once if it is asked for twice."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._watch = asyncio.create_task(self._end_with_the_store())
        self._ready(self)

    async def _end_with_the_store(self) -> None:
        await self._service.core.failed.wait()
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.begin_to_close()
        if self._watch is not None:
            self._watch.cancel()
        self._limits.close_pending()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals end the server and nothing else; a thread that runs one gets none."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        kinds = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(kind, lambda *_: self.end()) for kind in kinds]
        try:
            yield
        finally:
            for kind, handler in zip(kinds, before, strict=True):
                signal.signal(kind, handler)


def _listen(listening: Listening, limits: ConnectionLimits) -> socket.socket:
    try:
        return listen(listening.host, listening.port, _BACKLOG, limits)
    except OSError as error:
        raise ServerError(
            f"cannot listen on {listening.host}:{listening.port}: {error.strerror}; "
            "another server may be running there (choose with --host and --port)"
        ) from error


def _addresses(scheme: str, port: int, names: tuple[str, ...]) -> str:
    """By which commands on this machine recognise the server, and need no token. Without TLS that
    is the first alone: whoever answers at another is not known to be this one."""
    found = ["127.0.0.1", *names] if scheme == "https" else ["127.0.0.1"]
    hosts = dict.fromkeys(f"[{name}]" if ":" in name else name for name in found)
    return "".join(f"{scheme}://{host}:{port}\n" for host in hosts)


def _alone_in(folders: Folders) -> contextlib.AbstractContextManager[None]:
    return only_one(
        folders.root / "server.lock",
        otherwise=ServerError(
            f"another server is running in {folders.root}; stop it first, or give this one a "
            "folder of its own (--data DIR)"
        ),
    )


@contextlib.contextmanager
def _opened(url: str) -> Iterator[Store]:
    store = open_store(url)
    try:
        yield store
    finally:
        store.close()


async def _first_tokens(service: Service, hours: float) -> str | None:
    """A token for the operator if there is no good one; at the first start one to join with."""
    first = not service.access.shown()
    path = service.folders.operator_token
    if not _is_good(service, path):
        token = await _make(service, "operator", "operator", _OPERATOR_HOURS)
        write_whole(path, f"{token}\n".encode(), PRIVATE)
    return await _make(service, "provider", "join", hours) if first else None


async def _make(service: Service, role: Role, name: str, hours: float) -> str:
    record, token = service.access.make(
        NewToken(role=role, name=name, hours=hours), service.clock()
    )
    await service.core.keep([Put("token", record.id, encode(record))])
    return str(token)


def _is_good(service: Service, path: Path) -> bool:
    try:
        return service.access.caller(path.read_text().strip(), service.clock()).kind == "operator"
    except (OSError, ValueError, TokenError):  # not there, not text, not a token of ours
        return False


def own_names(host: str, more: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Names and addresses by which this machine may be reached, those that were given first."""
    found = [*more, *([] if host in ("0.0.0.0", "::") else [host])]
    found += ["localhost", "127.0.0.1", "::1", socket.gethostname()]
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family in (socket.AF_INET, socket.AF_INET6):
                found.append(address.address.partition("%")[0])
    return tuple(dict.fromkeys(name for name in found if _is_name(name)))


def _is_name(name: str) -> bool:
    """Whether it can be in a certificate."""
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    return name.isascii() and all(part and len(part) < 64 for part in name.split("."))


def reached_at(host: str, names: tuple[str, ...]) -> str:
    """The address others should type: what was given, else this machine's way to the outside."""
    if names:
        return names[0]
    if host not in ("0.0.0.0", "::"):
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # an address for documentation; nothing is sent
        return str(probe.getsockname()[0])
    return socket.gethostname()
