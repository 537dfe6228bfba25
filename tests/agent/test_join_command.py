"""`ravnest join`: what it makes of its options, and how it exits."""

import json
import signal

import pytest

from ravnest.agent import identity, joining
from ravnest.api.machine import Caps
from ravnest.api.tokens import Token
from ravnest.cli import main
from ravnest.errors import ServerError

TOKEN = Token.make("provider", b"\1" * 16)


@pytest.fixture
def joined(monkeypatch, tmp_path):
    """Records what `join` is called with; `joined.result` is what it returns or raises."""
    monkeypatch.setenv("RAVNEST_HOME", str(tmp_path))
    for name in ("RAVNEST_TOKEN", "RAVNEST_JOIN_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    class Joined:
        result = None
        tells = "returned to the pool"

        async def __call__(self, settings, token, show):
            self.settings, self.token = settings, token
            show("idle", self.tells)
            if isinstance(self.result, Exception):
                raise self.result
            return self.result

    recorder = Joined()
    monkeypatch.setattr(joining, "join", recorder)
    return recorder


def test_without_options_nothing_is_limited(joined, tmp_path, capsys):
    assert main(["join", "host"]) == 0
    assert joined.token is None
    settings = joined.settings
    assert str(settings.address) == "https://host:8470"
    assert settings.home == tmp_path / "provider"
    assert settings.caps == Caps()
    assert (settings.listen, settings.advertise, settings.once) == ("0.0.0.0:0", (), False)
    assert capsys.readouterr().out == "returned to the pool\n"
    assert not settings.is_named


@pytest.mark.parametrize("variable", ["RAVNEST_TOKEN", "RAVNEST_JOIN_TOKEN"])
def test_a_token_need_not_be_typed(joined, monkeypatch, variable):
    monkeypatch.setenv(variable, str(TOKEN))
    assert main(["join", "host"]) == 0
    assert joined.token == TOKEN


REQUESTER = Token.make("requester", b"\1" * 16)


@pytest.mark.parametrize(
    ("text", "server", "why"),
    [
        (str(REQUESTER), ["host"], "its role is requester"),
        (str(TOKEN)[:-3], ["host"], "this is no token"),
        (str(TOKEN), ["http://host", "--insecure"], "without TLS nobody can tell whether it is of"),
    ],
    ids=["of another role", "damaged", "of a server that shows no certificate"],
)
def test_the_token_of_all_commands_is_left_out_if_it_is_not_surely_for_joining(
    joined, monkeypatch, capsys, text, server, why
):
    """Its owner may have it to submit jobs with, or for another server."""
    monkeypatch.setenv("RAVNEST_TOKEN", text)
    assert main(["join", *server]) == 0
    assert joined.token is None
    assert f"RAVNEST_TOKEN is not used to join: {why}" in capsys.readouterr().out


def test_the_token_of_all_commands_does_not_hide_the_one_of_the_file(joined, monkeypatch, tmp_path):
    (tmp_path / "join.toml").write_text(f'url = "host"\ntoken = "{TOKEN}"\n')
    monkeypatch.setenv("RAVNEST_TOKEN", str(REQUESTER))
    assert main(["join", "--config", str(tmp_path / "join.toml")]) == 0
    assert joined.token == TOKEN


@pytest.mark.parametrize(
    "text",
    [str(Token.make("provider", b"\2" * 16)), "damaged"],
    ids=["of another server", "damaged"],
)
def test_a_machine_that_has_joined_does_not_look_at_the_token_of_all_commands(
    joined, monkeypatch, capsys, text
):
    monkeypatch.setattr(identity, "load_identity", lambda home, address: object())
    monkeypatch.setenv("RAVNEST_TOKEN", text)
    assert main(["join", "host"]) == 0
    assert joined.token is None
    assert capsys.readouterr().out == "returned to the pool\n"


def test_what_is_given_to_join_with_is_taken_as_it_is(joined, monkeypatch, capsys):
    """Whoever reads the refusal is told the role."""
    assert main(["join", "host", "--token", str(REQUESTER)]) == 0
    assert joined.token == REQUESTER
    monkeypatch.setenv("RAVNEST_JOIN_TOKEN", str(REQUESTER))
    joined.token = None
    assert main(["join", "host"]) == 0
    assert joined.token == REQUESTER


@pytest.mark.parametrize("name", ["grace", "mei's MacBook 🍏"])
def test_a_name_that_is_changed_is_told(joined, capsys, name):
    assert main(["join", "host", "--name", name]) == 0
    assert joined.settings.is_named
    told = "will be called 'meis MacBook'" in capsys.readouterr().out
    assert told == (joined.settings.name != name)


def test_every_option_arrives(joined, tmp_path):
    options = ["--token", str(TOKEN), "--name", "a's!", "--memory", "1.5", "--threads", "3"]
    options += ["--bandwidth", "20", "--hours", "9:00-17:30", "--device", "cuda:1", "--no-listen"]
    options += ["--advertise", "203.0.113.7:99", "--allow-scripts", "sandboxed", "--nice", "10"]
    options += ["--home", str(tmp_path / "x"), "--once", "--insecure", "--gpu-memory", "6"]
    assert main(["join", "http://host:1", *options]) == 0
    assert joined.token == TOKEN
    settings = joined.settings
    assert str(settings.address) == "http://host:1"
    assert (settings.name, settings.home) == ("as", tmp_path / "x")
    assert settings.caps == Caps(
        memory_bytes=1_500_000_000,
        device_memory_bytes=6_000_000_000,
        threads=3,
        bandwidth_mbps=20.0,
        hours="09:00-17:30",
        scripts="sandboxed",
    )
    assert (settings.device, settings.listen, settings.nice) == ("cuda:1", None, 10)
    assert (settings.advertise, settings.once) == (("203.0.113.7:99",), True)


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["host", "--hours", "9-5"],
        ["host", "--hours", "25:00-07:00"],
        ["host", "--memory", "0.1"],
        ["host", "--threads", "0"],
        ["host", "--bandwidth", "0.03"],
        ["host", "--device", "tpu"],
        ["host", "--devices", "cuda:0;cuda:1"],
        ["host", "--devices", "cuda,cuda:0"],
        ["host", "--allow-scripts", "maybe"],
    ],
)
def test_wrong_options_are_wrong_usage(joined, options, capsys):
    assert main(["join", *options]) == 2
    assert capsys.readouterr().err.startswith("Usage: ravnest join")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["host", "--token", "x"], "this is no token"),
        (["host", "--listen", "7700"], "--listen 7700: expected HOST:PORT"),
        (["host", "--advertise", "me"], "--advertise me: expected HOST:PORT"),
        (["http://host"], "--insecure"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(joined, options, words, capsys):
    assert main(["join", *options]) == 1
    assert words in capsys.readouterr().err


def test_exit_codes(joined, capsys):
    joined.result = signal.SIGINT
    assert main(["join", "host"]) == 130
    joined.result = signal.SIGTERM
    assert main(["join", "host"]) == 143
    joined.result = ServerError("removed")
    assert main(["join", "host"]) == 1
    assert capsys.readouterr().err == "error: removed\n"


def test_lines_for_programs(joined, capsys):
    assert main(["join", "host", "--log-json"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert (line["event"], line["text"]) == ("idle", "returned to the pool")
    assert line["at"] > 0


@pytest.mark.parametrize("options", [[], ["--log-json"]])
def test_nothing_that_steers_a_terminal_is_shown(joined, capsys, options):
    """A server and a script have a say in what is told."""
    joined.tells = "line\n\x1b[2J\x9b \u202e owned"
    assert main(["join", "host", *options]) == 0
    told = capsys.readouterr().out
    assert not set(told) & set("\x1b\x9b\u202e")
    assert "u001b" not in told
    assert "owned" in told
