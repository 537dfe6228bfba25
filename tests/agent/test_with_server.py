"""`ravnest join` and `ravnest server` as people run them: real processes, real TLS, on loopback."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading

import msgspec
import pytest

from ravnest.api.tokens import Token
from ravnest.api.views import Changes, Overview
from ravnest.client.address import ServerAddress
from ravnest.client.known import Access, open_client
from ravnest.client.stream import follow

WAIT_S = 120.0


class Program:
    """`ravnest …` as a process whose lines of JSON can be waited for."""

    def __init__(self, *arguments):
        environment = {name: text for name, text in os.environ.items() if "RAVNEST" not in name}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ravnest", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment, "OMP_NUM_THREADS": "1"},
        )
        self._lines = queue.SimpleQueue()
        self.errors = []
        self._threads = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=lambda: self.errors.extend(self.process.stderr), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read(self):
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def line(self):
        line = self._lines.get(timeout=WAIT_S)
        assert line is not None, "".join(self.errors)
        return json.loads(line)

    def until(self, event):
        while (line := self.line())["event"] != event:
            pass
        return line["text"]

    def end(self, number=None):
        """Its exit code."""
        if number is not None:
            self.process.send_signal(number)
        code = self.process.wait(WAIT_S)
        for thread in self._threads:
            thread.join()
        return code

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join()
        self.process.stdout.close()
        self.process.stderr.close()


def server(folder, port=0):
    return Program(
        "server", "--host", "127.0.0.1", "--port", port, "--data", folder, "--print-json"
    )


def joining(url, home, *more):
    return Program("join", url, "--home", home, "--threads", 1, "--log-json", *more)


def see(client, wanted):
    """Follow the server's own stream until the providers look as wanted."""
    providers = {}
    for event in follow(client, "/stream"):
        kind = Overview if event.event == "overview" else Changes
        for each in msgspec.json.decode(event.data, type=kind).providers:
            providers[each.id] = each
        if wanted(providers):
            return providers
    raise AssertionError("the stream has ended")


@pytest.mark.timeout(400)
def test_a_machine_joins_and_comes_back_by_itself_after_the_server_was_killed(tmp_path):
    data, home = tmp_path / "server", tmp_path / "provider"
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(server(data))
        ready = first.line()
        url, token = ready["url"], ready["join_token"]
        agent = stack.enter_context(
            joining(url, home, "--token", token, "--name", "laptop", "--memory", "1")
        )
        # What it offers is one figure, whoever says it.
        assert "1.0 GB of memory offered" in agent.until("measured")
        assert agent.until("enrolled").endswith("as provider-1")
        operator = (data / "operator.token").read_text().strip()
        client = stack.enter_context(open_client(Access(ServerAddress.parse(url), operator)))
        (seen,) = see(client, lambda all_: any(each.measured for each in all_.values())).values()
        assert (seen.name, seen.state) == ("laptop", "idle")
        assert min(seen.gflops, seen.up_mbps, seen.down_mbps, seen.memory_bytes) > 0
        assert seen.worker_limit_bytes == 10**9
        assert client.get("/overview", Overview).server.memory_bytes == 10**9

        first.process.kill()
        first.process.wait()
        again = stack.enter_context(server(data, ready["port"]))
        assert again.line()["url"] == url
        # On the first connection it said "joined as …".
        assert agent.until("joined").startswith("joined as laptop")
        assert agent.until("joined").startswith("connected again as laptop")
        see(client, lambda all_: [each.state for each in all_.values()] == ["idle"])

        steer = [sys.executable, "-m", "ravnest", "provider", "--home", home]
        for action, state in (("pause", "paused"), ("resume", "idle")):
            subprocess.run([*steer, action], check=True, timeout=WAIT_S, capture_output=True)
            see(client, lambda all_, state=state: all_[1].state == state)
        shown = subprocess.run(
            [*steer, "status"], check=True, timeout=WAIT_S, capture_output=True, text=True
        )
        assert shown.stdout.startswith(f"laptop (provider-1) at {url}: idle\noffers 1.0 GB")

        assert agent.end(signal.SIGTERM) == 0, agent.errors
        see(client, lambda all_: all_[1].state == "away")
        # Known from now on: no token, and the same provider, whatever it is called.
        later = stack.enter_context(joining(url, home, "--no-listen", "--name", "desk"))
        assert later.until("joined").endswith("joined as desk (provider-1)")
        subprocess.run([*steer, "leave"], check=True, timeout=WAIT_S, capture_output=True)
        events = []
        while not events or events[-1]["event"] != "left":
            events.append(later.line())
        assert events[-1]["text"] == "this provider has left"
        assert "away" not in [each["event"] for each in events]
        assert later.end() == 0, later.errors
        stranger = stack.enter_context(joining(url, home))
        assert stranger.end() == 1
        assert "add --token" in "".join(stranger.errors)


@pytest.mark.timeout(200)
def test_a_wrong_token_and_a_wrong_server_are_told_apart(tmp_path):
    with server(tmp_path / "server") as running:
        ready = running.line()
        url, token = ready["url"], Token.parse(ready["join_token"])
        invented = Token("provider", token.fingerprint, token.id, "0" * len(token.secret))
        elsewhere = Token.make("provider", b"\0" * 16)
        for given, words in ((invented, "token"), (elsewhere, "not the server that the token")):
            with joining(url, tmp_path / "home", "--token", given) as agent:
                assert agent.end() == 1
                text = "".join(agent.errors)
            assert text.startswith("error: ")
            assert words in text
            assert given.secret not in text
            assert not list((tmp_path / "home").glob("identity/*/credential"))
