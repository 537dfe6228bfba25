"""Agents against a server that says what the test says; workers are stand-ins."""

import asyncio
import errno
import functools
import json
import signal
import socket
import threading

import psutil
import pytest
from made import assignment
from running import Running, assign, beat_of, files, run, task, train, work
from toyserver import WAIT_S

from ravnest.agent import clockwork, errand, fetching, joining
from ravnest.agent import folders as folders_module
from ravnest.agent.errand import Errand
from ravnest.agent.folders import WorkFolders
from ravnest.api.control import (
    Admit,
    Assign,
    Beat,
    Begin,
    Ended,
    Hello,
    Leaving,
    Measured,
    PeerAddress,
    Prepared,
    Probe,
    Refused,
    Reported,
    Settled,
    Steer,
)
from ravnest.api.machine import Caps
from ravnest.api.work import Neighbour
from ravnest.removing import remove


def test_from_the_first_start_to_delivered_results(tmp_path, monkeypatch):
    monkeypatch.setenv("RAVNEST_TOKEN", "secret")

    async def test(server):
        caps = Caps(threads=2)
        async with Running(server, tmp_path / "home", caps=caps) as running:
            hello = await server.hear(Hello)
            assert (hello.state, hello.assignment) == ("idle", None)
            most = hello.caps.memory_bytes
            assert hello.caps == Caps(threads=2, memory_bytes=most)
            assert 0 < most < 0.8 * psutil.virtual_memory().total
            assert "80 % of what is free; --memory changes it" in running.told("memory")[0]
            figures = (await server.hear(Measured)).figures
            assert figures.gflops == 50.0
            assert figures.memory_bytes > 0
            assert min(figures.up_mbps, figures.down_mbps, figures.latency_ms) > 0
            assert [each.rpartition(":")[0] for each in figures.addresses] == ["127.0.0.1"]
            given = task(server)
            await server.say(7, Assign(assignment=given))
            assert await server.hear(Prepared) == Prepared(assignment="a7")
            folder = tmp_path / "home" / "work" / "a7"
            document = json.loads((folder / "node_data/nodes/node_7.json").read_text())
            assert document == {"node_id": 7, "template_path": f"{folder}/package", "x": 1}
            assert (folder / "data/train/0.bin").stat().st_size == 300_000
            assert {path.name for path in (folder / "tls").iterdir()} == {
                "ca.pem",
                "certificate.pem",
                "key.pem",
            }
            await server.say(7, Begin(assignment="a7"))
            report = (await server.hear(Reported)).report
            # The owner's threads, and none of the agent's own secrets.
            assert report.notes == ("2", "False")
            ended = await server.hear(Ended)
            assert (ended.end.outcome, ended.end.epochs_done) == ("done", 3)
            assert {each.path: each.size for each in ended.results} == {
                "trained.json": 2,
                "trained-0123456789abcdef.safetensors": 7,
            }
            assert server.results["trained-0123456789abcdef.safetensors"] == b"weights"
            await server.say(7, Settled(assignment="a7"))
            beat = await beat_of(server, "idle")
            assert beat.assignment is None
            running.agent.leave()
            assert await server.hear(Leaving) == Leaving(reason="asked to")
            async with asyncio.timeout(WAIT_S):
                assert await running.task is None
            assert not folder.exists()
            assert running.told("epoch") == ["training digits: epoch 2 of 3"]

    run(test, tmp_path)


def test_a_server_that_starts_anew_finds_the_worker_still_at_work(tmp_path):
    async def test(server):
        async with Running(server, tmp_path / "home"):
            await train(server, task(server, "patience"))
            await server.stop()
            await server.start()
            hello = await server.hear(Hello)
            assert (hello.state, hello.assignment) == ("training", "a7")
            await server.hear(Measured)
            await server.say(7, Steer(assignment="a7", action="pause"))
            assert (await server.hear(Reported)).report.notes == ("pause",)
            await server.say(7, Steer(assignment="a7", action="stop"))
            ended = await server.hear(Ended)
            assert (ended.end.outcome, len(ended.results)) == ("stopped", 2)
            # Not settled: said again on the next connection.
            await server.stop()
            await server.start()
            assert await server.hear(Ended) == ended

    run(test, tmp_path)


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        ("crash", "ended with code 3 without a word"),
        ("crash by a signal", f"ended with signal {signal.SIGSEGV:d} without a word"),
        ("nonsense", "not understood"),
        ("deep line", "not understood: maximum recursion depth"),
        ("endless line", "a line of more than"),
    ],
)
def test_a_worker_that_misbehaves_has_failed_and_its_log_is_kept(tmp_path, job, reason):
    async def test(server):
        async with Running(server, tmp_path / "home") as running:
            end = (await work(server, task(server, job))).end
            assert end.outcome == "failed"
            assert reason in end.reason
            assert end.signal == (signal.SIGSEGV if "signal" in job else None)
            assert "hello from the log" not in end.reason, "that is for the owner alone"
            await server.say(7, Settled(assignment="a7"))
            await beat_of(server, "idle")
            assert "last-failed-worker.log" in running.told("log")[0]
            kept = tmp_path / "home" / "last-failed-worker.log"
            assert "hello from the log" in kept.read_text()

    run(test, tmp_path)


