"""An agent whose certificate ends soon: when it asks for another, and that it uses it."""

import asyncio
import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from running import Running, run
from toyserver import WAIT_S

from ravnest.agent import clockwork
from ravnest.agent.identity import RENEWED_BEFORE, _signing_request, load_identity
from ravnest.agent.peers import client_context
from ravnest.api.control import Hello, Measured
from ravnest.server.authority import PROVIDER_DAYS, open_authority


def make_end_soon(server):
    """What it signs from now on is almost over."""
    server.now -= datetime.timedelta(days=PROVIDER_DAYS) - RENEWED_BEFORE / 2


async def shown_to_others(identity):
    """The certificate that a provider gets to see which calls this one."""
    async with asyncio.timeout(WAIT_S):
        _, writer = await asyncio.open_connection(
            "127.0.0.1",
            identity.port,
            ssl=client_context(identity),
            server_hostname=f"provider-{identity.provider}",
        )
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.transport.abort()
    return x509.load_der_x509_certificate(shown)


@pytest.mark.parametrize("what", ["another connection", "another hour"])
def test_what_could_not_be_renewed_is_renewed_later(tmp_path, monkeypatch, what):
    """After all has been measured: an agent may run for years."""

    async def story(server):
        now = server.now
        make_end_soon(server)
        server.renews = False
        if what == "another hour":
            monkeypatch.setattr(clockwork, "_UPKEEP_S", 0.01)
        async with Running(server, tmp_path / "home") as running:
            await server.hear(Measured)
            await running.tells("renewing")
            assert "the disk is full" in running.told("renewing")[0]
            identity = load_identity(tmp_path / "home", server.address)
            before = await shown_to_others(identity)
            server.now, server.renews = now, True
            if what == "another connection":
                await server.stop()
                await server.start()
                await server.hear(Hello)
            await running.tells("renewed")
            after = await shown_to_others(identity)
            assert before.not_valid_after_utc - now < RENEWED_BEFORE
            assert after.not_valid_after_utc - now > RENEWED_BEFORE
            assert after.public_key() == before.public_key()

    run(story, tmp_path)


def test_one_that_is_good_for_long_stays(tmp_path):
    async def story(server):
        server.now -= datetime.timedelta(days=1)
        async with Running(server, tmp_path / "home") as running:
            await server.hear(Measured)
            await server.stop()
            await server.start()
            await server.hear(Measured)
            assert running.told("renewed") == running.told("renewing") == []

    run(story, tmp_path)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ("of a proxy", "is none"),
        ("of another authority", "is none"),
        ("of another key", "is for another key"),
        ("that ends earlier", "ends before the present one"),
    ],
)
def test_a_renewal_that_nobody_would_accept_does_not_replace_a_good_certificate(
    tmp_path, made, why
):
    """What a proxy answered was written over it, and the agent could not be started any more."""

    async def story(server):
        now = server.now
        make_end_soon(server)

        def renewal(signed, provider):
            key = ec.generate_private_key(ec.SECP256R1())
            another = _signing_request(key, "x")
            match made:
                case "of a proxy":
                    return "<html>a proxy's error page</html>"
                case "of another authority":
                    elsewhere = open_authority(tmp_path / "elsewhere", now)
                    return elsewhere.sign_provider(provider, another, now)
                case "of another key":
                    return server.authority.sign_provider(provider, another, now)
            pem = (next((tmp_path / "home").rglob("key.pem"))).read_bytes()
            request = _signing_request(serialization.load_pem_private_key(pem, None), "x")
            earlier = server.now - datetime.timedelta(days=1)
            return server.authority.sign_provider(provider, request, earlier)

        server.renewal = renewal
        async with Running(server, tmp_path / "home") as running:
            await running.tells("renewing")
            assert why in running.told("renewing")[0]
        file = load_identity(tmp_path / "home", server.address).certificate_file
        kept = x509.load_pem_x509_certificate(file.read_bytes())
        assert kept.not_valid_after_utc - now < RENEWED_BEFORE
        server.now, server.renewal = now, None
        async with Running(server, tmp_path / "home", token=False) as running:
            await running.tells("renewed")

    run(story, tmp_path)
