"""An agent whose certificate ends soon: when it asks for another, and that it uses it."""

import asyncio
import datetime

import pytest
from cryptography import x509
from running import Running, run
from toyserver import WAIT_S

from ravnest.agent import clockwork
from ravnest.agent.identity import RENEWED_BEFORE, load_identity
from ravnest.agent.peers import client_context
from ravnest.api.control import Hello, Measured
from ravnest.server.authority import _LEAF_DAYS


def make_end_soon(server):
    """What it signs from now on is almost over."""
    server.now -= datetime.timedelta(days=_LEAF_DAYS) - RENEWED_BEFORE / 2


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
