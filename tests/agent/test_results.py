"""What a worker has saved, on its way to the server: late, refused, or with the next agent."""

import asyncio
import errno
import os
import threading

import pytest
from made import assignment, end
from running import Running, assign, beat_of, files, run, task, train, work
from toyserver import WAIT_S, ToyServer

from ravnest.agent import fetching
from ravnest.agent import folders as folders_module
from ravnest.agent.clearing import Clearing
from ravnest.agent.folders import RESTARTED, WorkFolders
from ravnest.agent.identity import Identity
from ravnest.agent.results import Results
from ravnest.api.control import (
    Assign,
    Begin,
    Ended,
    Hello,
    Measured,
    Prepared,
    Settled,
    Steer,
)
from ravnest.api.work import WorkOrder


def test_work_that_is_dropped_as_its_results_are_to_be_brought_back(tmp_path):
    """The task that brings them back began by asking what the agent is at."""

    async def test(server):
        async with Running(server, tmp_path / "home") as running:
            await assign(server, task(server))
            drop, loop = Steer(assignment="a7", action="drop"), asyncio.get_running_loop()
            running.upon["ended"] = lambda: loop.call_soon(running.agent.heard, drop)
            await server.say(7, Begin(assignment="a7"))
            await beat_of(server, "idle")
            assert not running.task.done()
            assert running.told("dropped")
            await server.say(7, Assign(assignment=task(server)))
            await server.hear(Prepared)

    run(test, tmp_path)


def test_results_that_are_not_wanted_any_more_are_not_brought_back(tmp_path):
    async def test(server):
        server.passing = [503] * 1000
        async with Running(server, tmp_path / "home") as running:
            await train(server, task(server))
            await running.tells("returning")
            bringing = running.agent._errand.task
            await server.say(7, Steer(assignment="a7", action="drop"))
            await beat_of(server, "idle")
            async with asyncio.timeout(WAIT_S):
                await asyncio.wait({bringing})
            assert bringing.cancelled()

    run(test, tmp_path)


def test_results_that_the_server_does_not_take_are_a_failure_and_are_kept(tmp_path):
    async def test(server):
        server.refuses = "larger than the stage"
        async with Running(server, tmp_path / "home") as running:
            await train(server, task(server))
            ended = await server.hear(Ended)
            assert (ended.end.outcome, ended.results) == ("failed", ())
            assert "larger than the stage" in ended.end.reason
            await server.say(7, Settled(assignment="a7"))
            await running.tells("undelivered")
            kept = tmp_path / "home" / "undelivered" / "a7"
            told = "the server did not take the results: larger than the stage; they are in"
            assert running.told("undelivered") == [f"{told} {kept}"]
            assert (kept / "trained-0123456789abcdef.safetensors").read_bytes() == b"weights"

    run(test, tmp_path)


