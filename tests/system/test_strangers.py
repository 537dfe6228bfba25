"""Strangers who find the ports of providers: idle ones, and ones at work."""

import os
import socket
import ssl

import psutil
import pytest
from cast import Cast, ProviderProcess, cast
from digits import accuracy, submit


@pytest.fixture
def two(tmp_path):
    with cast(tmp_path) as made:
        for name in ("ada", "ben"):
            made.join(name, "--memory", "2")
        made.wait_for_pool(2)
        yield made


def ports(provider: ProviderProcess) -> set[int]:
    """Where the provider, or the worker it has started, listens."""
    agent = psutil.Process(provider.process.pid)
    return {
        connection.laddr.port
        for process in (agent, *agent.children(recursive=True))
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }


def call(port: int, said: bytes) -> bytes:
    """What comes back from there before it hangs up."""
    with socket.create_connection(("127.0.0.1", port), 10) as line:
        line.settimeout(15)
        try:
            line.sendall(said)
            return line.recv(4096)
        except OSError:
            return b""


def call_encrypted(port: int) -> bytes:
    """With TLS, and no certificate to show."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection(("127.0.0.1", port), 10) as line,
            context.wrap_socket(line) as secure,
        ):
            secure.settimeout(15)
            secure.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            return secure.recv(4096)
    except OSError:
        return b""


def pester(made: Cast) -> None:
    found = {port for provider in made.providers.values() for port in ports(provider)}
    assert len(found) >= len(made.providers)
    for port in found:
        for said in (b"\0" * 4096, os.urandom(65536), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"):
            assert b"ravnest" not in call(port, said).lower()
        assert call_encrypted(port) == b""


def test_strangers_are_refused_by_idle_and_working_providers_and_disturb_nobody(two: Cast):
    pester(two)
    assert two.wait("still there", lambda now: now.server.heard == 2)
    with two.session() as session:
        job = submit(session, epochs=25, max_clusters=1)
        two.wait_for_job(job.id, "running")
        two.wait("training", lambda now: any(j.step > 0 for j in now.jobs))
        pester(two)
        ended = two.wait_for_job(job.id, "done")
        assert ended.run == 1
        assert accuracy(job.result()) > 0.9
