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


def network_for(
    name: str,
    tls: TlsFiles | None,
    routes: Routes | None = None,
    bandwidth_mbps: float | None = None,
) -> Callable[[], Network]:
    """How to make a network of this name; all providers of a run must use the same."""
    make = _maker(name, tls, routes)
    if bandwidth_mbps is None:
        return make
    limit = bytes_per_s(bandwidth_mbps)
    return lambda: ThrottledNetwork(make(), limit)


def _maker(name: str, tls: TlsFiles | None, routes: Routes | None) -> Callable[[], Network]:
    if name == "grpc":
        keys = None if tls is None else tls.read()
        return lambda: GrpcNetwork(keys, routes)
    if name != "tcp":
        raise NodeError(f"transport is {name!r}; expected one of 'grpc', 'tcp'")
    if sys.platform == "win32":
        raise NodeError("transport='tcp' is not available on Windows; use transport='grpc'")
    if tls is not None:
        raise NodeError("transport='tcp' does not encrypt; use transport='grpc' with tls=…")
    return lambda: TcpNetwork(routes=routes)
