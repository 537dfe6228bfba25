"""Ports that are nobody's, and that no connection that goes out is given meanwhile."""

import contextlib
import socket

from ravnest.ports import free_ports


def test_they_differ_can_be_listened_on_and_are_none_that_connections_get():
    ports = free_ports(50)
    assert len(set(ports)) == 50
    assert max(ports) < 32768
    with contextlib.ExitStack() as held:
        for port in ports:
            held.enter_context(socket.create_server(("127.0.0.1", port)))


def test_one_that_somebody_has_is_not_given(monkeypatch):
    taken, other = free_ports(2)
    wanted = iter([taken, other])
    monkeypatch.setattr("ravnest.ports.secrets.randbelow", lambda _: next(wanted) - 20_000)
    with socket.create_server(("127.0.0.1", taken)):
        assert free_ports(1) == [other]
