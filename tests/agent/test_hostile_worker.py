"""Workers that are strangers' scripts, against the agent that reads what they leave behind."""

import pytest
from made import assignment
from running import Running, beat_of, begin, files, run, task, train, work

from ravnest.agent import folders, worker
from ravnest.agent.folders import RESTARTED
from ravnest.api.control import Assign, Ended, Hello, Prepared, Refused, Reported, Settled

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
            end = (await work(server, task(server, f"log {how}"))).end
            assert "ended with code 3 without a word" in end.reason
            assert SECRET not in end.reason
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
        ("many", "failed", "the worker has saved more than 16 files"),
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
            ended = await work(server, task(server, f"result {how}"))
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
            said = []
            await begin(server, task(server, "flood"))
            while not isinstance(message := await server.hear(Reported | Ended), Ended):
                said.append(message.report.step)
            assert len(said) < 100
            assert (said[0], said[-1]) == (0, 999)

    run(test, tmp_path)


def test_a_folder_of_thousands_of_levels_is_gone_before_the_next_assignment(tmp_path):
    """Python's own function recursed, and the agent ended, now and at every start."""

    async def test(server):
        home = tmp_path / "home"
        async with Running(server, home) as running:
            await work(server, task(server, "spoil deep"))
            await server.say(7, Settled(assignment="a7"))
            await server.say(7, Assign(assignment=task(server)))
            await server.hear(Prepared)
            assert list((home / "gone").iterdir()) == []
            assert running.told("mistake") == []

    run(test, tmp_path)


def test_nothing_is_prepared_where_a_worker_has_been(tmp_path):
    """The same assignment came again, and the agent wrote through links that its script had left:
    a key over that of the owner, a document of the server's making among the owner's settings."""
    outside = tmp_path / "outside"
    outside.mkdir()

    async def test(server):
        async with Running(server, tmp_path / "home"):
            await work(server, task(server, "spoil links"))
            await server.say(7, Settled(assignment="a7"))
            await server.say(7, Assign(assignment=task(server)))
            await server.hear(Prepared)
            folder = tmp_path / "home" / "work" / "a7"
            assert not (folder / "tls").is_symlink()
            assert (folder / "node_data" / "nodes" / "node_7.json").is_file()
            assert not (folder / "old-tls").exists()

    run(test, tmp_path)
    assert list(outside.iterdir()) == []


def test_a_folder_that_was_given_to_a_worker_and_stays_is_not_used(tmp_path, monkeypatch):
    async def test(server):
        async with Running(server, tmp_path / "home") as running:
            await work(server, task(server, "spoil links"))
            with monkeypatch.context() as patched:
                patched.setattr(folders, "move", refuses)
                await server.say(7, Settled(assignment="a7"))
                await server.say(7, Assign(assignment=task(server)))
                assert "not permitted" in (await server.hear(Refused)).reason
                assert "not permitted" in running.told("mistake")[0]
            await server.say(7, Assign(assignment=assignment("b7", files=files(server))))
            await server.hear(Prepared)
            assert not (tmp_path / "home" / "work" / "a7").exists()

    run(test, tmp_path)


def refuses(*_):
    raise PermissionError(1, "Operation not permitted")


def test_files_are_not_placed_in_folders_that_are_links(tmp_path):
    folder = folders.AssignmentFolder(tmp_path / "home" / "work" / "a1")
    folder.path.mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (folder.path / "data").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="is a link"):
        folder.target("data/train/0.bin")
    assert list((tmp_path / "outside").iterdir()) == []


def test_only_results_are_kept_of_a_package_that_nobody_wants(tmp_path):
    """Refused again and again, each left two hundred megabytes of something else."""

    async def test(server):
        server.refuses = "no"
        async with Running(server, tmp_path / "home") as running:
            await work(server, task(server, "result junk"))
            await server.say(7, Settled(assignment="a7"))
            await running.tells("undelivered")
            kept = tmp_path / "home" / "undelivered" / "a7"
            assert running.told("undelivered")[0].endswith(f"they are in {kept}")
            assert {path.name for path in kept.iterdir()} == {
                "trained.json",
                "trained-0123456789abcdef.safetensors",
            }

    run(test, tmp_path)


def test_results_that_nobody_wants_are_kept_as_far_as_they_fit(tmp_path):
    home = folders.WorkFolders(tmp_path)
    package = home.of("a1").package
    package.mkdir(parents=True)
    (package / "trained.json").write_bytes(bytes(10))
    for number in range(4):
        (package / f"trained-{number:016x}.safetensors").write_bytes(bytes(100))
    kept = home.keep_results("a1", 250)
    assert sorted(path.stat().st_size for path in kept.iterdir()) == [10, 100, 100]
    assert home.keep_results("a1", 50) is None


def test_others_on_this_machine_do_not_get_at_what_a_script_has_made(tmp_path):
    """A script marked a program to run as its owner, and whoever had an account there ran it: in a
    home that had been there before, and was open to all."""
    home = tmp_path / "home"
    made = [home / name for name in ("work", "gone", "files", "records", "undelivered")]
    for folder in (home, *made):
        folder.mkdir()
        folder.chmod(0o755)

    async def test(server):
        async with Running(server, home) as running:
            await work(server, task(server, "log marked"))
            (home / "work").rename(tmp_path / "elsewhere")
            await server.say(7, Settled(assignment="a7"))
            await running.tells("idle")
            await server.say(7, Assign(assignment=assignment("b7", files=files(server))))
            await server.hear(Prepared)

    run(test, tmp_path)
    assert {folder.stat().st_mode & 0o777 for folder in made} == {0o700}
    assert (home / "last-failed-worker.log").stat().st_mode & 0o7777 == 0o600


def test_nor_do_they_on_the_first_run(tmp_path):
    """Until the agent was started again, folders were open that were made with one in them."""
    home = folders.WorkFolders(tmp_path)
    home.shut()
    made = [tmp_path / name for name in ("work", "gone", "files", "records", "undelivered")]
    for folder in made:
        (folder / "a7").mkdir(parents=True)
    assert {folder.stat().st_mode & 0o777 for folder in made} == {0o700}
