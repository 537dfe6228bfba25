"""Commands on the machine of a server: whose token they take, and what a refused one says."""

import pytest
from servers import running_server

from ravnest.api.tokens import Token
from ravnest.cli import main


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


def test_what_is_remembered_of_localhost_is_remembered_of_its_address(server, home, capsys):
    (home / "server" / "address").write_text("https://elsewhere:1")
    local = server.url.replace("127.0.0.1", "localhost")
    assert main(["status", "--server", local, "--token", server.operator]) == 0
    assert main(["token", "list", "--server", server.url]) == 0


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


def _of_another(token):
    return str(Token.make(Token.parse(token).role, b"another one's ca"))
