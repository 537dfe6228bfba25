"""Workers that are strangers' scripts, against the agent that reads what they leave behind."""

import pytest
from running import Running, assign, beat_of, run, task, train

from ravnest.agent import worker
from ravnest.agent.folders import RESTARTED
from ravnest.api.control import Begin, Ended, Hello, Reported, Settled

SECRET = "what belongs to the owner"


@pytest.mark.parametrize("how", ["link", "pipe", "stretched"])
def test_a_log_is_what_the_worker_printed_whatever_it_makes_of_its_folder(
    tmp_path, monkeypatch, how
):
    """The agent followed a link to a file of the owner, and told its content or emptied it."""
    monkeypatch.setattr(worker, "_MOST_LOG", 24)
    secret = tmp_path / "home" / "secret"
    secret.parent.mkdir()
    secret.write_text(SECRET)

    async def test(server):
        async with Running(server, tmp_path / "home") as running:
            await assign(server, task(server, f"log {how}"))
            await server.say(7, Begin(assignment="a7"))
            end = (await server.hear(Ended)).end
            assert "ended with code 3 without a word" in end.reason
            assert SECRET not in end.reason
            assert ("hello from the log" in end.reason) == (how != "stretched")
            await server.say(7, Settled(assignment="a7"))
            await beat_of(server, "idle")
            (told,) = running.told("log")
            kept = tmp_path / "home" / "last-failed-worker.log"
            assert str(kept) in told
            assert kept.read_text() == ("" if how == "stretched" else "hello from the log\n")

    run(test, tmp_path)
    assert secret.read_text() == SECRET


def test_what_the_next_agent_takes_up_is_what_this_one_wrote(tmp_path):
    """A pipe in the place of a record was waited for, and a forged one believed."""

    async def test(server):
        async with Running(server, tmp_path / "home"):
            await train(server, task(server, "forger"))
        (tmp_path / "home/records/a7/ended.json").unlink()
        async with Running(server, tmp_path / "home", token=False) as running:
            hello = await server.hear(Hello)
            assert (hello.state, hello.assignment) == ("returning", "a7")
            assert (await server.hear(Ended)).end.reason == RESTARTED
            await server.say(7, Settled(assignment="a7"))
            await running.tells("idle")
            await beat_of(server, "idle")
        home = tmp_path / "home"
        assert not [*home.glob("work/*"), *home.glob("records/*")]

    run(test, tmp_path)


@pytest.mark.parametrize(
    ("how", "outcome", "reason"),
    [
        ("link", "done", ""),
        ("folder", "failed", "the worker has saved nothing"),
        ("pipe", "failed", "the worker has saved nothing"),
        ("endless", "failed", "the worker has saved 1048576 MB, at most 64 MB are expected"),
    ],
)
def test_results_are_files_in_the_package_and_nothing_that_a_link_leads_to(
    tmp_path, how, outcome, reason
):
    """A script delivered the results of another job, which lay there for their owner."""
    other = tmp_path / "home" / "undelivered" / "other"
    other.mkdir(parents=True)
    for name in ("trained.json", "trained-0123456789abcdef.safetensors"):
        (other / name).write_text(SECRET)

    async def test(server):
        async with Running(server, tmp_path / "home"):
            await assign(server, task(server, f"result {how}"))
            await server.say(7, Begin(assignment="a7"))
            ended = await server.hear(Ended)
            assert ended.end.outcome == outcome
            assert ended.end.reason == reason
            expected = ["trained.json"] if outcome == "done" else []
            assert [each.path for each in ended.results] == expected
            assert SECRET.encode() not in server.results.values()
            await server.say(7, Settled(assignment="a7"))
            await beat_of(server, "idle")

    run(test, tmp_path)
    assert (other / "trained.json").read_text() == SECRET


def test_a_worker_that_reports_without_end_is_heard_now_and_then(tmp_path):
    """Its provider said a thousand things in a second, and the server closed the connection."""

    async def test(server):
        async with Running(server, tmp_path / "home"):
            await assign(server, task(server, "flood"))
            said = []
            await server.say(7, Begin(assignment="a7"))
            while not isinstance(message := await server.hear(Reported | Ended), Ended):
                said.append(message.report.step)
            assert len(said) < 100
            assert (said[0], said[-1]) == (0, 999)

    run(test, tmp_path)
