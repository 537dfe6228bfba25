"""The networks there are, by name."""

import sys
from collections.abc import Callable

from ravnest.errors import NodeError
from ravnest.wire.grpc_network import GrpcNetwork
from ravnest.wire.security import TlsFiles
from ravnest.wire.streams import Network
from ravnest.wire.tcp_network import TcpNetwork


def network_for(name: str, tls: TlsFiles | None) -> Callable[[], Network]:
    """How to make a network of this name; all providers of a run must use the same."""
    if name == "grpc":
        keys = None if tls is None else tls.read()
        return lambda: GrpcNetwork(keys)
    if name != "tcp":
        raise NodeError(f"transport is {name!r}; expected one of 'grpc', 'tcp'")
    if sys.platform == "win32":
        raise NodeError("transport='tcp' is not available on Windows; use transport='grpc'")
    if tls is not None:
        raise NodeError("transport='tcp' does not encrypt; use transport='grpc' with tls=…")
    return TcpNetwork
