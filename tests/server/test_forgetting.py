"""What a server does not keep for ever."""

from servers import running_server
from state_simulation import FACTS

from ravnest.api.limits import encode
from ravnest.api.machine import Caps
from ravnest.api.requests import NewToken
from ravnest.server.access import Access
from ravnest.server.changes import Put
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
