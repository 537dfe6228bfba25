"""Encrypted links: who has a certificate of the run's authority gets in, and nobody else.

That links over TLS keep all the promises of links is shown in test_links.py.
"""

import asyncio

import pytest
from certificates import Authority, our_authority
from test_links import Party, numbered

from ravnest.errors import NodeError
from ravnest.wire.grpc_network import GrpcNetwork
from ravnest.wire.link import Lost, Up
from ravnest.wire.peers import Patience
from ravnest.wire.security import TlsFiles

BRIEF = Patience(connect_s=1.5, hello_s=1, retry_s=0.05, report_s=1)


def meet(dialling, listening):
    """What the two sides hear first, if one with these keys calls one with those."""

    async def scenario():
        a, b = (
            Party(GrpcNetwork(keys), node) for keys, node in ((dialling, "a"), (listening, "b"))
        )
        for party in (a, b):
            party.endpoint._patience = BRIEF
            await party.endpoint.listen(party.address)
        link = await a.endpoint.dial(b.peer)
        await b.endpoint.expect(a.peer)
        try:
            first = await asyncio.wait_for(a.events.get(), 10)
            if isinstance(first, Up):
                link.send(numbered(7))
                await b.next(Up)
                return "met", (await b.next()).message.number
            assert isinstance(first, Lost)
            return "lost", str(first.error)
        finally:
            for party in (a, b):
                await party.endpoint.close(0.2)

    return asyncio.run(scenario())


@pytest.mark.parametrize("mutual", [True, False])
def test_those_with_certificates_of_one_authority_meet(mutual):
    keys = [our_authority().keys(name, mutual=mutual) for name in "ab"]
    assert meet(*keys) == ("met", 7)


def stranger():
    """Somebody who has our authority's certificate, which is no secret, and his own keys."""
    return Authority("a stranger").keys("a", trusts=our_authority().certificate)


@pytest.mark.parametrize(
    "caller",
    [
        stranger,
        lambda: our_authority().keys("a", mutual=False),
        lambda: our_authority().keys("a", valid=False),
        lambda: Authority("another run").keys("a"),
        lambda: None,
    ],
    ids=["own certificate", "no certificate", "expired", "trusts others only", "not encrypted"],
)
def test_others_do_not_get_in(caller):
    outcome, why = meet(caller(), our_authority().keys("b"))
    assert outcome == "lost"
    assert "never reached" in why


def test_a_listener_that_is_not_ours_is_not_talked_to():
    outcome, _ = meet(our_authority().keys("a"), Authority("a stranger").keys("b"))
    assert outcome == "lost"


def test_missing_files_are_named(tmp_path):
    with pytest.raises(NodeError, match=r"nowhere\.pem cannot be read"):
        TlsFiles(tmp_path / "nowhere.pem", tmp_path / "b", tmp_path / "c").read()
