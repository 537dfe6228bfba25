"""What a server does not keep for ever."""

import asyncio

import pytest
from fake_agent import FakeAgent
from servers import running_server
from state_simulation import FACTS, Simulation, pool_of

from ravnest.api.limits import encode
from ravnest.api.machine import Caps
from ravnest.api.requests import NewToken
from ravnest.server.access import Access
from ravnest.server.changes import Put
from ravnest.server.state import providers
from ravnest.server.state.events import LongAgo
from ravnest.server.state.records import Provider
from ravnest.server.store import open_store


def test_tokens_that_ended_long_ago_are_forgotten_at_the_start(tmp_path):
    with running_server(tmp_path / "server") as server:
        database = str(server.ready.service.folders.database)
    record, _ = Access(b"f" * 16, (), {}.get).make(NewToken(role="viewer", name="old"), now=0)
    store = open_store(database)
    store.write([Put("token", record.id, encode(record))]).result()
    store.close()
    with (
        running_server(tmp_path / "server") as server,
        server.client(server.operator) as operator,
    ):
        assert {one["name"] for one in operator.get("tokens").json()} == {"operator", "join"}
    store = open_store(database)
    kept = {id for id, _ in store.ask(lambda db: db.records("token")).result()}
    store.close()
    assert len(kept) == 2
    assert record.id not in kept


def test_providers_that_were_removed_long_ago_are_forgotten_at_the_start(tmp_path):
    with running_server(tmp_path / "server") as server:
        database = str(server.ready.service.folders.database)
    store = open_store(database)
    for id, removed in ((1, True), (2, False), (3, True)):
        gone = Provider(id=id, name=f"p{id}", digest="", facts=FACTS, caps=Caps())
        gone.removed = removed
        store.write([Put("provider", gone.key, encode(gone))]).result()
    store.close()
    with running_server(tmp_path / "server") as server:
        assert set(server.ready.service.world.providers) == {2, 3}


def present(sim):
    return {id for id, provider in sim.world.providers.items() if not provider.removed}


def test_who_enrols_and_never_connects_is_removed_after_an_hour():
    sim = pool_of(1)
    sim.enrol()
    sim.cut(1)  # has been there, and may stay away for as long as it likes
    for passed, stay in ((providers.AWAITED_S - 1, {1, 2}), (2, {1})):
        sim.now += passed
        sim.happen(LongAgo(before=0))
        assert present(sim) == stay
    assert "p2 has never connected" in sim.notes[-1].text
    sim.now += 100 * providers.AWAITED_S
    sim.happen(LongAgo(before=0))
    assert present(sim) == {1}


def test_who_enrols_before_the_server_goes_has_an_hour_when_it_is_back():
    sim = Simulation()
    sim.enrol()
    sim.now += 10 * providers.AWAITED_S
    sim.restart()
    sim.happen(LongAgo(before=0))
    assert present(sim) == {1}
    sim.connect(1)
    sim.talk()
    sim.now += providers.AWAITED_S
    sim.restart()  # that it has been there is known
    sim.now += providers.AWAITED_S
    sim.happen(LongAgo(before=0))
    assert present(sim) == {1}


def test_of_those_that_enrol_and_leave_few_are_remembered_and_no_number_is_given_again(monkeypatch):
    monkeypatch.setattr(providers, "MOST_REMOVED", 3)
    sim = pool_of(1)
    for number in range(2, 30):
        sim.enrol()
        assert set(sim.world.providers) >= {1, number}
        sim.steer_provider(number, "leave")
        kept = {int(id) for kind, id in sim.disk if kind == "provider"}
        assert kept == set(sim.world.providers) >= {1, number}
        assert len(kept) <= 1 + 2 * 3 + 1
    assert sim.world.namesakes == {"p1": 1}
    sim.restart()
    assert sim.world.next_provider() == 30


# ---- providers of one token


async def enrol(server, token, count):
    return [
        await FakeAgent.enrol(server.url, token, authority=server.authority) for _ in range(count)
    ]


def test_one_token_does_not_fill_the_pool_unless_it_was_made_for_so_many(tmp_path):
    with running_server(tmp_path, most_providers_each=2) as server:
        asyncio.run(enrol(server, server.ready.join_token, 2))
        with pytest.raises(AssertionError, match="2 providers have enrolled with this token"):
            asyncio.run(enrol(server, server.ready.join_token, 1))
        asyncio.run(enrol(server, server.token("provider", uses=3), 3))
        asyncio.run(enrol(server, server.token("provider"), 1))


def test_all_providers_of_a_token_are_removed_with_it(tmp_path):
    with running_server(tmp_path) as server, server.client(server.operator) as operator:
        bad, good = server.token("provider", name="bad"), server.ready.join_token
        ids = {one["name"]: one["id"] for one in operator.get("tokens").json()}
        agents = asyncio.run(enrol(server, bad, 3))
        asyncio.run(enrol(server, good, 1))
        with server.client(agents[0].credential) as machine:
            assert operator.delete(f"tokens/{ids['bad']}?providers=all").status_code == 400
            assert operator.delete(f"tokens/{ids['bad']}").status_code == 204
            assert machine.get("providers/me").status_code == 200
            assert operator.delete(f"tokens/{ids['bad']}?providers=remove").status_code == 204
            assert machine.get("providers/me").status_code == 401
        assert [one["id"] for one in operator.get("overview").json()["providers"]] == [4]
