"""Hosts of their own on this machine: network namespaces with lines of given rates between them.

The server's host has a bridge; hosts that are `near` it hang on that bridge and reach each other.
A host that is `apart` has a line to the server's host only: whoever wants to talk to it has to go
through the server. Needs Linux and root. Nothing here leaves the namespaces.
"""

import contextlib
import ctypes
import itertools
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field

_NET = "10.77"
_CLONE_NEWNET = 0x40000000
_serial = itertools.count()


@dataclass(frozen=True)
class Host:
    """A namespace; commands run in it with `inside(host, command)`."""

    name: str
    address: str

    def inside(self, command: list[str]) -> list[str]:
        return ["ip", "netns", "exec", self.name, *command]


@dataclass
class Network:
    """The server's host and all lines that lead to it."""

    server: Host
    tag: str
    _next: Iterator[int] = field(default_factory=lambda: itertools.count(2))
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def near(self, mbps: float | None = None) -> Host:
        """On the bridge, with the server and everybody else who is near."""
        number = next(self._next)
        host = self._host(number, f"{_NET}.0.{number}")
        ours = self._line(host, number, mbps)
        _in(self.server, f"ip link set {ours} master br0 up")
        return host

    def apart(self, mbps: float | None = None) -> Host:
        """On a line of its own: the server is all that can be reached."""
        number = next(self._next)
        host = self._host(number, f"{_NET}.{number}.2")
        ours = self._line(host, number, mbps)
        _in(self.server, f"ip addr add {_NET}.{number}.1/24 dev {ours}")
        _in(self.server, f"ip link set {ours} up")
        _in(host, f"ip route add {self.server.address}/32 via {_NET}.{number}.1")
        return host

    def _host(self, number: int, address: str) -> Host:
        host = Host(f"{self.tag}-{number}", address)
        self._stack.enter_context(_namespace(host.name))
        return host

    def _line(self, host: Host, number: int, mbps: float | None) -> str:
        """A cable between the server's host and this one; the name of the server's end."""
        ours, theirs = f"v{number}s", f"v{number}p"
        _in(self.server, f"ip link add {ours} type veth peer name {theirs} netns {host.name}")
        _in(host, f"ip addr add {host.address}/24 dev {theirs}")
        _in(host, f"ip link set {theirs} up")
        if mbps is not None:
            for where, device in ((self.server, ours), (host, theirs)):
                shape = f"tbf rate {mbps}mbit burst 64kb latency 200ms"
                _in(where, f"tc qdisc add dev {device} root {shape}")
        return ours


@contextlib.contextmanager
def network() -> Iterator[Network]:
    tag = f"rav{os.getpid()}x{next(_serial)}"
    server = Host(f"{tag}-s", f"{_NET}.0.1")
    with _namespace(server.name):
        _in(server, "ip link add br0 type bridge")
        _in(server, f"ip addr add {server.address}/24 dev br0")
        _in(server, "ip link set br0 up")
        made = Network(server, tag)
        with made._stack:
            yield made


@contextlib.contextmanager
def entered(host: Host) -> Iterator[None]:
    """The calling thread, and it alone, is on that host meanwhile."""
    with open("/proc/thread-self/ns/net") as home, open(f"/run/netns/{host.name}") as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(home.fileno())


def _enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")


@contextlib.contextmanager
def _namespace(name: str) -> Iterator[None]:
    _run(f"ip netns add {name}")
    try:
        _run(f"ip -n {name} link set lo up")
        yield
    finally:
        _run(f"ip netns del {name}")


def _in(host: Host, command: str) -> None:
    _run(" ".join(host.inside(command.split())))


def _run(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr.strip()}"
