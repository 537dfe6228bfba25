"""Where others may try to reach this machine."""

import ipaddress
import socket
from collections.abc import Iterator

import psutil

from ravnest.client.address import ServerAddress
from ravnest.errors import NodeError

_MOST = 16


def split_host_port(text: str, option: str) -> tuple[str, int]:
    """`host` is without the brackets of IPv6."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not int(port) < 1 << 16:
        raise NodeError(f"{option} {text}: expected HOST:PORT, such as 0.0.0.0:7700")
    if ":" in host and not host.startswith("["):
        raise NodeError(f"{option} {text}: an IPv6 address is written in brackets, [{host}]:{port}")
    return host.strip("[]"), int(port)


def join_host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def advertised(server: ServerAddress, host: str, port: int) -> tuple[str, ...]:
    """Every address of this machine that somebody else might reach, the likeliest first."""
    if host not in ("0.0.0.0", "::"):
        return (join_host_port(host, port),)
    found = dict.fromkeys([*_towards(server), *_of_interfaces(six=host == "::")])
    if server.is_local:
        # The server, and perhaps other providers, are on this very machine.
        found["127.0.0.1"] = None
    return tuple(join_host_port(each, port) for each in found)[:_MOST]


def _towards(server: ServerAddress) -> Iterator[str]:
    """The address that this machine has on its way to the server. Nothing is sent."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(
            server.host, server.port, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            name = str(probe.getsockname()[0])
    except OSError:
        return
    if _is_useful(name) and ":" not in name:
        yield name


def _of_interfaces(*, six: bool) -> Iterator[str]:
    families = {socket.AF_INET, socket.AF_INET6} if six else {socket.AF_INET}
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    for name, addresses in psutil.net_if_addrs().items():
        if name not in up:
            continue
        for address in addresses:
            if address.family in families and _is_useful(address.address):
                yield address.address


def _is_useful(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:  # with the name of an interface: of no use elsewhere
        return False
    return not (address.is_loopback or address.is_link_local or address.is_unspecified)
