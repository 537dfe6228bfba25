"""What a provider brings back: as much as its work can have made, and nothing more is kept."""

import asyncio
import hashlib
import os
from types import SimpleNamespace

import msgspec
import pytest

from ravnest.api.limits import FileRef
from ravnest.removing import remove_whole
from ravnest.server.folders import Folders, blob_key
from ravnest.server.service import files as files_module
from ravnest.server.service.files import Files, Quota
from ravnest.server.service.problems import Refusal
from ravnest.server.service.runfiles import RunFiles

CONTENT = b"w" * 600
OWNER = "owner"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


WORLD = SimpleNamespace(jobs={"job": SimpleNamespace(owner_role="requester", owner_name="a")})


@pytest.fixture
def run_files(tmp_path, monkeypatch):
    folders = Folders(tmp_path)
    folders.make()
    files = Files(folders, most_bytes=1 << 30, quota=Quota(1 << 30))
    monkeypatch.setattr(RunFiles, "_most_of", lambda self, part: 1500)
    yield RunFiles(folders, files, WORLD)
    files.close()


@pytest.fixture
def part():
    return SimpleNamespace(id="job-1-1", job="job", run=1, provider=1, is_open=True)


def name(number):
    return f"trained-{number:016x}.safetensors"


async def body():
    yield CONTENT


async def bring(run_files, part, name, size=600, content=body):
    await run_files.receive(part, name, SHA256, size, content())


def here(tmp_path):
    return sorted(path.name for path in (tmp_path / "jobs").rglob("trained*"))


def test_results_of_an_assignment_have_a_bound_together(run_files, part, tmp_path):
    async def story():
        await bring(run_files, part, name(1))
        await bring(run_files, part, name(2))
        await bring(run_files, part, name(2))  # again: it takes the place of the first
        for size in (600, None):
            with pytest.raises(Refusal):
                await bring(run_files, part, name(3), size)

    asyncio.run(story())
    assert here(tmp_path) == [name(1), name(2)]


def test_results_that_come_at_once_are_counted_before_they_are_there(run_files, part, tmp_path):
    async def story():
        ends = await asyncio.gather(
            *(bring(run_files, part, name(number)) for number in range(5)), return_exceptions=True
        )
        assert sum(end is None for end in ends) == 2

    asyncio.run(story())
    assert len(here(tmp_path)) == 2


def test_results_are_of_the_quota(tmp_path, part, monkeypatch):
    folders = Folders(tmp_path)
    folders.make()
    files = Files(folders, most_bytes=1 << 30, quota=Quota(1500))
    run_files = RunFiles(folders, files, WORLD)
    monkeypatch.setattr(RunFiles, "_most_of", lambda self, part: 1 << 20)

    async def story():
        await bring(run_files, part, name(1))
        await bring(run_files, part, name(2))
        assert files.held_bytes == 1200
        for size in (600, None):
            with pytest.raises(Refusal, match="1200 are taken") as refused:
                await bring(run_files, part, name(3), size)
            # Not the sender's fault, and worth coming again.
            assert refused.value.status == 507
        with pytest.raises(Refusal):
            await files.receive_blob(OWNER, SHA256, 600, body())
        listed = FileRef(path=name(1), sha256=SHA256, size=600)
        await run_files.whole(part, (listed,))
        assert files.held_bytes == 600
        await files.receive_blob(OWNER, SHA256, 600, body())

    asyncio.run(story())
    files.close()
    again = Files(folders, most_bytes=1 << 30, quota=Quota(1500))
    again.begin()
    assert again.held_bytes == 1200
    again.close()


def test_a_result_is_counted_without_a_look_at_those_of_others(run_files, part, monkeypatch):
    """There may be thousands of providers, and each brings back several."""
    files = run_files._files
    monkeypatch.setattr(Folders, "own_bytes", None)

    async def story():
        await bring(run_files, part, name(1))
        await bring(run_files, part, name(2))
        await bring(run_files, part, name(2))  # in the place of the first
        assert files.held_bytes == 1200
        await run_files.whole(part, (FileRef(path=name(1), sha256=SHA256, size=600),))
        assert files.held_bytes == 600

    asyncio.run(story())


def test_files_of_a_job_are_not_changed_while_they_are_looked_at(run_files, part, monkeypatch):
    """They would be counted twice, or not at all."""
    files, own_bytes, put = run_files._files, Folders.own_bytes, files_module._put_in_place
    turns = []

    def noted(do):
        def is_alone(*arguments):
            turns.append(files._looking.locked())
            return do(*arguments)

        return is_alone

    monkeypatch.setattr(Folders, "own_bytes", noted(own_bytes))
    monkeypatch.setattr(files_module, "_put_in_place", noted(put))
    asyncio.run(bring(run_files, part, name(1)))
    files.count_job(part.job)
    assert turns == [True, True]
    assert files.held_bytes == 600


