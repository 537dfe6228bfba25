"""An impostor at the address of a server: it knows the server's authority, which is public, and has
one of its own. It must not be told a secret, whatever it answers when it is asked who it is."""

import base64

import msgspec
import pytest
from certificates import Authority
from cryptography.hazmat.primitives.serialization import Encoding
from scripted import Scripted, say

from ravnest.agent.identity import load_identity
from ravnest.api.tokens import Credential, Token, fingerprint_of
from ravnest.api.trust_anchor import TrustAnchor
from ravnest.cli import main
from ravnest.client.known import KnownServer, KnownServers, read_known
from ravnest.errors import NodeError, ServerError
from ravnest.wire.security import TlsFiles

OWN = Authority("an impostor")


def der(authority):
    return authority.certificate.public_bytes(Encoding.DER)


@pytest.fixture(params=[0, 1, 2], ids="length % 3 = {}".format)
def true(request):
    """Base64 is padded unless the length is a multiple of three. That of the signature is random,
    so that the authority of a server may have any length."""
    while True:
        made = Authority("the server's authority")
        if len(der(made)) % 3 == request.param:
            return made


def lines_of(content, width=64):
    text = base64.b64encode(content).decode()
    return [text[start : start + width] for start in range(0, len(text), width)]


def block(content, width=64, label="CERTIFICATE", newline="\n"):
    lines = content if isinstance(content, list) else lines_of(content, width)
    return newline.join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""])


def both(true, own):
    return block(true) + block(own)


