"""`ravnest server` as people run it: signals, kill -9, a second one on the same folder."""

import asyncio
import datetime
import json
import os
import signal
import socket
import ssl
import subprocess
import sys

import httpx
import pytest
from fake_agent import FakeAgent

from ravnest.cli import main
from ravnest.server import running
from ravnest.server.authority import open_authority


class Process:
    """A server; `line` is what it says when it is ready."""

    def __init__(self, folder, *options):
        command = [sys.executable, "-m", "ravnest", "server", "--host", "127.0.0.1"]
        command += ["--port", "0", "--data", str(folder), "--print-json", *options]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        text = self.process.stdout.readline()
        self.line = json.loads(text) if text else None

    def end(self, kind):
        """Exit code, and what it said to stderr."""
        os.kill(self.process.pid, kind)
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


@pytest.fixture
def start(tmp_path):
    begun = []

    def start(*options, folder=tmp_path / "server"):
        begun.append(Process(folder, *options))
        return begun[-1]

    yield start
    for one in begun:
        if one.process.poll() is None:
            one.end(signal.SIGKILL)


def authority(folder):
    return open_authority(folder / "authority", datetime.datetime.now(datetime.UTC)).pem


def test_the_first_start_makes_everything_and_the_second_keeps_it(start, tmp_path):
    first = start("--public", "Train.Example.org")
    folder = tmp_path / "server"
    assert first.line["join_token"].startswith("rav1_")
    assert (folder / "operator.token").stat().st_mode & 0o777 == 0o600
    known = (folder / "address").read_text().split()
    assert known[0] == first.line["url"]
    assert {first.line["public_url"], f"https://[::1]:{first.line['port']}"} <= set(known)
    operator = (folder / "operator.token").read_text()
    assert first.end(signal.SIGTERM)[0] == 0
    again = start()
    assert again.line["join_token"] is None
    assert (folder / "operator.token").read_text() == operator
    assert again.end(signal.SIGINT)[0] == 0


def test_providers_survive_kill_9_at_any_moment(start, tmp_path):
    """Machines enrol while the server is killed; whoever has an answer is known afterwards."""
    enrolled = {}

    async def flood(line, pem):
        async def one(number):
            agent = await FakeAgent.enrol(line["url"], token, authority=pem, name=f"p{number}")
            enrolled[agent.provider] = agent.name
            return number

        waiting = [asyncio.create_task(one(number)) for number in range(40)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        os.kill(server.process.pid, signal.SIGKILL)
        await asyncio.gather(*waiting, return_exceptions=True)

    token = None
    for _ in range(3):
        server = start()
        token = token or server.line["join_token"]
        asyncio.run(flood(server.line, authority(tmp_path / "server")))
        server.process.wait(timeout=30)
    server = start()
    with _operator(tmp_path) as client:
        known = client.get(f"{server.line['url']}/api/v1/providers").json()
    assert len(enrolled) >= 3
    assert enrolled.items() <= {one["id"]: one["name"] for one in known}.items()


def _operator(tmp_path):
    token = (tmp_path / "server" / "operator.token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.Client(verify=_context(tmp_path), headers=headers)


def _context(tmp_path):
    return ssl.create_default_context(cadata=authority(tmp_path / "server"))


def test_a_second_server_on_the_same_folder_is_refused(start):
    start()
    second = start()
    _, errors = second.process.communicate(timeout=60)
    assert second.process.returncode == 1
    assert "another server is running" in errors


def test_a_second_server_touches_nothing_of_the_first_also_with_another_store(start, tmp_path):
    start()
    on_its_way = tmp_path / "server" / "incoming" / "half"
    on_its_way.write_bytes(b"x")
    second = start("--store", str(tmp_path / "other.db"))
    _, errors = second.process.communicate(timeout=60)
    assert second.process.returncode == 1
    assert "another server is running in" in errors
    assert on_its_way.exists()


def test_a_port_that_is_taken_is_named(start, tmp_path):
    port = start().line["port"]
    second = start("--port", str(port), folder=tmp_path / "other")
    _, errors = second.process.communicate(timeout=60)
    assert second.process.returncode == 1
    assert f"127.0.0.1:{port}" in errors
    assert not (tmp_path / "other").exists()


def test_the_text_for_people_has_the_lines_to_paste(tmp_path):
    command = [sys.executable, "-m", "ravnest", "server", "--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen(
        [*command, "--data", str(tmp_path), "--public", "box.lan"],
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        text = ""
        while "token make requester" not in text:
            text += server.stdout.readline()
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    assert "ravnest join https://box.lan:" in text
    assert " --token rav1_" in text
    assert "ravnest submit job.py " in text
    assert "    ravnest dashboard --server https://127.0.0.1:" in text


def test_it_ends_in_good_order_while_a_socket_is_being_closed(start, tmp_path):
    """The provider has said goodbye, the server has answered, and the line is still there."""
    server = start()
    url, port, pem = server.line["url"], server.line["port"], authority(tmp_path / "server")
    agent = asyncio.run(FakeAgent.enrol(url, server.line["join_token"], authority=pem))
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as line,
        _context(tmp_path).wrap_socket(line, server_hostname="127.0.0.1") as tls,
        tls.makefile("rwb") as talk,
    ):
        talk.write(
            b"GET /api/v1/agent HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            b"Authorization: Bearer " + agent.credential.encode() + b"\r\n\r\n"
        )
        talk.flush()
        assert b"101" in talk.readline()
        while talk.readline().strip():
            pass
        talk.write(bytes([0x88, 0x82, 0, 0, 0, 0]) + (1000).to_bytes(2, "big"))
        talk.flush()
        assert talk.read(1) == b"\x88"
        code, errors = server.end(signal.SIGINT)
    assert (code, errors) == (0, "fake is a provider now [provider 1]\n")


@pytest.mark.needs("postgres")
def test_postgres_is_a_store_too(start, postgres_url, tmp_path):
    server = start("--store", postgres_url)

    async def enrol():
        return await FakeAgent.enrol(
            server.line["url"],
            server.line["join_token"],
            authority=authority(tmp_path / "server"),
            name="kept",
        )

    agent = asyncio.run(enrol())
    server.end(signal.SIGKILL)
    again = start("--store", postgres_url)
    with _operator(tmp_path) as client:
        known = client.get(f"{again.line['url']}/api/v1/providers").json()
    assert [(one["id"], one["name"]) for one in known] == [(agent.provider, "kept")]
    assert not (tmp_path / "server" / "server.sqlite").exists()


@pytest.mark.parametrize("size", ["x", "-1", "5Q"])
def test_a_size_that_is_none_is_named(size):
    done = subprocess.run(
        [sys.executable, "-m", "ravnest", "server", f"--max-upload={size}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert size in done.stderr


def test_a_server_that_requires_a_sandbox_does_not_start_without(tmp_path, monkeypatch, capsys):
    missing = "bubblewrap (bwrap) is not installed"
    monkeypatch.setattr(running, "why_not", lambda *, network: missing)
    given = ["server", "--data", str(tmp_path / "server"), "--port", "0", "--require-sandbox"]
    assert main(given) != 0
    assert f"--require-sandbox: {missing}" in capsys.readouterr().err
    assert not (tmp_path / "server").exists()