def test_files_that_come_and_go_at_once_are_counted_right(tmp_path):
    folders = Folders(tmp_path)
    folders.make()
    files = Files(folders, most_bytes=1 << 30, quota=Quota(1 << 30))

    async def story():
        contents = [b"%d" % number * 100 for number in range(200)]
        hashes = [hashlib.sha256(content).hexdigest() for content in contents]

        async def one(content):
            yield content

        async def come_and_go(content, sha256):
            await files.receive_blob(OWNER, sha256, len(content), one(content))
            await files.off_loop(files.forget, {blob_key(OWNER, sha256)})

        await asyncio.gather(*map(come_and_go, contents, hashes))

    asyncio.run(story())
    assert files.held_bytes == 0
    files.close()


def test_what_was_handed_in_is_not_counted_twice(tmp_path):
    folders = Folders(tmp_path)
    folders.make()
    for place, size in (("model/weights", 50), ("runs/1/node_data/a", 30), ("result/b", 20)):
        path = folders.job("j") / place
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x" * size)
    (folders.job("j") / "result" / "c").hardlink_to(folders.job("j") / "runs/1/node_data/a")
    assert folders.own_bytes("j") == 50


def test_whatever_a_process_has_left_the_job_is_counted(tmp_path, caplog):
    """A link to itself kept the server from starting, and bytes in a folder that was called as that
    of the model counted for nobody."""
    folders = Folders(tmp_path)
    folders.make()
    left = folders.run("j", 1) / "node_data"
    for place in ("a", "model/b", "held-out/c"):
        (left / place).parent.mkdir(parents=True, exist_ok=True)
        (left / place).write_bytes(b"x" * 10)
    (left / "loop").symlink_to("loop")
    (left / "elsewhere").symlink_to(tmp_path / "jobs")
    own = sum(path.lstat().st_size for path in left.iterdir() if path.is_symlink())
    assert folders.own_bytes("j") == 30 + own
    assert not caplog.records
    here = os.open(left, os.O_RDONLY)
    for _ in range(1200):  # more than Python nests calls, and at the end longer than a path is
        os.mkdir("dddd", dir_fd=here)
        inner = os.open("dddd", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    counted = folders.own_bytes("j")
    remove_whole(left)  # or pytest tries, by calls in calls
    assert counted == 30 + own
    assert "is not counted: File name too long" in caplog.text


def test_what_is_not_listed_at_the_end_is_removed(run_files, part, tmp_path):
    async def story():
        await bring(run_files, part, name(1))
        await bring(run_files, part, name(2))
        listed = (FileRef(path=name(1), sha256=SHA256, size=len(CONTENT)),)
        assert await run_files.whole(part, listed) == listed
        part.is_open = False
        await run_files.whole(part, ())  # said again when it is over: what is kept stays

    asyncio.run(story())
    assert here(tmp_path) == [name(1)]


def test_hashes_of_results_are_known_for_a_while_and_found_again_after_that(
    run_files, part, tmp_path, monkeypatch
):
    monkeypatch.setattr("ravnest.server.service.runfiles._BROUGHT", 1)

    async def story():
        await bring(run_files, part, name(1))
        await bring(run_files, part, name(2))
        assert list(run_files._brought) == [(part.id, name(2))]
        files = tuple(FileRef(path=name(n), sha256=SHA256, size=len(CONTENT)) for n in (1, 2))
        assert await run_files.whole(part, files) == files
        run_files.forget("job")
        assert not run_files._brought

    asyncio.run(story())


def test_a_result_that_arrives_after_the_end_changes_nothing(run_files, part, tmp_path):
    async def late():
        yield CONTENT
        part.is_open = False

    with pytest.raises(Refusal, match="over"):
        asyncio.run(bring(run_files, part, name(1), content=late))
    assert here(tmp_path) == []


@pytest.mark.parametrize(
    "place", ["../../../../authority/ca.key", "{root}/authority/ca.key", "kept"]
)
def test_a_plan_hands_out_files_of_its_own_folder_only(
    run_files, part, tmp_path, monkeypatch, place
):
    """It was written by a process that had a foreign model to look at."""
    (tmp_path / "authority" / "ca.key").write_text("secret")
    folder = tmp_path / "jobs" / "job" / "runs" / "1"
    folder.mkdir(parents=True)
    named = msgspec.json.encode({SHA256: place.format(root=tmp_path)})
    (folder / "places.json").write_bytes(named)
    listed = SimpleNamespace(files=(FileRef(path="node.json", sha256=SHA256, size=6),))
    monkeypatch.setattr(run_files, "_assignment", lambda part: listed)
    if place == "kept":
        assert asyncio.run(run_files.file(part, SHA256)) == (folder / "kept").resolve()
    else:
        with pytest.raises(Refusal, match="not in the folder of its run"):
            asyncio.run(run_files.file(part, SHA256))
