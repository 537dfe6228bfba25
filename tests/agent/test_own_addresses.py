"""An agent dials no service of its own machine, at whatever address that answers."""

import asyncio
import errno
import ipaddress
import socket
from types import SimpleNamespace

import pytest

from ravnest.agent import addresses
from ravnest.agent.addresses import Dialling, is_own

CARD, IDLE, ROUTED, AWAY = "7.7.7.7", "8.8.4.4", "10.9.0.77", "9.9.9.9"
"""Of a card with a line, of a bridge without guests, in a prefix of loopback; another machine's."""


class NotHere:
    def has(self, provider, endpoint):
        return False


def answer(monkeypatch, *, own):
    """What the system says about this machine; a kernel knows more than its interfaces."""
    card, bridge = (
        [SimpleNamespace(family=socket.AF_INET, address=ip, netmask="255.255.255.248")]
        for ip in (CARD, IDLE)
    )
    states = {"card": SimpleNamespace(isup=True), "bridge": SimpleNamespace(isup=False)}
    monkeypatch.setattr(addresses.psutil, "net_if_addrs", lambda: {"card": card, "bridge": bridge})
    monkeypatch.setattr(addresses.psutil, "net_if_stats", lambda: states)
    monkeypatch.setattr(addresses, "is_own", lambda ip: str(ip) in own)


def allowed(*ips, port=6379, server=None):
    dialling = Dialling(NotHere(), lambda: server and ipaddress.ip_address(server), lan=True)
    named = [f"{ip}:{port}" for ip in ips]
    return [str(each.ip) for each in asyncio.run(dialling.allowed(3, named))]


def test_what_the_kernel_calls_its_own_is_not_dialled(monkeypatch):
    """Redis on all addresses was reached at that of a bridge whose last guest had ended, and at
    every address of a prefix that lay on loopback."""
    answer(monkeypatch, own=(CARD, IDLE, ROUTED))
    assert allowed(CARD, IDLE, ROUTED, AWAY) == [AWAY]


def test_an_interface_without_a_line_is_the_owners_and_leads_nowhere(monkeypatch):
    answer(monkeypatch, own=())
    assert allowed(CARD, IDLE, AWAY) == [AWAY]
    assert allowed("8.8.4.5", AWAY, port=443) == [AWAY]  # behind the owner's firewall
    assert [str(each.ip) for each in addresses._interfaces()] == [CARD]


@pytest.fixture(params=["routes", "bind"])
def kernel(request, monkeypatch):
    """Linux tells its routes; other systems tell what can be bound."""
    if request.param == "bind":
        monkeypatch.delattr(socket, "AF_NETLINK", raising=False)
    return request.param


@pytest.mark.parametrize("ip", ["127.0.0.1", "127.9.8.7", "::1"])
def test_the_kernel_knows_its_own(kernel, ip):
    assert is_own(ipaddress.ip_address(ip))


@pytest.mark.parametrize("ip", ["1.1.1.1", "192.0.2.7", "2600::1", "fd12:3456::1"])
def test_the_kernel_knows_what_is_not_its_own(kernel, ip):
    assert not is_own(ipaddress.ip_address(ip))


def test_a_kernel_that_does_not_say_may_have_it(monkeypatch):
    def unwilling(*_):
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(socket, "socket", unwilling)
    assert is_own(ipaddress.ip_address("1.1.1.1"))
