"""Files of jobs that a provider keeps for another run: what stays, what goes, and when."""

import asyncio
import hashlib
import os
import time
from pathlib import Path

import pytest
from made import assignment
from running import Running, assign, beat_of, files, run, task, train
from toyserver import WAIT_S

from ravnest.agent import clockwork, fetching
from ravnest.agent.keeping import KeptFiles
from ravnest.api.control import Assign, Begin, Ended, Measured, Prepared, Settled, Steer
from ravnest.api.limits import FileRef

DAY_S = 24 * 3600.0


def test_the_next_run_of_a_job_downloads_only_what_is_new(tmp_path):
    async def test(server):
        home, given = tmp_path / "home", files(server)
        fresh = server.put("package/weights.safetensors", b"fused")
        async with Running(server, home) as running:
            await train(server, assignment("a7", files=given, job_name="patience"))
            assert sorted(server.asked) == sorted(file.sha256 for file in given)
            server.asked.clear()
            await server.say(7, Steer(assignment="a7", action="drop"))
            await beat_of(server, "idle")
            # The same shards again.
            await server.say(7, Assign(assignment=assignment("b7", run=2, files=given)))
            await server.hear(Prepared)
            assert server.asked == []
            content = (home / "work/b7/data/train/0.bin").read_bytes()
            assert content == b"\1" * 300_000
            # A worker may have written to what it was given: it is fetched again.
            (home / "work/b7/data/train/0.bin").write_bytes(b"\2" * 300_000)
            await server.say(7, Steer(assignment="b7", action="drop"))
            await running.tells("dropped")
            await server.say(7, Assign(assignment=assignment("c7", run=3, files=(*given, fresh))))
            await server.hear(Prepared)
            assert sorted(server.asked) == sorted((given[2].sha256, fresh.sha256))
            # After the last run nothing of the job is left.
            await server.say(7, Begin(assignment="c7"))
            await server.hear(Ended)
            await server.say(7, Settled(assignment="c7"))
            await beat_of(server, "idle")
            running.agent.leave()
            await running.task
        assert list((home / "files").iterdir()) == []
        assert list((home / "gone").iterdir()) == []

    run(test, tmp_path)


def test_what_a_script_has_put_into_its_files_does_not_stay(tmp_path):
    """Hundreds of megabytes were kept for a day, and kept the next run of the job away."""

    async def test(server):
        home, given = tmp_path / "home", files(server)
        kept = home / "files" / "j1"
        async with Running(server, home) as running:
            await train(server, assignment("a7", files=given, job_name="patience"))
            with (home / "work/a7/data/train/0.bin").open("ab") as rows:
                rows.write(b"more")
            assert (kept / given[2].sha256).stat().st_size == given[2].size + 4
            await server.say(7, Steer(assignment="a7", action="drop"))
            await beat_of(server, "idle")
            running.agent.leave()
            await running.task
        assert {path.name: path.stat().st_size for path in kept.iterdir()} == {
            file.sha256: file.size for file in given[:2]
        }

    run(test, tmp_path)


@pytest.mark.parametrize("when", ["leave", "expect"])
def test_kept_files_of_another_size_go(tmp_path, when):
    kept, source = KeptFiles(tmp_path), tmp_path / "source"
    refs = [FileRef(path=f"data/train/{n}", sha256=str(n) * 64, size=3) for n in range(3)]
    for ref in refs:
        source.write_bytes(b"abc")
        kept.keep("j1", ref, source)
        source.unlink()
    (kept.root / "j1" / refs[1].sha256).write_bytes(b"abcd")
    getattr(kept, when)("j1", refs)
    assert [kept.has("j1", ref) for ref in refs] == [True, False, True]
    assert len(list((kept.root / "j1").iterdir())) == 2


def test_files_of_other_jobs_make_room(tmp_path, monkeypatch):
    async def test(server):
        home = tmp_path / "home"
        free = iter([1 << 20])
        async with Running(server, home) as running:
            await assign(server, task(server))
            await server.say(7, Steer(assignment="a7", action="drop"))
            await running.tells("dropped")
            assert [path.name for path in (home / "files").iterdir()] == ["j1"]
            monkeypatch.setattr(fetching, "free_disk", lambda _: next(free, 1 << 40))
            await server.say(7, Assign(assignment=assignment("b7", job="j2", files=files(server))))
            await server.hear(Prepared)
            assert [path.name for path in (home / "files").iterdir()] == ["j2"]

    run(test, tmp_path)