def test_a_disk_that_fails_is_not_called_a_server_that_refuses(tmp_path, monkeypatch):
    def upload(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    async def test(server):
        monkeypatch.setattr(fetching, "upload", upload)
        async with Running(server, tmp_path / "home") as running:
            await train(server, task(server))
            ended = (await server.hear(Ended)).end
            assert (ended.outcome, ended.saved) == ("failed", False)
            assert "on the provider's disk: [Errno 5] Input/output error" in ended.reason
            await server.say(7, Settled(assignment="a7"))
            await running.tells("undelivered")
            assert "the server" not in running.told("undelivered")[0]

    run(test, tmp_path)


def test_undelivered_results_do_not_pile_up_for_ever(tmp_path, monkeypatch):
    folders = WorkFolders(tmp_path)
    with monkeypatch.context() as patched:
        # Gigabytes take long to remove, and an agent has something else to do.
        patched.setattr(folders_module, "remove", lambda _: pytest.fail("removed at once"))
        for number in (*range(10), 9):
            package = folders.of(f"a{number}").package
            package.mkdir(parents=True, exist_ok=True)
            (package / "trained.json").touch()
            kept = folders.keep_results(f"a{number}", 1)
            os.utime(kept, (number, number))
    kept = {path.name for path in (tmp_path / "undelivered").iterdir()}
    assert kept == {f"a{number}" for number in range(2, 10)}
    assert len(list(folders.gone.iterdir())) == 3
    folders.empty()
    assert list(folders.gone.iterdir()) == []


def given_to_a_worker(folders, name, at):
    """Recorded at that time; the worker has done something in its folder since."""
    identity = Identity(folders.home / "identity" / "server", 7, "toy", "", "")
    folder = folders.of(name)
    folder.path.mkdir(parents=True)
    folder.give_order(
        WorkOrder(assignment=assignment(name), listen="127.0.0.1:1", routes={}), identity
    )
    folder.record_end(end(reason=name))
    os.utime(folder.records, (at, at))
    return identity


def test_what_is_taken_up_is_the_last_work_by_the_clock_of_the_agent(tmp_path):
    """A script sets that of its folder as it likes, and was taken up instead of work after it."""
    folders = WorkFolders(tmp_path)
    given_to_a_worker(folders, "newer", at=2000)
    identity = given_to_a_worker(folders, "older", at=1000)
    os.utime(folders.of("newer").path, (0, 0))
    assert folders.left_behind(identity)[1].reason == "newer"
    assert not folders.of("older").was_given


def test_a_folder_that_a_worker_was_given_is_not_begun_anew(tmp_path):
    """It may be full of links that lead elsewhere."""
    folders = WorkFolders(tmp_path)
    identity = given_to_a_worker(folders, "a1", at=1000)
    with pytest.raises(OSError, match="was given to a worker before"):
        folders.of("a1").begin(identity)


def test_folders_that_somebody_else_clears_are_left_to_them(tmp_path):
    folders = WorkFolders(tmp_path)
    for name in ("cleared", "left", "same"):
        given_to_a_worker(folders, name, at=1000)
    folders.make_way("same", but={"cleared"})
    assert [path.name for path in folders.root.iterdir()] == ["cleared"]
    assert folders.of("cleared").was_given


def test_what_cannot_be_removed_keeps_nothing_else_from_it(tmp_path, monkeypatch):
    folders, asked, remove = WorkFolders(tmp_path), [], folders_module.remove
    for name in "abc":
        (folders.gone / name).mkdir(parents=True)

    def fails_at_first(path):
        asked.append(path)
        if len(asked) == 1:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        remove(path)

    monkeypatch.setattr(folders_module, "remove", fails_at_first)
    with pytest.raises(PermissionError):
        folders.empty()
    assert list(folders.gone.iterdir()) == asked[:1]


def test_results_are_looked_at_beside_the_agent(tmp_path, monkeypatch):
    """There may be a hundred thousand of them."""
    threads, names = [], Results.names

    def noted(results):
        threads.append(threading.current_thread())
        return names(results)

    monkeypatch.setattr(Results, "names", noted)

    async def test(server):
        async with Running(server, tmp_path / "home"):
            assert len((await work(server, task(server))).results) == 2

    run(test, tmp_path)
    assert threads
    assert threading.main_thread() not in threads


def test_a_server_that_cannot_take_results_now_gets_them_later(tmp_path, monkeypatch):
    monkeypatch.setattr(fetching, "delay_s", lambda _: 0.01)

    async def test(server):
        server.passing = [500, 502, 503, 429, 507, 408]
        async with Running(server, tmp_path / "home") as running:
            await train(server, task(server))
            ended = await server.hear(Ended)
            assert (ended.end.outcome, len(ended.results)) == ("done", 2)
            assert server.results["trained-0123456789abcdef.safetensors"] == b"weights"
            assert any("status 507" in text for text in running.told("returning"))

    run(test, tmp_path)


async def end_while_the_server_is_away(server, running):
    await train(server, task(server, "patience"))
    await server.stop()
    running.agent.leave()
    await running.tells("ended")


@pytest.mark.parametrize("release", ["this", "earlier"])
def test_results_are_delivered_by_the_next_agent(tmp_path, release):
    """Also those of an earlier release, which did not note for which server they are: they were
    removed by the first assignment after an upgrade."""

    async def test(server):
        async with Running(server, tmp_path / "home") as running:
            await end_while_the_server_is_away(server, running)
            running.agent.leave(now=True)
            async with asyncio.timeout(WAIT_S):
                await running.task
        if release == "earlier":
            (tmp_path / "home" / "records" / "a7" / "server").unlink()
        await server.start()
        async with Running(server, tmp_path / "home", token=False):
            hello = await server.hear(Hello)
            assert (hello.state, hello.assignment) == ("returning", "a7")
            ended = await server.hear(Ended)
            assert (ended.end.outcome, len(ended.results)) == ("stopped", 2)
            assert server.results["trained.json"] == b"{}"

    run(test, tmp_path)


def test_results_for_one_server_are_not_brought_to_another_nor_lost(tmp_path):
    """Both call this provider 7; whoever heard of a part that it does not know had it removed."""

    async def test(server):
        async with Running(server, tmp_path / "home") as running:
            await end_while_the_server_is_away(server, running)
        async with (
            ToyServer(tmp_path / "another") as other,
            Running(other, tmp_path / "home") as running,
        ):
            hello = await other.hear(Hello)
            assert (hello.state, hello.assignment) == ("idle", None)
            kept = tmp_path / "home" / "undelivered" / "a7"
            assert running.told("undelivered") == [f"results for another server are in {kept}"]
            assert (kept / "trained-0123456789abcdef.safetensors").read_bytes() == b"weights"
            await assign(other, task(other))
            assert kept.exists()
        await server.start()

    run(test, tmp_path)


def test_what_is_settled_is_not_delivered_again_by_the_next_agent(tmp_path, monkeypatch):
    """It was killed before it had put the folder away; the next one brought results that nobody
    expected, and said that the server did not take them."""

    async def never(*_):
        pass

    async def test(server):
        home = tmp_path / "home"
        with monkeypatch.context() as killed:
            killed.setattr(Clearing, "_clear", never)
            async with Running(server, home) as running:
                await work(server, task(server))
                await server.say(7, Settled(assignment="a7"))
                await running.tells("idle")
        assert (home / "work" / "a7").exists()
        server.results.clear()
        async with Running(server, home, token=False) as running:
            assert (await server.hear(Hello)).state == "idle"
            await server.hear(Measured)
            assert running.told("taken up") == []
            # And the folder is not in the way of what comes next.
            await server.say(7, Assign(assignment=assignment("b7", files=files(server))))
            await server.hear(Prepared)
            assert not (home / "work" / "a7").exists()
        assert server.results == {}

    run(test, tmp_path)


def test_work_that_was_cut_off_is_reported_by_the_next_agent(tmp_path):
    async def test(server):
        async with Running(server, tmp_path / "home"):
            await train(server, task(server, "patience"))
            records = tmp_path / "home/records/a7"
        # As if this machine had lost its power: nobody recorded an end.
        (records / "ended.json").unlink()
        async with Running(server, tmp_path / "home", token=False):
            ended = await server.hear(Ended)
            assert (ended.end.outcome, ended.end.reason) == ("failed", RESTARTED)

    run(test, tmp_path)
