"""What requesters and operators do, against a real server: TLS, tokens, records."""

import asyncio

import msgspec
import pytest
from fake_agent import FakeAgent
from servers import running_server

from ravnest import Session
from ravnest.api.tokens import Token
from ravnest.api.views import Overview
from ravnest.cli import main
from ravnest.cli.doctor.findings import Finding
from ravnest.errors import TokenError

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def server(tmp_path):
    with running_server(tmp_path / "server") as running:
        yield running


def findings(capsys, *argv, code):
    assert main(["doctor", "--json", *argv]) == code
    found = msgspec.json.decode(capsys.readouterr().out, type=list[Finding])
    return {one.check: one for one in found}


def test_tokens_are_made_used_and_revoked(server, capsys):
    """The server is known by the token alone, and remembered afterwards."""
    operator = server.token("operator")
    made = "token", "make", "viewer", "--name", "grace", "--hours", "2"
    assert main([*made, "--server", server.url, "--token", operator]) == 0
    viewer = capsys.readouterr().out.strip()
    with Session(server.url, viewer) as session:
        assert session.overview().jobs == ()
        with pytest.raises(TokenError):
            session.tokens()
        with pytest.raises(TokenError, match="viewer token"):
            session.check_may_submit()
    assert main(["token", "list"]) == 0
    assert "grace" in capsys.readouterr().out
    id = Token.parse(viewer).id
    assert main(["token", "revoke", "nobodys"]) == 1
    assert "'nobodys' is no token of this server" in capsys.readouterr().err
    assert main(["token", "revoke", ""]) == 1
    assert "'' may be any of " in capsys.readouterr().err
    assert main(["token", "revoke", id[:-2]]) == 0
    assert capsys.readouterr().out == f"revoked {id}\n"
    with Session(server.url, viewer) as session, pytest.raises(TokenError, match="revoked"):
        session.overview()


def test_a_token_is_revoked_with_the_providers_that_have_enrolled_with_it(server, capsys):
    bearer = server.ready.join_token
    enrolled = FakeAgent.enrol(server.url, bearer, authority=server.authority, name="stray")
    asyncio.run(enrolled)
    with Session(server.url, server.token("operator"), remember=True) as session:
        assert [one.name for one in session.overview().providers] == ["stray"]
        id = Token.parse(bearer).id
        assert main(["token", "revoke", id, "--with-providers"]) == 0
        assert f"revoked {id}, and removed the providers" in capsys.readouterr().out
        assert session.overview().providers == ()


def test_status_and_its_stream(server, capsys):
    token = server.token("viewer")
    assert main(["status", "--json", "--server", server.url, "--token", token]) == 0
    found = msgspec.json.decode(capsys.readouterr().out, type=Overview)
    with Session() as session:
        watched = session.watch()
        assert next(watched).server.name == found.server.name
        watched.close()


def test_the_doctor_tells_good_tokens_from_bad_ones(server, capsys):
    good = findings(capsys, server.url, "--token", server.token("requester"), code=0)
    assert good["token"].verdict == good["clock"].verdict == good["server"].verdict == "ok"
    foreign = str(Token.make("requester", b"\7" * 16))
    other = findings(capsys, server.url, "--token", foreign, code=1)
    assert "not the server that the token is from" in other["token"].text
    old = server.token("requester")
    server.ready.service.gate._clock = lambda: 4e9
    expired = findings(capsys, server.url, "--token", old, code=1)
    assert "expired" in expired["token"].text


def test_an_impostor_gets_no_token(server, tmp_path):
    """Another server at the address that was known: its authority is not the right one."""
    token = server.token("requester")
    with running_server(tmp_path / "other") as impostor:
        with Session(impostor.url, token) as session, pytest.raises(TokenError, match="in between"):
            session.overview()
        assert token not in str(impostor.ready.service.access.shown())