def test_a_worker_that_takes_more_memory_than_allowed_is_ended(tmp_path):
    async def test(server):
        async with Running(server, tmp_path / "home", caps=Caps(memory_bytes=150_000_000)):
            end = (await work(server, task(server, "large"))).end
            assert "more than the 0.1 GB of memory that it may take here" in end.reason
            assert end.out_of_memory

    run(test, tmp_path)


def test_processes_of_a_script_are_watched_though_the_server_has_never_said_welcome(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(clockwork, "_USUAL_BEAT_S", 0.2)

    async def test(server):
        server.welcomes = False
        caps = Caps(memory_bytes=150_000_000, scripts="sandboxed")
        async with Running(server, tmp_path / "home", caps=caps) as running:
            await server.hear(Hello)
            given = task(server, "large together", script=True)
            await server.say(7, Assign(assignment=given))
            await running.tells("ready")
            await server.say(7, Begin(assignment="a7"))
            await running.tells("ended")
            assert "more than the 0.1 GB of memory" in running.told("ended")[0]

    run(test, tmp_path)


def test_memory_that_only_the_worker_can_see_is_in_the_heartbeat(tmp_path):
    async def test(server):
        async with Running(server, tmp_path / "home"):
            await train(server, task(server, "on a device"))
            while (beat := await server.hear(Beat)).worker_memory_bytes != 77_000_000_000:
                pass
            assert beat.state == "training"

    run(test, tmp_path)


def test_a_dropped_worker_is_gone_and_the_provider_free(tmp_path):
    async def test(server):
        async with Running(server, tmp_path / "home") as running:
            await train(server, task(server, "patience"))
            process = psutil.Process(running.agent._errand.worker.pid)
            await server.say(7, Steer(assignment="a7", action="drop"))
            await beat_of(server, "idle")
            assert not process.is_running()

    run(test, tmp_path)


def test_an_assignment_is_removed_when_its_own_preparing_has_ended(tmp_path, monkeypatch):
    """Not when that of the next one has."""

    async def test(server):
        waiting, released = asyncio.Event(), asyncio.Event()
        prepare = Errand.prepare

        async def held(errand, on_share):
            if errand.assignment.id != "a7":
                return await prepare(errand, on_share)
            try:
                waiting.set()
                await asyncio.Event().wait()
            finally:
                await released.wait()

        monkeypatch.setattr(Errand, "prepare", held)
        async with Running(server, tmp_path / "home") as running:
            await server.hear(Measured)
            await server.say(7, Assign(assignment=task(server)))
            await waiting.wait()
            first = running.agent._errand.task
            await server.say(7, Steer(assignment="a7", action="drop"))
            await running.tells("dropped")
            (removing,) = running.agent._tasks.removing
            await server.say(7, Assign(assignment=assignment("b7", files=files(server))))
            await server.hear(Prepared)
            assert not removing.done()
            released.set()
            async with asyncio.timeout(WAIT_S):
                await asyncio.wait({removing})
            assert first.cancelled()

    run(test, tmp_path)


def test_what_takes_long_is_not_done_in_the_thread_that_answers(tmp_path, monkeypatch):
    threads = {}

    @functools.cache
    def why_not():
        threads["sandbox"] = threading.current_thread()
        return "there is none here"

    def removed(path):
        threads["remove"] = threading.current_thread()
        remove(path)

    for module in (joining, errand):
        monkeypatch.setattr(module, "why_not", why_not)
    older = tmp_path / "home" / "work" / "older"
    older.mkdir(parents=True)

    async def test(server):
        async with Running(server, tmp_path / "home", caps=Caps(scripts="sandboxed")):
            await server.hear(Measured)
            monkeypatch.setattr(folders_module, "remove", removed)
            await server.say(7, Assign(assignment=assignment("s1", script=True)))
            assert "there is none here" in (await server.hear(Refused)).reason
            await server.say(7, Assign(assignment=task(server)))
            await server.hear(Prepared)

    run(test, tmp_path)
    assert not older.exists()
    assert set(threads) == {"sandbox", "remove"}
    assert threading.main_thread() not in threads.values()


def test_what_cannot_be_fetched_or_belongs_nowhere_is_refused(tmp_path):
    async def test(server):
        wrong = task(server)
        lost = server.put("package/weights.safetensors", b"1234")
        server.files[lost.sha256] = b"4321"
        stray = server.put("elsewhere/x", b"1")
        other = server.put("node.json", b'{"node_id": 8}')
        huge = type(lost)(path="data/train/huge", sha256="0" * 64, size=1 << 49)
        missing = type(lost)(path="data/train/lost", sha256="0" * 64, size=1)
        cases = {
            "b1": ((lost,), "another content", False),
            "b2": ((stray,), "belongs nowhere", True),
            "b3": ((other,), "not that of this provider", True),
            "b4": ((huge,), "not enough disk", False),
            "b5": ((missing,), "no such file", False),
            "b6": ((lost, lost), "two files of the same name", True),
        }
        async with Running(server, tmp_path / "home"):
            await server.hear(Measured)
            for name, (bad, reason, lasting) in cases.items():
                given = assignment(name, files=bad)
                await server.say(7, Assign(assignment=given))
                refused = await server.hear(Refused)
                assert (refused.assignment, reason in refused.reason) == (name, True), refused
                assert refused.lasting == lasting, refused
            # And it is none the worse for it.
            await server.say(7, Assign(assignment=wrong))
            await server.hear(Prepared)

    run(test, tmp_path)


def test_a_disk_that_is_full_costs_an_assignment_and_not_the_agent(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    async def test(server):
        async with Running(server, tmp_path / "home"):
            await server.hear(Measured)
            with monkeypatch.context() as patched:
                patched.setattr(WorkFolders, "make_way", full)
                await server.say(7, Assign(assignment=assignment("b1")))
                refused = await server.hear(Refused)
            assert (refused.lasting, "No space left" in refused.reason) == (False, True)
            await server.say(7, Assign(assignment=task(server)))
            await server.hear(Prepared)

    run(test, tmp_path)


def test_what_the_server_cannot_send_now_is_fetched_later(tmp_path, monkeypatch):
    monkeypatch.setattr(fetching, "delay_s", lambda _: 0.01)

    async def test(server):
        server.unfit = [503, 429]
        async with Running(server, tmp_path / "home"):
            assert (await assign(server, task(server))).assignment == "a7"
            assert server.unfit == []

    run(test, tmp_path)


def test_asked_twice_it_ends_at_once_with_its_worker(tmp_path):
    async def test(server):
        async with Running(server, tmp_path / "home") as running:
            await train(server, task(server, "patience"))
            process = psutil.Process(running.agent._errand.worker.pid)
            running.agent.leave()
            assert (await server.hear(Leaving)).now is False
            running.agent.leave(now=True)
            assert (await server.hear(Leaving)).now is True
            async with asyncio.timeout(WAIT_S):
                await running.task
            assert not process.is_running()

    run(test, tmp_path)


@pytest.mark.parametrize("listens", [True, False])
def test_two_workers_talk_directly_or_through_the_server(tmp_path, listens):
    async def test(server):
        listen = "127.0.0.1:0" if listens else None
        async with (
            Running(server, tmp_path / "one", listen=listen) as one,
            Running(server, tmp_path / "two", listen=listen) as two,
        ):
            figures = {}
            async with asyncio.timeout(WAIT_S):
                while len(figures) < 2:
                    who, message = await server.said.get()
                    if isinstance(message, Measured):
                        figures[who] = message.figures

            def neighbour(provider):
                return Neighbour(
                    provider=provider,
                    node=f"node_{provider}",
                    plan_address=f"provider-{provider}:1",
                    addresses=figures[provider].addresses,
                )

            listening = task(server, "echo", 7, neighbours=(neighbour(8),))
            calling = task(server, "call", 8, neighbours=(neighbour(7),))
            for given in (listening, calling):
                await server.say(given.provider, Assign(assignment=given))
            prepared = [await server.hear(Prepared) for _ in range(2)]
            assert {each.assignment: each.relayed for each in prepared} == (
                {"a7": (), "a8": ()} if listens else {"a7": (8,), "a8": (7,)}
            )
            await server.say(7, Begin(assignment="a7"))
            await server.hear(Reported, 7)
            await server.say(8, Begin(assignment="a8"))
            ended = [await server.hear(Ended) for _ in range(2)]
            assert {each.assignment: each.end.reason for each in ended} == {
                "a7": "",
                "a8": "heard all",
            }
            assert len(server.calls) == (0 if listens else 1)
            if not listens:
                # The tunnel has ended with the work.
                (found,) = tmp_path.glob("*/work/a8/order.json")  # either may have enrolled first
                order = json.loads(found.read_text())
                host, _, port = order["routes"]["provider-7:1"].rpartition(":")
                with pytest.raises(ConnectionRefusedError):
                    await asyncio.open_connection(host, int(port))
            assert one.task.done() is two.task.done() is False

    run(test, tmp_path)


def test_a_port_that_somebody_else_has_taken_costs_no_work(tmp_path):
    """Every worker of this provider was told to listen there, and could not."""

    def listens_at(assignment):
        order = tmp_path / "home" / "work" / assignment / "order.json"
        return json.loads(order.read_text())["listen"]

    async def test(server):
        async with Running(server, tmp_path / "home"):
            await train(server, task(server, "patience"))
            known = listens_at("a7")
            with socket.create_server(("127.0.0.1", int(known.rpartition(":")[2]))):
                await server.say(7, Steer(assignment="a7", action="drop"))
                await beat_of(server, "idle")
                again = assignment("b7", files=files(server), job_name="patience")
                await server.say(7, Assign(assignment=again))
                await server.hear(Prepared)
                await server.say(7, Begin(assignment="b7"))
                await server.hear(Reported)
                assert listens_at("b7") != known
            await server.say(7, Steer(assignment="b7", action="drop"))
            await beat_of(server, "idle")
            # It is free again, and taken before the next work.
            await server.say(7, Assign(assignment=assignment("c7", files=files(server))))
            await server.hear(Prepared)
            await server.say(7, Begin(assignment="c7"))
            await server.hear(Reported)
            assert listens_at("c7") == known

    run(test, tmp_path)


def test_peers_are_measured_when_the_server_asks(tmp_path):
    async def test(server):
        async with (
            Running(server, tmp_path / "one"),
            Running(server, tmp_path / "two"),
        ):
            addresses = {}
            async with asyncio.timeout(WAIT_S):
                while len(addresses) < 2:
                    who, message = await server.said.get()
                    if isinstance(message, Measured):
                        addresses[who] = message.figures.addresses
            peers = (
                PeerAddress(provider=8, addresses=addresses[8]),
                # Somebody answers there, but it is not the one who is meant.
                PeerAddress(provider=9, addresses=addresses[8]),
                PeerAddress(provider=10, addresses=("127.0.0.1:1",)),
            )
            await server.say(8, Admit(provider=7, seconds=60.0))
            await server.say(7, Probe(peers=peers))
            found = (await server.hear(Measured, 7)).figures.peers
            speeds = {each.provider: each.mbps for each in found}
            assert speeds[8] > 0
            assert (speeds[9], speeds[10]) == (0, 0)

    run(test, tmp_path)


def test_a_service_of_this_machine_is_not_dialled_because_the_server_is_on_loopback(tmp_path):
    """A tunnel or a proxy beside the server has that address as well, and behind it is the world:
    any provider could name a database on the machine of the others."""

    async def test(server):
        called = []
        victim = await asyncio.start_server(lambda *_: called.append(True), "127.0.0.1", 0)
        place = f"127.0.0.1:{victim.sockets[0].getsockname()[1]}"
        async with Running(server, tmp_path / "one"), Running(server, tmp_path / "two"):
            for _ in range(2):
                await server.hear(Measured)
            # Of one that is on this machine at another port, and of one that is not here.
            peers = (
                PeerAddress(provider=8, addresses=(place,)),
                PeerAddress(provider=9, addresses=(place,)),
            )
            await server.say(7, Probe(peers=peers))
            figures = (await server.hear(Measured, 7)).figures
            assert [each.mbps for each in figures.peers] == [0, 0]
        assert called == []
        victim.close()

    run(test, tmp_path)
