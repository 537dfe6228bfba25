"""Commands on the machine of a server: whose token they take, and what a refused one says."""

import dataclasses
import re
import shlex
from pathlib import Path

import pytest
from made import CAPS, FACTS
from servers import running_server

from ravnest.agent.identity import enrol, home_of_device
from ravnest.api.tokens import Token
from ravnest.cli import main
from ravnest.cli.server import _as_text
from ravnest.client.address import ServerAddress
from ravnest.server.state.records import Part


@pytest.fixture
def server(home):
    with running_server(home / "server") as running:
        yield running


def test_a_token_to_join_with_does_not_lock_the_operator_out(server, home, capsys):
    """It was remembered in place of operator.token, and every command after it was refused."""
    given = ["--server", server.url, "--token", server.token("provider")]
    assert main(["status", *given]) == 1
    refused = capsys.readouterr().err
    assert "this is a provider token, which only enrols machines; looking takes a viewer" in refused
    assert "ravnest token make viewer" in refused
    assert not (home / "servers.json").exists()
    assert main(["token", "list"]) == 0


def test_a_remembered_token_that_is_refused_is_said_to_be_remembered(server, home, capsys):
    assert main(["status", "--server", server.url, "--token", server.token("viewer")]) == 0
    capsys.readouterr()
    assert main(["token", "list"]) == 1
    refused = capsys.readouterr().err
    assert "this is a viewer token; this takes an operator token" in refused
    assert f"the one that {home / 'servers.json'} remembers for {server.url}" in refused
    assert f'--token "$(cat {home / "server" / "operator.token"})"' in refused
    assert main(["token", "list", "--token", server.operator]) == 0


def test_a_token_that_was_typed_is_not_said_to_be_from_anywhere(server, capsys):
    assert main(["token", "list", "--token", server.token("viewer")]) == 1
    refused = capsys.readouterr().err
    assert "operator token" in refused
    assert "remembers" not in refused


@pytest.mark.usefixtures("home")
def test_what_is_remembered_of_localhost_is_remembered_of_its_address(tmp_path):
    with running_server(tmp_path / "second") as second:
        local = second.url.replace("127.0.0.1", "localhost")
        assert main(["status", "--server", local, "--token", second.operator]) == 0
        assert main(["token", "list", "--server", second.url]) == 0


def test_another_server_of_this_machine_is_not_offered_the_token_of_the_usual_one(
    server, tmp_path, capsys
):
    with running_server(tmp_path / "second") as second:
        assert main(["status", "--server", second.url]) == 1
        assert '--token "$(cat DIR/operator.token)"' in capsys.readouterr().err
        assert main(["status", "--server", second.url, "--token", second.operator]) == 0


def test_a_token_that_nobody_typed_is_named_if_another_server_answers(server, home, capsys):
    """The usual folder says an address at which a server of another folder runs by now."""
    (home / "server" / "operator.token").write_text(_of_another(server.operator))
    assert main(["status"]) == 1
    refused = capsys.readouterr().err
    assert "is not the server that the token is from" in refused
    assert f"the one in {home / 'server' / 'operator.token'}, as none was given" in refused


@pytest.mark.parametrize("restarted", [False, True])
def test_the_commands_that_a_server_prints_work_also_if_its_folder_is_another(
    tmp_path, home, restarted, capsys
):
    folder = tmp_path / "a folder of its own"
    with running_server(folder) as second:
        ready = dataclasses.replace(second.ready, join_token=None if restarted else "rav1_x")
        _as_text(ready, "127.0.0.1", folder, usual=home / "server")
        printed = capsys.readouterr().out
        told = re.findall(r"^    ravnest (?:submit|token) .*? (--server .*)$", printed, re.M)
        assert len(told) == 1 + restarted
        for options in told:
            assert f"'{folder / 'operator.token'}'" in options
            said = re.sub(r"\$\(cat '(.*)'\)", lambda file: Path(file[1]).read_text(), options)
            assert main(["token", "list", *shlex.split(said)]) == 0
        assert main(["token", "list"]) == 0, "remembered, as it says"


def test_a_server_in_the_usual_folder_prints_no_token_of_its_operator(server, home, capsys):
    _as_text(server.ready, "127.0.0.1", home / "server", usual=home / "server")
    printed = capsys.readouterr().out
    assert f"ravnest submit job.py --server {server.url}\n" in printed
    assert "operator.token" not in printed


@pytest.mark.parametrize("job", [None, "j0"])
def test_a_machine_at_work_is_not_said_to_be_paused_already(server, home, monkeypatch, job, capsys):
    given = Token.parse(server.token("provider"))
    address = ServerAddress.parse(server.url)
    own = enrol(home / "provider", address, given, name="shed", facts=FACTS, caps=CAPS)
    world = server.ready.service.world
    if job is not None:
        part = Part(
            id="a", job=job, run=1, provider=own.provider, role="Root", node="n", cluster=0, stage=0
        )
        monkeypatch.setitem(world.at_work, own.provider, part)
    assert main(["provider", "pause"]) == 0
    expected = "is paused" if job is None else "will be paused after its part of job j0"
    assert capsys.readouterr().out == f"provider-{own.provider} {expected}\n"


def test_all_devices_of_a_machine_are_steered_at_once(server, home, capsys):
    address = ServerAddress.parse(server.url)
    folders = [home / "provider", home_of_device(home / "provider", "cuda:1")]
    own = []
    for folder in folders:
        given = Token.parse(server.token("provider"))
        own.append(enrol(folder, address, given, name="shed", facts=FACTS, caps=CAPS).provider)
    assert main(["provider", "pause"]) == 0
    assert capsys.readouterr().out == "".join(f"provider-{id} is paused\n" for id in own)
    assert main(["provider", "leave"]) == 0
    assert not list((home / "provider").rglob("identity.json"))


def _of_another(token):
    return str(Token.make(Token.parse(token).role, b"another one's ca"))