FORGED = {
    "the true one first": both,
    "the own one first": lambda true, own: both(own, true),
    "the true one twice": lambda true, own: both(true, true),
    "no line end between": lambda true, own: block(true).strip() + block(own),
    "other line ends": lambda true, own: both(true, own).replace("\n", "\r\n"),
    "other line widths": lambda true, own: block(true, 76) + block(own, 1 << 20),
    "after its base64": lambda true, own: block([*lines_of(true), *lines_of(own)]),
    "after =": lambda true, own: block([*lines_of(true), "=", *lines_of(own)]),
    "after ==": lambda true, own: block([*lines_of(true), "==", *lines_of(own)]),
    "after its bytes": lambda true, own: block(true + own),
    "in a trusted certificate": lambda true, own: (
        block(true) + block(own, label="TRUSTED CERTIFICATE")
    ),
    "in an old name of a certificate": lambda true, own: (
        block(own, label="X509 CERTIFICATE") + block(true)
    ),
    "after text": lambda true, own: f"Issuer: CN=the server's\n{both(true, own)}",
    "between text": lambda true, own: f"{block(true)}# and another one\n{block(own)}",
    "in a bag": lambda true, own: f"Bag Attributes\n    friendlyName: ca\n{both(true, own)}",
    "after a zero byte": lambda true, own: f"{block(true)}\0{block(own)}",
}
BROKEN = {
    "=": lambda true: block([*lines_of(true), "="]),
    "bytes after it": lambda true: block(true + b"\0"),
    "bytes before it": lambda true: block(b"\0" + true),
    "a byte less": lambda true: block(true[:-1]),
    "text before it": lambda true: "Subject: CN=x\n" + block(true),
    "text after it": lambda true: block(true) + "# the end\n",
    "a zero byte after it": lambda true: block(true) + "\0",
    "a zero byte in it": lambda true: block(true).replace("M", "\0M", 1),
    "a comment in it": lambda true: block(["# one", *lines_of(true)]),
    "a header in it": lambda true: block(["Proc-Type: 4,CLEAR", "", *lines_of(true)]),
    "letters that are none": lambda true: block(true).replace("A", "Α", 1),  # noqa: RUF001
    "no end": lambda true: block(true).partition("-----END")[0],
    "nothing": lambda true: "",
    "an empty one": lambda true: block(b""),
}
HARMLESS = {
    "as it is": block,
    "other line ends": lambda true: block(true, newline="\r\n"),
    "long lines": lambda true: block(true, 1 << 20),
    "short lines": lambda true: block(true, 7),
    "space around it": lambda true: f"\n \n{block(true)}\n\n",
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_two_authorities_are_none(true, forge):
    for text in (forged := forge(der(true), der(OWN)), forged.encode()):
        with pytest.raises(ValueError, match=r"^it"):
            TrustAnchor.parse(text)


@pytest.mark.parametrize("damage", BROKEN.values(), ids=BROKEN)
def test_nothing_but_the_certificate_itself_is_accepted(true, damage):
    with pytest.raises(ValueError, match=r"^it"):
        TrustAnchor.parse(damage(der(true)))


@pytest.mark.parametrize("write", HARMLESS.values(), ids=HARMLESS)
def test_what_is_trusted_is_written_anew(true, write):
    anchor = TrustAnchor.parse(write(der(true)))
    assert anchor.fingerprint == fingerprint_of(der(true))
    assert anchor.pem == block(der(true))


def test_a_machine_is_no_authority(true):
    """Whoever has a certificate of the authority could otherwise be one."""
    with pytest.raises(ValueError, match="not one of an authority"):
        TrustAnchor.parse(true.keys("provider-7").certificate)


# ---- through the public face -----------------------------------------------------------------


@pytest.fixture
def impostor(true):
    """Its certificate is made out to the name that every server has, by its own authority."""
    with Scripted(OWN) as server:
        answer = both(der(true), der(OWN))
        server.answers["GET", "/api/v1/authority"] = lambda handler: say(handler, 200, answer)
        server.answers["GET", "/api/v1/whoami"] = lambda handler: say(
            handler, 200, '{"role": "operator", "name": "believed"}'
        )
        yield server


def told_secrets(server):
    return [headers["Authorization"] for *_, headers in server.seen if "Authorization" in headers]


@pytest.mark.parametrize(("command", "role"), [("status", "viewer"), ("join", "provider")])
def test_an_impostor_is_told_no_token_and_is_not_remembered(
    home, impostor, true, command, role, capsys
):
    token = str(Token.make(role, fingerprint_of(der(true))))
    server = [] if command == "join" else ["--server"]
    code = main([command, *server, str(impostor.address), "--token", token])
    assert told_secrets(impostor) == []
    assert read_known(home).servers == {}
    assert not list(home.rglob("ca.pem"))
    assert code != 0
    assert "do not send anything there" in capsys.readouterr().err


def test_an_impostor_that_was_remembered_is_found(home, impostor, true, capsys):
    token = str(Token.make("operator", fingerprint_of(der(true))))
    forged = KnownServer(token=token, authority=both(der(true), der(OWN)), used_at=1.0)
    home.mkdir()
    stored = msgspec.json.encode(KnownServers(servers={str(impostor.address): forged}))
    (home / "servers.json").write_bytes(stored)
    for again in ([], ["--token", token]):
        code = main(["status", "--server", str(impostor.address), *again])
        assert told_secrets(impostor) == []
        assert code != 0
        assert "ravnest token revoke" in capsys.readouterr().err


def test_an_authority_that_is_not_the_tokens_is_found(home, impostor, true, capsys):
    token = str(Token.make("operator", fingerprint_of(der(true))))
    forged = KnownServer(token=token, authority=block(der(OWN)), used_at=1.0)
    home.mkdir()
    stored = msgspec.json.encode(KnownServers(servers={str(impostor.address): forged}))
    (home / "servers.json").write_bytes(stored)
    code = main(["status"])
    assert told_secrets(impostor) == []
    assert code != 0
    assert "not the one of the token" in capsys.readouterr().err


def test_a_provider_that_joined_an_impostor_is_told_so(home, impostor, true, capsys):
    folder = home / "provider" / "identity" / impostor.address.folder
    folder.mkdir(parents=True)
    (folder / "identity.json").write_text('{"provider": 7, "name": "x", "server": "s"}')
    (folder / "credential").write_text(str(Credential.make(7)))
    (folder / "ca.pem").write_text(both(der(true), der(OWN)))
    code = main(["join", str(impostor.address)])
    assert told_secrets(impostor) == []
    assert code != 0
    assert "remove provider 7" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(ServerError, match="can be trusted"):
        load_identity(home / "provider", impostor.address)


def test_providers_trust_one_authority_among_each_other(tmp_path, true):
    (tmp_path / "ca.pem").write_text(both(der(true), der(OWN)))
    for name in ("certificate.pem", "key.pem"):
        (tmp_path / name).write_text("")
    files = TlsFiles(*(tmp_path / name for name in ("ca.pem", "certificate.pem", "key.pem")))
    with pytest.raises(NodeError, match=r"one authority: .*openssl x509"):
        files.read()
