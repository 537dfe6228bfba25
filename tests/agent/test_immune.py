"""Nothing that comes from elsewhere ends an agent, whatever a library makes of it."""

import pytest
from made import assignment
from running import Running, beat_of, files, run, task, work

from ravnest.agent import errand, fetching, folders, measuring, sharing, worker
from ravnest.api.control import (
    Assign,
    Hello,
    Measured,
    PeerAddress,
    Probe,
    Refused,
    Settled,
)
from ravnest.api.work import Neighbour


def breaks(*_, **__):
    raise OverflowError("getsockaddrarg: port must be 0-65535.")


async def breaks_later(*_, **__):
    breaks()


async def is_free(server):
    """It takes another assignment."""
    await server.say(7, Assign(assignment=task(server)))
    await beat_of(server, "ready")


def test_a_probe_that_fails_in_a_way_that_nobody_thought_of(tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "probe", breaks_later)

    async def test(server):
        async with Running(server, tmp_path / "home") as running:
            await server.hear(Measured)
            await server.say(7, Probe(peers=(PeerAddress(provider=8, addresses=("a:1",)),)))
            await running.tells("mistake")
            assert running.told("mistake")[0].startswith("something was left undone: OverflowError")
            await is_free(server)

    run(test, tmp_path)


def test_a_line_that_cannot_be_measured_in_such_a_way_is_measured_again(tmp_path, monkeypatch):
    async def test(server):
        with monkeypatch.context() as patched:
            patched.setattr(sharing, "measure_link", breaks)
            async with Running(server, tmp_path / "home") as running:
                await running.tells("measuring")
                assert "cannot be measured now: getsockaddrarg" in running.told("measuring")[0]
                assert running.told("mistake") == []
                patched.undo()
                await server.stop()
                await server.start()
                await server.hear(Measured)
                await is_free(server)

    run(test, tmp_path)


def test_an_assignment_that_cannot_be_prepared_in_such_a_way_is_refused(tmp_path, monkeypatch):
    """Not for good: it may go well the next time, and the job would be without this provider."""

    async def test(server):
        near = Neighbour(provider=8, node="node_8", plan_address="b:1", addresses=("a:1",))
        given = task(server, neighbours=(near,))
        async with Running(server, tmp_path / "home"):
            await server.hear(Measured)
            with monkeypatch.context() as patched:
                patched.setattr(errand, "find", breaks_later)
                await server.say(7, Assign(assignment=given))
                refused = await server.hear(Refused)
            assert "cannot be prepared: OverflowError: getsockaddrarg" in refused.reason
            assert not refused.lasting
            await server.say(7, Assign(assignment=assignment("b7", files=files(server))))
            await beat_of(server, "ready")

    run(test, tmp_path)


def test_what_an_earlier_agent_has_left_does_not_keep_this_one_from_beginning(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(folders.WorkFolders, "left_behind", breaks)

    async def test(server):
        async with Running(server, tmp_path / "home") as running:
            assert (await server.hear(Hello)).state == "idle"
            assert "has left is not used: OverflowError" in running.told("mistake")[0]
            await server.hear(Measured)
            await is_free(server)

    run(test, tmp_path)


@pytest.mark.parametrize("where", ["report", "results"])
def test_work_that_ends_in_such_a_way_has_failed(tmp_path, monkeypatch, where):
    async def test(server):
        async with Running(server, tmp_path / "home"):
            with monkeypatch.context() as patched:
                if where == "report":
                    patched.setattr(worker.Worker, "_listen", breaks_later)
                else:
                    patched.setattr(fetching, "upload", breaks)
                end = (await work(server, task(server))).end
            assert (end.outcome, end.saved) == ("failed", False)
            assert "OverflowError: getsockaddrarg" in end.reason
            await server.say(7, Settled(assignment="a7"))
            await beat_of(server, "idle")
            await is_free(server)

    run(test, tmp_path)


@pytest.mark.parametrize(
    "frame",
    [
        b'{"type":"\xff\xfe"}',
        b'{"peers":' + b"[" * 100_000,  # before its type: what follows one is of known shape
        b'{"type":"nonsense"}',
        b'{"type":"rejected","reason":"\\ud800","final":false}',
    ],
    ids=["not unicode", "deep", "unknown", "half a character"],
)
def test_a_message_that_is_none_costs_the_connection_and_not_the_agent(tmp_path, frame):
    async def test(server):
        async with Running(server, tmp_path / "home") as running:
            await server.hear(Hello)
            await server.hear(Measured)
            await server.sockets[7].send_bytes(frame)
            await server.hear(Hello)
            await server.hear(Measured)
            assert not running.task.done()

    run(test, tmp_path)
