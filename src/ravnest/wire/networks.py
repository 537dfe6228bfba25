"""The networks there are, by name."""

import sys
from collections.abc import Callable

from ravnest.errors import NodeError
from ravnest.plan import bytes_per_s
from ravnest.wire.grpc_network import GrpcNetwork
from ravnest.wire.routes import Routes
from ravnest.wire.security import TlsFiles
from ravnest.wire.streams import Network
from ravnest.wire.tcp_network import TcpNetwork
from ravnest.wire.throttle import ThrottledNetwork

_LEAST_AHEAD, _LONGEST_TRIP_S = 64 << 10, 0.5


def network_for(
    name: str,
    tls: TlsFiles | None,
    routes: Routes | None = None,
    bandwidth_mbps: float | None = None,
) -> Callable[[], Network]:
    """How to make a network of this name; all providers of a run must use the same."""
    if bandwidth_mbps is None:
        return _maker(name, tls, routes, None)
    limit = bytes_per_s(bandwidth_mbps)
    make = _maker(name, tls, routes, limit)
    return lambda: ThrottledNetwork(make(), limit)


def _maker(
    name: str, tls: TlsFiles | None, routes: Routes | None, limit: float | None
) -> Callable[[], Network]:
    if name == "grpc":
        keys = None if tls is None else tls.read()
        # gRPC takes in what nobody has asked for yet; of that, no more than a long line needs.
        ahead = None if limit is None else max(_LEAST_AHEAD, int(limit * _LONGEST_TRIP_S))
        return lambda: GrpcNetwork(keys, routes, ahead_bytes=ahead)
    if name != "tcp":
        raise NodeError(f"transport is {name!r}; expected one of 'grpc', 'tcp'")
    if sys.platform == "win32":
        raise NodeError("transport='tcp' is not available on Windows; use transport='grpc'")
    if tls is not None:
        raise NodeError("transport='tcp' does not encrypt; use transport='grpc' with tls=…")
    return lambda: TcpNetwork(routes=routes)