def test_files_are_kept_of_few_jobs_and_for_a_day(tmp_path):
    kept = KeptFiles(tmp_path)
    source = tmp_path / "source"
    source.write_bytes(b"abc")
    named = FileRef(path="node.json", sha256=hashlib.sha256(b"abc").hexdigest(), size=3)
    for number in range(6):
        kept.expect(f"j{number}", [named])
        kept.keep(f"j{number}", named, source)
        os.utime(tmp_path / "files" / f"j{number}", (time.time() + number,) * 2)
    assert {path.name for path in kept.root.iterdir()} == {"j2", "j3", "j4", "j5"}
    os.utime(tmp_path / "files" / "j4", (time.time() - 25 * 3600,) * 2)
    kept.expect("j5", [])
    assert {path.name for path in kept.root.iterdir()} == {"j2", "j3", "j5"}
    assert not kept.has("j5", named)
    assert kept.put("j3", named, tmp_path / "deep" / "target")
    assert (tmp_path / "deep" / "target").read_bytes() == b"abc"


def aged(home, job, age_s):
    folder = KeptFiles(home).root / job
    folder.mkdir(parents=True)
    (folder / ("0" * 64)).write_bytes(b"rows")
    os.utime(folder, (time.time() - age_s,) * 2)
    return folder


@pytest.mark.parametrize("when", ["at its start", "by the clock"])
def test_an_idle_provider_removes_what_is_older_than_a_day(tmp_path, monkeypatch, when):
    """Nothing else comes that would need the room."""
    home = tmp_path / "home"
    rest = home / "gone" / "rest"
    rest.mkdir(parents=True)

    async def test(server):
        pruned = asyncio.Queue()
        loop, prune = asyncio.get_running_loop(), KeptFiles.prune

        def noticed(kept, but=None):
            prune(kept, but)
            loop.call_soon_threadsafe(pruned.put_nowait, None)

        monkeypatch.setattr(KeptFiles, "prune", noticed)
        if when == "by the clock":
            monkeypatch.setattr(clockwork, "_UPKEEP_S", 0.01)
        else:
            old, fresh = aged(home, "old", DAY_S + 60), aged(home, "fresh", DAY_S - 600)
        async with Running(server, home):
            async with asyncio.timeout(WAIT_S):
                await pruned.get()
            await server.hear(Measured)
            if when == "by the clock":
                old, fresh = aged(home, "old", DAY_S + 60), aged(home, "fresh", DAY_S - 600)
                while not pruned.empty():
                    pruned.get_nowait()
                async with asyncio.timeout(WAIT_S):
                    # The one that may be going on now, and a whole one after it.
                    await pruned.get()
                    await pruned.get()
            assert (old.exists(), fresh.exists()) == (False, True)
        assert not rest.exists()

    run(test, tmp_path)


def test_the_day_begins_when_a_run_ends(tmp_path):
    """A run may take longer than a day, and its files are what the next one needs."""

    async def test(server):
        home = tmp_path / "home"
        async with Running(server, home) as running:
            await train(server, task(server, "patience"))
            os.utime(home / "files" / "j1", (time.time() - 3 * DAY_S,) * 2)
            KeptFiles(home).prune(but="j1")
            await server.say(7, Steer(assignment="a7", action="drop"))
            await beat_of(server, "idle")
            running.agent.leave()
            await running.task
        KeptFiles(home).prune()
        assert len(list((home / "files" / "j1").iterdir())) == 3

    run(test, tmp_path)


def test_a_folder_that_is_removed_meanwhile_is_nobodys_fault(tmp_path, monkeypatch):
    there, gone = aged(tmp_path, "there", DAY_S + 60), tmp_path / "files" / "gone"
    monkeypatch.setattr(Path, "glob", lambda path, pattern: iter([gone, there]))
    KeptFiles(tmp_path).expect("j1", [])
    assert not there.exists()
