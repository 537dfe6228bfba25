"""Streams over gRPC: one bidirectional call per stream, chunks as raw bytes.

gRPC supplies connections, encryption and flow control. It never sees a message: without
serialisers a call moves bytes, and the method below is the only one there is.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

# A DataLoader forks its workers. gRPC would run handlers of its own then, which do not survive its
# threads of event loops; the workers never use it. Read when grpc is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc
from grpc import aio

from ravnest.descriptors import for_callers
from ravnest.wire.framing import CHUNK_BYTES, Buffer
from ravnest.wire.routes import Routes
from ravnest.wire.security import TlsKeys
from ravnest.wire.streams import (
    ChunkStream,
    ListenError,
    Room,
    StreamError,
    StreamHandler,
    no_room,
)

_SERVICE, _METHOD = "ravnest.Wire", "Stream"
_LARGEST = 2 * CHUNK_BYTES
_PING_MS, _UNANSWERED_MS = 5_000, 600_000
_OPTIONS: Sequence[tuple[str, int | str]] = (
    ("grpc.max_receive_message_length", _LARGEST),
    ("grpc.max_send_message_length", _LARGEST),
    # Whether a neighbour is there, its link knows (`Flow.watch`). The answer to a ping waits behind
    # all that fills the buffers of a thin line: to be cut for that would happen again and again.
    ("grpc.keepalive_time_ms", _PING_MS),
    ("grpc.keepalive_timeout_ms", _UNANSWERED_MS),
    ("grpc.http2.ping_timeout_ms", _UNANSWERED_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", _PING_MS),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", _PING_MS // 2),
    ("grpc.http2.max_ping_strikes", 0),
    # Large frames over long links: do not let HTTP/2 windows throttle them.
    ("grpc.http2.lookahead_bytes", 1 << 24),
    ("grpc.http2.bdp_probe", 1),
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.http2.write_buffer_size", 1 << 20),
    # How long one try to connect may take at least: encrypted, over a long way.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
_SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),
    # Whoever connects and says nothing does not keep a descriptor for ever.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 30_000),
)
# How gRPC says that a call is over. Which of them depends on the moment: what Core refuses because
# the call was cut under its hands comes as an internal error of gRPC's, not as the call's status.
_CALL_IS_OVER = (aio.AioRpcError, aio.BaseError, asyncio.InvalidStateError)


class GrpcNetwork:
    """The network over which providers of different machines meet."""

    def __init__(
        self,
        tls: TlsKeys | None = None,
        routes: Routes | None = None,
        ahead_bytes: int | None = None,
    ) -> None:
        """`ahead_bytes`: no more than that comes from anybody before it is asked for."""
        self._tls = tls
        self._routes = routes or Routes()
        options = dict(_OPTIONS)
        if ahead_bytes is not None:
            options |= {"grpc.http2.lookahead_bytes": ahead_bytes, "grpc.http2.bdp_probe": 0}
        self._options = tuple(options.items())
        self._server: aio.Server | None = None
        self._channels: set[aio.Channel] = set()
        self._closing: set[asyncio.Task[None]] = set()

    async def listen(self, address: str, handler: StreamHandler) -> None:
        async def serve(_: Any, context: Any) -> None:
            await handler(_ServerStream(context, self._tls))

        method = grpc.stream_stream_rpc_method_handler(serve)
        limit = ("grpc.max_allowed_incoming_connections", for_callers())
        server = aio.server(options=(*self._options, *_SERVER_OPTIONS, limit))
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: method}),)
        )
        try:
            if self._tls is None:
                server.add_insecure_port(address)
            else:
                server.add_secure_port(address, _server_credentials(self._tls))
        except RuntimeError as error:
            raise ListenError(
                f"cannot listen on {address}. Is another provider running there?"
            ) from error
        await server.start()
        self._server = server

    async def dial(self, address: str) -> ChunkStream:
        # A connection of its own: when a stream is given up because nothing comes any more, the
        # next one must not be sent the same way.
        channel = self._channel(address)
        self._channels.add(channel)
        call = channel.stream_stream(f"/{_SERVICE}/{_METHOD}")()
        try:
            await call.wait_for_connection()
        except BaseException as error:
            self._end(channel)
            if isinstance(error, _CALL_IS_OVER):
                raise _broken(error) from error
            raise
        return _ClientStream(call, lambda: self._end(channel))

    def _end(self, channel: aio.Channel) -> None:
        if channel in self._channels:
            self._channels.discard(channel)
            task = asyncio.ensure_future(channel.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _channel(self, address: str) -> aio.Channel:
        real, name = self._routes.real(address), self._routes.name_of(address)
        options = self._options
        if name is not None:
            # A way that was looked for leads there as it is, not by way of a proxy.
            options = (*options, ("grpc.enable_http_proxy", 0))
        if self._tls is None:
            return aio.insecure_channel(real, options=options)
        if name is not None:
            # Whoever answers must be the one of the plan, wherever the way leads.
            options = (*options, ("grpc.ssl_target_name_override", name))
        return aio.secure_channel(real, _client_credentials(self._tls), options=options)

    async def close(self) -> None:
        for channel in list(self._channels):
            self._end(channel)
        await asyncio.gather(*self._closing, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(grace=0.2)
            self._server = None


def _server_credentials(tls: TlsKeys) -> grpc.ServerCredentials:
    return grpc.ssl_server_credentials(
        [(tls.key, tls.certificate)],
        root_certificates=tls.authority.pem.encode(),
        require_client_auth=tls.mutual,
    )


def _client_credentials(tls: TlsKeys) -> grpc.ChannelCredentials:
    own = (tls.key, tls.certificate) if tls.mutual else ()
    return grpc.ssl_channel_credentials(tls.authority.pem.encode(), *own)


def _broken(error: Exception) -> StreamError:
    details = (error.details() if isinstance(error, aio.AioRpcError) else None) or str(error)
    return StreamError(details, nobody_there="Connection refused" in details)


class _ClientStream:
    """The dialling side of a call."""

    chunk_bytes = CHUNK_BYTES

    def __init__(self, call: Any, on_end: Callable[[], None]) -> None:
        self._call = call
        self._on_end = on_end

    async def read(self, room: Room = no_room) -> bytes | None:
        try:
            chunk = await self._call.read()
        except _CALL_IS_OVER as error:
            raise _broken(error) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # by whoever waits for it, not the call
                raise
            raise StreamError("the connection was closed") from None
        return None if chunk is aio.EOF else chunk

    async def write(self, parts: Sequence[Buffer]) -> None:
        try:
            await self._call.write(b"".join(parts))
        except _CALL_IS_OVER as error:
            raise _broken(error) from error

    async def close(self) -> None:
        with contextlib.suppress(*_CALL_IS_OVER):
            await self._call.done_writing()

    def abandon(self) -> None:
        self._call.cancel()
        self._on_end()

    def doubt(self, node: str) -> str | None:
        """Who answers was known before anything was said."""
        return None


class _ServerStream:
    """The dialled side of a call."""

    chunk_bytes = CHUNK_BYTES

    def __init__(self, context: Any, tls: TlsKeys | None) -> None:
        self._context = context
        self._tls = tls

    async def read(self, room: Room = no_room) -> bytes | None:
        try:
            chunk = await self._context.read()
        except _CALL_IS_OVER as error:
            raise _broken(error) from error
        return None if chunk is aio.EOF else chunk

    async def write(self, parts: Sequence[Buffer]) -> None:
        try:
            await self._context.write(b"".join(parts))
        except _CALL_IS_OVER as error:
            raise _broken(error) from error

    async def close(self) -> None:
        """The call ends when its handler returns."""

    def abandon(self) -> None:
        """The same."""

    def doubt(self, node: str) -> str | None:
        if self._tls is None:
            return None
        return self._tls.doubt(node, _names_in(self._context.auth_context()))


def _names_in(shown: Mapping[str, Iterable[bytes]]) -> set[str]:
    """Of a caller's certificate. Its common name counts only if it has no other names: so it is
    for whoever dials, too."""
    alternatives = any(shown.get("x509_subject_alternative_name", ()))
    found = shown.get("peer_dns" if alternatives else "x509_common_name", ())
    return {name.decode("utf-8", "replace") for name in found}
