"""Certificates of providers are replaced before they end, over the credential."""

import asyncio
import datetime
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from fake_agent import FACTS
from servers import running_server

from ravnest.agent.identity import RENEWED_BEFORE, _signing_request, enrol, renew_if_due
from ravnest.agent.peers import PeerListener, client_context
from ravnest.api.machine import Caps
from ravnest.api.tokens import Token
from ravnest.client.address import ServerAddress
from ravnest.client.answers import TokenRefusedError

NOW = datetime.datetime.now(datetime.UTC)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def identity(server, tmp_path):
    token = Token.parse(server.token("provider"))
    address = ServerAddress.parse(server.url)
    return enrol(tmp_path, address, token, name="box", facts=FACTS, caps=Caps())


def client(server, identity):
    return identity.client(ServerAddress.parse(server.url))


def certificate(identity):
    return x509.load_pem_x509_certificate(identity.certificate_file.read_bytes())


def end_in(identity, server, days):
    """Its certificate was made so long ago."""
    key = load_pem_private_key(identity.key_file.read_bytes(), None)
    left = certificate(identity).not_valid_after_utc - NOW
    made_at = NOW - left + datetime.timedelta(days=days)
    sign = server.ready.service.authority.sign_provider
    pem = sign(identity.provider, _signing_request(key, "box"), made_at)
    identity.certificate_file.write_text(pem)


def test_a_certificate_that_is_good_for_long_stays(server, identity):
    before = certificate(identity)
    with client(server, identity) as http:
        assert not renew_if_due(identity, http, NOW)
    end_in(identity, server, days=62)
    with client(server, identity) as http:
        assert not renew_if_due(identity, http, NOW)
    assert certificate(identity) != before


@pytest.mark.parametrize("days", [58, -3])
def test_a_certificate_that_ends_soon_or_has_ended_is_replaced(server, identity, days):
    first = certificate(identity)
    end_in(identity, server, days)
    with client(server, identity) as http:
        assert renew_if_due(identity, http, NOW)
        assert not renew_if_due(identity, http, NOW)
    renewed = certificate(identity)
    left = renewed.not_valid_after_utc - NOW
    # Enough for a long run; and what a machine that is removed still holds is soon worth nothing.
    assert RENEWED_BEFORE < left < datetime.timedelta(days=91)
    assert renewed.public_key() == first.public_key()
    assert renewed.subject == first.subject


def test_others_are_shown_the_new_one(server, identity):
    end_in(identity, server, days=30)

    async def shown(listener):
        context = client_context(identity)
        context.check_hostname = False
        _, writer = await asyncio.open_connection("127.0.0.1", listener.port, ssl=context)
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return ssl.DER_cert_to_PEM_cert(der)

    async def story():
        listener = PeerListener(identity, "127.0.0.1", 0)
        await listener.open()
        old = await shown(listener)
        with client(server, identity) as http:
            assert await asyncio.to_thread(renew_if_due, identity, http, NOW)
        listener.take_certificate(identity)
        new = await shown(listener)
        await listener.close()
        return old, new

    old, new = asyncio.run(story())
    assert old != new
    assert new == identity.certificate_file.read_text()


def test_a_provider_that_was_removed_gets_none(server, identity):
    with server.client(server.operator) as operator:
        answer = operator.post(f"providers/{identity.provider}/action", json={"action": "remove"})
        assert answer.status_code == 204
    end_in(identity, server, days=1)
    with client(server, identity) as http, pytest.raises(TokenRefusedError):
        renew_if_due(identity, http, NOW)
