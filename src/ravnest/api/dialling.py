"""Which addresses that others have named a machine may dial: no SSRF, no port scans. Pure.

A provider says where others reach it, a server passes that on, and an agent dials it. Either
could name a service on the dialler's own machine, in its owner's network or at a third
party. So both sides ask `why_not`: the server before it hands an address out (`between`: it sees
where agents connect from), the agent before it dials (`from_here`: it knows its own networks, and
which providers run on its machine).
"""

import functools
import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface
Scope = Literal["global", "private", "loopback", "never"]

MOST_ENDPOINTS, MOST_HOSTS = 6, 4
"""Of one provider; an IPv6 host is counted by its first 64 bits, of which it may have many."""
LOWEST_PORT = 1024
"""Below it are the services of systems. A provider has such a port only at a global address that it
connects from."""


def _networks(*texts: str) -> tuple[Network, ...]:
    return tuple(map(ipaddress.ip_network, texts))


PRIVATE = _networks(
    *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"),  # RFC 1918
    "100.64.0.0/10",  # carrier-grade NAT, and some VPNs
    "fc00::/7",  # unique local addresses
)
_METADATA = _networks(
    # Services that clouds have for each machine alone, outside the link-local range. They hand
    # out credentials.
    *("100.100.100.200/32", "168.63.129.16/32"),  # Alibaba, Azure
    *("fd00:ec2::/32", "fd20:ce::/32", "fd00:42::/32"),  # Amazon, Google, Scaleway
    "fd00:c1::a9fe:a9fe/128",  # Oracle
    "fd00:a9fe:a9fe::1/128",  # Akamai
    "fd00:100::100:200/128",  # Alibaba
)
_SPECIAL = _networks(
    # IANA's registries of special-purpose addresses, spelled out: releases of Python differ.
    *("0.0.0.0/8", "169.254.0.0/16", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24"),
    *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
    # Teredo is in 2001::/23, 6to4 is 2002::/16: both lead to an IPv4 address that they hide.
    *("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"),
)
_UNICAST_SIX = ipaddress.IPv6Network("2000::/3")
_LOOPBACK = _networks("127.0.0.0/8", "::1/128")
_ISATAP = (0x00005EFE, 0x02005EFE)
"""In the middle of an IPv6 address: the last 32 bits are the IPv4 address that it leads to."""
_PORT = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)


@functools.lru_cache(maxsize=1 << 14)
def scope_of(ip: Ip) -> Scope:
    """IPv6 that has IPv4 inside (mapped, NAT64, 6to4, Teredo, ISATAP) is never dialled: a machine
    that has the inner address can name that."""
    if _is_in(ip, _LOOPBACK):
        return "loopback"
    if _is_in(ip, _METADATA) or _is_in(ip, _SPECIAL):
        return "never"
    if ip.version == 6 and (int(ip) >> 32) & 0xFFFFFFFF in _ISATAP:
        return "never"
    if _is_in(ip, PRIVATE):
        return "private"
    return "global" if ip.version == 4 or ip in _UNICAST_SIX else "never"


def _is_in(ip: Ip, networks: Iterable[Network]) -> bool:
    return any(ip in network for network in networks)


@dataclass(frozen=True)
class Endpoint:
    """A literal address and a port: nothing has to be looked up to dial it."""

    ip: Ip
    port: int

    @classmethod
    def parse(cls, address: str) -> "Endpoint | None":
        """None for a name, a zone, a port out of range and whatever else is no literal."""
        return _parsed(address)

    @property
    def site(self) -> Network:
        return _site(self.ip)

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if self.ip.version == 6 else f"{self.ip}:{self.port}"


@functools.lru_cache(maxsize=1 << 14)
def _parsed(address: str) -> Endpoint | None:
    host, _, port = address.rpartition(":")
    in_brackets = host.startswith("[") and host.endswith("]")
    try:
        ip = ipaddress.ip_address(host[1:-1] if in_brackets else host)
    except ValueError:
        return None
    is_plain = (ip.version == 6) == in_brackets and "%" not in host
    if not is_plain or not _PORT.fullmatch(port) or int(port) >= 1 << 16:
        return None
    return Endpoint(ip, int(port))


@functools.lru_cache(maxsize=1 << 14)
def _site(ip: Ip) -> Network:
    """What one household or one host has: an IPv4 address, or the first 64 bits of IPv6."""
    return ipaddress.ip_network(f"{ip}/{32 if ip.version == 4 else 64}", strict=False)


def bare_ip(text: str) -> Ip | None:
    """As a socket names its ends: IPv4 on an IPv6 socket is IPv4, zones are left out."""
    try:
        ip = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (ip.ipv4_mapped or ip) if isinstance(ip, ipaddress.IPv6Address) else ip


