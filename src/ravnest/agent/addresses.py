"""Where others may try to reach this machine, and which of their addresses it may dial itself."""

import asyncio
import errno
import ipaddress
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import psutil

from ravnest.agent.rendezvous import Rendezvous
from ravnest.api.dialling import (
    Endpoint,
    Interface,
    Ip,
    Network,
    bare_ip,
    chosen,
    from_here,
    scope_of,
)
from ravnest.client.address import ServerAddress
from ravnest.errors import NodeError

_MOST = 16
_FINDS_AT_ONCE = 8
_MINUTE_S = 60.0
_IN_VAIN = {"global": 6, "private": 60, "loopback": 60}
"""Dials of one host in a minute that find no provider; then it is left alone. A provider that names
the address of a third party must not make a whole pool flood it. On one machine or in one network
many providers share a host, or answer at several addresses of which one is enough."""


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


def literals(host: str, port: int, option: str) -> tuple[str, ...]:
    """What a name stands for now: others dial no names. Not for the event loop's thread."""
    where = f"{option} {join_host_port(host, port)}"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise NodeError(f"{where}: there is no such host ({error})") from error
    ips = [ip for *_, place in found if (ip := bare_ip(str(place[0]))) is not None]
    useful = [str(Endpoint(ip, port)) for ip in dict.fromkeys(ips) if scope_of(ip) != "never"]
    if not useful:
        raise NodeError(
            f"{where}: no other provider dials that, it is link-local or reserved; expected an "
            "address of this machine or of the router in front, or --no-listen"
        )
    return tuple(useful)


def advertised(server: ServerAddress, host: str, port: int) -> tuple[str, ...]:
    """Every address of this machine that somebody else might reach, the likeliest first."""
    if host not in ("0.0.0.0", "::"):
        return literals(host, port, "--listen")
    others = [str(each.ip) for each in _interfaces() if each.version == 4 or host == "::"]
    # Others try the first few: global ones before the bridges of containers.
    others.sort(key=lambda text: scope_of(ipaddress.ip_address(text)) != "global")
    found = dict.fromkeys([*_towards(server), *others])
    useful = [text for text in found if scope_of(ipaddress.ip_address(text)) in _OF_OTHERS]
    if server.is_local:
        # The server, and perhaps other providers, are on this very machine.
        useful.append("127.0.0.1")
    return tuple(join_host_port(each, port) for each in useful[:_MOST])


_OF_OTHERS = ("global", "private")


def _towards(server: ServerAddress) -> Iterator[str]:
    """The address that this machine has on its way to the server. Nothing is sent."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(
            server.host, server.port, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            ours = str(probe.getsockname()[0])
    except OSError:
        return
    if ":" not in ours:
        yield ours


def _interfaces(*, idle: bool = False) -> Iterator[Interface]:
    """With their networks; those that have a line to others, or those that have none."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    for name, addresses in psutil.net_if_addrs().items():
        for address in addresses if (name in up) != idle else ():
            if address.family in (socket.AF_INET, socket.AF_INET6):
                yield _interface(address.address.partition("%")[0], address.netmask)


def _interface(ip: str, netmask: str | None) -> Interface:
    if ":" not in ip:
        return ipaddress.ip_interface(f"{ip}/{netmask or 32}")
    bits = int(ipaddress.IPv6Address(netmask)).bit_count() if netmask else 128
    return ipaddress.ip_interface(f"{ip}/{bits}")


def is_own(ip: Ip) -> bool:
    """Whether this machine's own services answer there: its kernel knows. They do at more than the
    addresses of its interfaces: in a prefix of loopback, and where a route leads to the machine."""
    try:
        return _is_routed_here(ip)
    except (AttributeError, OSError):  # no Linux, or netlink is kept from this process
        return _binds(ip)


def _is_routed_here(ip: Ip) -> bool:
    """As Linux routes what is sent there: one question of rtnetlink. `bind` does not know routes of
    IPv6 that lead here, and takes every address with `ip_nonlocal_bind`."""
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    route = struct.pack("=8BI", family, ip.max_prefixlen, *bytes(6), 0)
    target = struct.pack("=HH", 4 + len(ip.packed), _RTA_DST) + ip.packed
    size = 16 + len(route) + len(target)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.send(struct.pack("=IHHII", size, _RTM_GETROUTE, 1, 0, 0) + route + target)
        answer = kernel.recv(1 << 12)
    (kind,) = struct.unpack_from("=H", answer, 4)
    return bool(kind == _RTM_NEWROUTE and answer[16 + 7] == _RTN_LOCAL)


_RTM_NEWROUTE, _RTM_GETROUTE, _RTA_DST, _RTN_LOCAL = 24, 26, 1, 2
"""Of rtnetlink(7). Any other answer says that the address is not reached at all."""


def _binds(ip: Ip) -> bool:
    """A kernel that does not say that it is another's address may have it as its own."""
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(ip), 0))
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL
    return True


class Dialling:
    """All that an agent dials because others have named it goes through here."""

    def __init__(
        self,
        rendezvous: Rendezvous,
        server_ip: Callable[[], Ip | None],
        *,
        lan: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`server_ip`: as the channel to the server knows it."""
        self._rendezvous, self._server_ip = rendezvous, server_ip
        self._lan, self._clock = lan, clock
        self._in_vain: defaultdict[Network, list[float]] = defaultdict(list)
        """When each host was dialled; those dials that have found a provider are taken out."""
        self.gate = asyncio.Semaphore(_FINDS_AT_ONCE)
        """Other providers that are looked for at once."""

    async def allowed(self, provider: int, addresses: Sequence[str]) -> tuple[Endpoint, ...]:
        """Judged by what this machine itself knows now: its networks, at which addresses it
        answers itself, and whether that provider runs on it; not by what a server says."""
        server = self._server_ip()
        return await asyncio.to_thread(self._allowed, provider, addresses, server)

    def _allowed(
        self, provider: int, addresses: Sequence[str], server: Ip | None
    ) -> tuple[Endpoint, ...]:
        named = [each for each in map(Endpoint.parse, addresses) if each is not None]
        here = [each for each in named if self._rendezvous.has(provider, each)]
        reach = from_here(
            server,
            _interfaces(),
            idle=_interfaces(idle=True),
            own=[each.ip for each in named if is_own(each.ip)],
            here=here,
            lan=self._lan,
        )
        return chosen(addresses, reach)

    def reserve(self, endpoint: Endpoint) -> bool:
        """Whether it may be dialled now, by the rate limit of dials that are in vain. Each counts
        as one of those from its beginning: many may begin before the first of them fails."""
        since = self._clock() - _MINUTE_S
        for site, times in list(self._in_vain.items()):
            times[:] = [at for at in times if at > since]
            if not times:
                del self._in_vain[site]
        if len(self._in_vain.get(endpoint.site, ())) >= _IN_VAIN[scope_of(endpoint.ip)]:
            return False
        self._in_vain[endpoint.site].append(self._clock())
        return True

    def give_back(self, endpoint: Endpoint) -> None:
        """What was reserved: the provider that is looked for has answered there."""
        if times := self._in_vain.get(endpoint.site):
            times.pop(0)
