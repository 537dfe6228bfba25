"""Numbers of providers are given once, whatever becomes of the records."""

import asyncio

import pytest
from fake_agent import FakeAgent
from servers import running_server

from ravnest.server.changes import Remove
from ravnest.server.store import open_store


def enrol(server, token):
    async def story():
        return await FakeAgent.enrol(server.url, token, authority=server.authority)

    return asyncio.run(story()).provider


@pytest.mark.parametrize("restored", [True, False], ids=["older records", "a folder without it"])
def test_a_number_is_not_given_again(tmp_path, restored):
    with running_server(tmp_path) as server:
        token = server.ready.join_token
        assert [enrol(server, token), enrol(server, token)] == [1, 2]
    if restored:
        store = open_store(tmp_path / "server.sqlite")
        store.write([Remove("provider", "2")]).result()
        store.close()
    else:
        (tmp_path / "last-provider").unlink()  # that of an earlier release
    with running_server(tmp_path) as server:
        assert enrol(server, token) == 3
    assert (tmp_path / "last-provider").read_text() == "3"