@dataclass(frozen=True)
class Reach:
    """What is known about the way from a machine that dials to the one that it looks for."""

    known: frozenset[Ip] = frozenset()
    """The other machine connects from there."""
    networks: tuple[Network, ...] = ()
    """Private ones in which it may be."""
    household: tuple[Network, ...] = ()
    """Global ones that the dialler is in: what it reaches there is behind its owner's firewall, so
    they count as private."""
    own: frozenset[Ip] = frozenset()
    """The dialler's own: a service that listens on all addresses answers there as on loopback."""
    maybe_here: bool = False
    """Both connect from loopback, so that they may be on one machine. It proves nothing: a tunnel
    or a proxy beside the server connects from there, too. The dialler knows."""
    here: frozenset[Endpoint] = frozenset()
    """It has proven on the dialler's machine that it runs there, at these."""
    low_ports: bool = False
    """Ports of global addresses have been judged by the server, which knows more."""


def between(target: Ip | None, dialler: Ip | None, *, lan: bool = False) -> Reach:
    """As the server knows it: where both connect from, or None with a proxy in between. `lan`: the
    dialler's owner has said --lan."""
    known = frozenset() if target is None else frozenset([target])
    household = (_site(dialler),) if dialler is not None and scope_of(dialler) == "global" else ()
    # Only a global address tells that both are behind one router: a private one, or loopback, may
    # be that of a proxy in front of the server, from which all agents of the world seem to come.
    behind_one = target is not None and _is_in(target, household)
    both = {None if ip is None else scope_of(ip) for ip in (target, dialler)}
    return Reach(
        known=known,
        networks=(*PRIVATE, *household) if lan or behind_one else (),
        household=household,
        maybe_here=both == {"loopback"},
    )


def from_here(
    server: Ip | None,
    interfaces: Iterable[Interface],
    *,
    idle: Iterable[Interface] = (),
    own: Iterable[Ip] = (),
    here: Iterable[Endpoint] = (),
    lan: bool = False,
) -> Reach:
    """As an agent knows it, whatever its server says: its owner's networks are not the server's
    to look into. A server in a private network has its agents there. `idle`: interfaces without
    a line to others. `own`: more addresses at which the agent's machine answers itself."""
    running = list(interfaces)
    ours = [*running, *idle]
    household = tuple(each.network for each in ours if scope_of(each.ip) == "global")
    near = [each.network for each in running if scope_of(each.ip) == "private"]
    near += [block for block in PRIVATE if server is not None and server in block]
    return Reach(
        networks=(*(PRIVATE if lan else near), *household),
        household=household,
        own=frozenset([*(each.ip for each in ours), *own]),
        here=frozenset(here),
        low_ports=True,
    )


def why_not(endpoint: Endpoint, reach: Reach) -> str | None:
    """The reason against dialling it; None if there is none."""
    ip, scope = endpoint.ip, scope_of(endpoint.ip)
    is_known, is_far = ip in reach.known, scope == "global" and not _is_in(ip, reach.household)
    if scope == "never":
        return f"{ip} is link-local, reserved or a cloud's own, never a provider's"
    if endpoint.port < LOWEST_PORT and not (is_far and (is_known or reach.low_ports)):
        return f"port {endpoint.port} is a system's, and {ip} no global address of the provider"
    if scope == "loopback" or ip in reach.own:
        is_here = reach.maybe_here or endpoint in reach.here
        return None if is_here else f"{ip} is loopback or the dialler's own, not the provider's"
    if is_far or is_known or _is_in(ip, reach.networks):
        return None
    return f"{ip} is private here, and the two not known to share a network (--lan dials it)"


def may_dial(
    address: str, target: Ip | None, dialler: Ip | None, *, lan: bool = False
) -> str | None:
    """The reason against it, as the server decides; None if there is none."""
    endpoint = Endpoint.parse(address)
    if endpoint is None:
        return f"{address!r} is no literal IP address with a port from 1 to 65535"
    return why_not(endpoint, between(target, dialler, lan=lan))


def chosen(addresses: Iterable[str], reach: Reach) -> tuple[Endpoint, ...]:
    """Those that may be dialled, each once, in this order: of few hosts, and few in all."""
    found: dict[Endpoint, None] = {}
    sites: set[Network] = set()
    for endpoint in map(Endpoint.parse, addresses):
        if endpoint is None or why_not(endpoint, reach) is not None:
            continue
        if endpoint.site in sites or len(sites) < MOST_HOSTS:
            sites.add(endpoint.site)
            found[endpoint] = None
    return tuple(found)[:MOST_ENDPOINTS]
