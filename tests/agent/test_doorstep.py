"""Strangers who connect to a provider's port and say nothing."""

import asyncio
import contextlib
import resource

import psutil
from running import Running, run
from test_peers import authority, find, identity, listening

from ravnest.agent import doorstep
from ravnest.agent.machine import Load
from ravnest.api.control import Hello

__all__ = ["authority"]
WAIT_S = 30.0


async def knock(listener, host="127.0.0.1"):
    return await asyncio.open_connection("127.0.0.1", listener.port, local_addr=(host, 0))


async def is_sent_away(caller):
    async with asyncio.timeout(WAIT_S):
        with contextlib.suppress(ConnectionError):
            return await caller[0].read() == b""
        return True


def test_few_strangers_stand_at_the_door_and_providers_pass_them(tmp_path, authority, monkeypatch):
    """They piled up until the agent could open no file any more."""
    monkeypatch.setattr(doorstep, "MOST_AT_THE_DOOR", 3)
    monkeypatch.setattr(doorstep, "HANDSHAKE_S", 600.0)
    one, two = (identity(tmp_path / str(n), authority, n) for n in (1, 2))

    async def talk(listener):
        strangers = [await knock(listener, "127.0.0.2")]
        for _ in range(5):
            strangers.append(await knock(listener))
        # Who came first of those who are most; the one from elsewhere may stay.
        for stranger in strangers[1:4]:
            assert await is_sent_away(stranger)
        address = f"127.0.0.1:{listener.port}"
        assert (await find(two, 1, (address,), measure=False)).address == address
        standing = list(listener._doorstep._at_the_door.values())
        assert len(standing) <= 3
        assert standing[0] == "127.0.0.2"
        await listener.close()
        assert await is_sent_away(strangers[0])
        assert listener._doorstep._callers == set()

    listening(one, talk)


def test_figures_that_cannot_be_read_for_once_are_as_before(monkeypatch):
    """An agent without a free descriptor ended at its next heartbeat."""
    load = Load()
    free = load.memory_free()
    assert free > 0

    def refused(*_):
        raise OSError(24, "Too many open files")

    for name in ("cpu_percent", "virtual_memory", "Process"):
        monkeypatch.setattr(psutil, name, refused)
    assert load.memory_free() == free
    assert load.cpu() >= 0.0
    assert load.process_memory(1) == 0


def test_an_agent_may_open_as_many_files_as_the_system_allows(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def test(server):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 512), hard))
        async with Running(server, tmp_path / "home"):
            await server.hear(Hello)
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)

    try:
        run(test, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
