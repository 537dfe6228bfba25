"""Processes that plan: what becomes of those that are slow, large, broken or not wanted."""

import asyncio
import errno
import hashlib
import json
import os
import shutil
import signal
from pathlib import Path

import a_job
import msgspec
import pytest
import torch
from a_job import make_job
from safetensors.torch import load_file

from ravnest.api.jobs import Legend
from ravnest.api.work import Assignment
from ravnest.data.legend import read_legend
from ravnest.plan import ProviderSpec
from ravnest.planning.fusion import SAFETENSORS, STATE_DICT
from ravnest.server.folders import FUSED, FUSED_RUN
from ravnest.server.planjob import __main__ as planjob
from ravnest.server.planjob import tasks
from ravnest.server.planjob.outcome import SPARE, PlanOrder
from ravnest.server.planjob.tasks import fuse
from ravnest.server.service import work
from ravnest.server.service.work import WorkLimits, Workshop
from ravnest.stage.package import load_package, load_weights, save_trained


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    return make_job(folder)[0], folder / "model"


def order(made, **more):
    values = {"task": "plan", "spec": made[0], "job": "j", "model": str(made[1]), "run": 1}
    return PlanOrder(**values | more)


def pool(*gflops, memory=1 << 30):
    return tuple(
        ProviderSpec(
            id=number,
            address=f"provider-{number}:1",
            memory_bytes=memory,
            bandwidth_mbps=100.0,
            gflops=speed,
        )
        for number, speed in enumerate(gflops, start=1)
    )


def do(folder, task, **limits):
    async def run():
        workshop = Workshop(WorkLimits(threads=1, **limits))
        try:
            return await workshop.do(folder, task)
        finally:
            await workshop.close()

    return asyncio.run(run())


def test_four_providers_get_parts_with_files_that_are_there(made, tmp_path):
    outcome = do(tmp_path, order(made, pool=pool(50, 50, 50, 50)))
    assert outcome.error == ""
    assert outcome.facts.clusters == 2
    assert {part.provider for part in outcome.facts.parts} == {1, 2, 3, 4}
    places = msgspec.json.decode((tmp_path / "places.json").read_bytes(), type=dict[str, str])
    rows = {}
    for provider in range(1, 5):
        content = (tmp_path / "parts" / f"{provider}.json").read_bytes()
        assignment = msgspec.json.decode(content, type=Assignment)
        own = [file for file in assignment.files if not file.path.startswith("data/")]
        assert {file.path for file in own} >= {"node.json", "package/manifest.json"}
        for file in own:
            assert (tmp_path / places[file.sha256]).stat().st_size == file.size
        assert assignment.validates == (assignment.cluster == 0)
        assert assignment.train_rows == 32
        rows.setdefault(assignment.cluster, set()).add(
            (assignment.train.range.first, assignment.train.range.rows)
        )
        others = {neighbour.provider for neighbour in assignment.neighbours}
        assert len(others) >= 2  # the other stage, and the same in the other cluster
    assert rows == {0: {(0, 32)}, 1: {(32, 32)}}
    assert len(outcome.rings) >= 1


def test_the_report_of_a_plan_calls_providers_by_their_names(made, tmp_path):
    names = {1: "the tower", 2: "an old laptop", 3: "the printer"}
    three = (*pool(50, 50), *pool(50, 50, 0.001)[2:])
    outcome = do(tmp_path, order(made, pool=three, names=names))
    report = outcome.view.report
    for name in names.values():
        assert name in report
    assert "provider-" not in report
    assert "node_1" in report  # what its log calls it


def trained(made, tmp_path):
    """What is to be done with stages that have been planned, trained and brought back."""
    assert do(tmp_path, order(made, pool=pool(50, 50))).error == ""
    for package in (tmp_path / "node_data").glob("cluster_0/provider-*:1"):
        results = tmp_path / "results" / package.name.removeprefix("provider-").removesuffix(":1")
        results.mkdir(parents=True)
        loaded = load_package(package)
        weights = load_weights(package / "weights.safetensors", loaded.graph)
        save_trained(loaded, weights, save_id="s1")
        for file in package.glob("trained*"):
            file.rename(results / file.name)
    folders = {"model": tmp_path / "node_data", "results": tmp_path / "results"}
    folders["output"] = tmp_path / "result"
    paths = {name: str(path) for name, path in folders.items()}
    return PlanOrder(task="fuse", job="j", run=1, **paths)


def test_fused_weights_carry_what_their_numbers_mean(made, tmp_path):
    legend = Legend(classes=("a", 'b "quoted"', "ü"))
    spec = msgspec.structs.replace(made[0], legend=legend)
    outcome = do(tmp_path / "fusing", trained((spec, made[1]), tmp_path))
    assert outcome.error == ""
    assert read_legend(tmp_path / "result" / SAFETENSORS) == legend
    made_of = {path.name for path in (tmp_path / "result").iterdir() if path.suffix != ".sha256"}
    assert made_of == {*FUSED.values(), FUSED_RUN}


def test_a_process_leaves_the_spare_of_the_disk(made, tmp_path):
    """Here before it is begun."""
    outcome = do(tmp_path, order(made, task="check"), spare_bytes=1 << 60)
    assert (outcome.full, outcome.crashed) == (True, True)
    assert "disk of the server is full" in outcome.error
    assert not (tmp_path / "planjob.json").exists()


def test_a_process_looks_for_room_once_it_knows_how_much_it_will_write(made, tmp_path, monkeypatch):
    wanted = trained(made, tmp_path)
    monkeypatch.setenv(SPARE, str(1 << 60))
    (tmp_path / "fusing").mkdir()
    for what, folder in ((order(made, pool=pool(50, 50)), tmp_path), (wanted, tmp_path / "fusing")):
        outcome = planjob._done(what, folder)
        assert (outcome.full, outcome.crashed) == (True, True), outcome
    assert not (tmp_path / "result").exists()


def test_it_is_known_how_large_the_fused_weights_will_be(made, tmp_path, monkeypatch):
    wanted, told = trained(made, tmp_path), []
    monkeypatch.setattr(tasks, "leave_room", lambda folder, size, spare: told.append(size))
    (tmp_path / "fusing").mkdir()
    tasks.fuse(wanted, tmp_path / "fusing")
    weights = [path for path in (tmp_path / "result").iterdir() if path.suffix != ".sha256"]
    names = len(load_file(tmp_path / "result" / SAFETENSORS))
    size = sum(path.stat().st_size for path in weights)
    assert told[0] - 1000 * names < size < told[0] + 1000


def test_half_of_what_there_was_no_room_for_is_removed(made, tmp_path, monkeypatch):
    wanted = trained(made, tmp_path)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tasks, "sha256_of", full)
    monkeypatch.setattr(tasks, "write_assignments", full)
    (tmp_path / "fusing").mkdir()
    again = tmp_path / "again"
    again.mkdir()
    planned = order(made, pool=pool(50, 50))
    (again / "planjob.json").write_bytes(msgspec.json.encode(planned))
    assert planjob._done(wanted, tmp_path / "fusing").full
    assert planjob._done(planned, again).full
    assert list((tmp_path / "fusing").iterdir()) == []
    assert [path.name for path in again.iterdir()] == ["planjob.json"]


def test_fused_weights_are_on_disk_before_they_are_in_place(tmp_path, monkeypatch):
    """The server records the result as soon as the process has ended; then the power may fail."""
    said = []
    (tmp_path / "results").mkdir()

    def fused(run, cluster, target, metadata, before_writing):
        target.mkdir()
        for name in (SAFETENSORS, STATE_DICT):
            (target / name).write_bytes(b"weights")

    def fsync(number):
        said.append(os.fstat(number).st_ino)

    def rename(self, target):
        said.append(f"to {target}")
        return move(self, target)

    move = Path.rename
    monkeypatch.setattr("ravnest.server.planjob.tasks.fuse_cluster", fused)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    paths = {name: str(tmp_path / name) for name in ("model", "results", "output")}
    (tmp_path / "fusing").mkdir()
    fuse(PlanOrder(task="fuse", run=3, **paths), tmp_path / "fusing")
    result = tmp_path / "output"
    assert (result / FUSED_RUN).read_text() == "3"
    assert set(said[:5]) == {path.stat().st_ino for path in result.iterdir()}
    assert said[5:] == [result.stat().st_ino, f"to {result}", tmp_path.stat().st_ino]


def test_a_pool_that_is_too_small_is_told_as_such(made, tmp_path):
    outcome = do(tmp_path, order(made, pool=pool(50, memory=1000)))
    assert outcome.unfit
    assert "memory" in outcome.error


def test_a_process_that_takes_too_long_is_ended(made, tmp_path):
    outcome = do(tmp_path, order(made, pool=pool(50)), seconds=0.05)
    assert "longer than 0.05 seconds" in outcome.error
    assert not outcome.crashed  # it would take as long again
    assert not outcome.unfit


def test_a_check_that_takes_too_long_has_a_limit_of_its_own(made, tmp_path):
    outcome = do(tmp_path, order(made, task="check"), check_seconds=0.05)
    assert "longer than 0.05 seconds, which is the limit (ravnest server --check" in outcome.error


def test_owners_have_their_turns_one_after_the_other(made, tmp_path, monkeypatch):
    async def story():
        workshop, begun, go = Workshop(WorkLimits(threads=1)), asyncio.Queue(), asyncio.Event()

        async def run(folder, task):
            begun.put_nowait(folder.name)
            await go.wait()

        monkeypatch.setattr(workshop, "_run", run)
        told = asyncio.Queue()
        for name in ("m1", "m2", "m3", "a1"):
            task = order(made, task="fuse", owner=name[0])
            workshop.start(name, tmp_path / name, task, told.put)
        async with asyncio.timeout(30):
            first = await begun.get()
            go.set()
            found = [first, *[await begun.get() for _ in range(3)]]
        await workshop.close()
        return found

    assert asyncio.run(story()) == ["m1", "a1", "m2", "m3"]


def test_a_process_that_needs_too_much_memory_is_ended(made, tmp_path):
    outcome = do(tmp_path, order(made, pool=pool(50)), memory_bytes=20_000_000)
    assert outcome.error  # that of Python or, if it came so far, ours
    assert not outcome.unfit


class Greedy(a_job.Net):
    def forward(self, x):
        more = torch.zeros((1237, 1)).expand(1237, 1000).exp().sum()
        return super().forward(x) + 0 * more


def test_a_graph_that_asks_for_too_much_memory_is_refused(tmp_path, monkeypatch):
    """Which is in its literals, and the requester's own machine had never to hold it."""
    monkeypatch.setattr(a_job, "Net", Greedy)
    spec = make_job(tmp_path / "job")[0]
    model = tmp_path / "job" / "model"
    for name in ("graph.json", "outline.json"):
        text = (model / name).read_text()
        (model / name).write_text(text.replace("1237", "3000000"))
    for name in ("manifest.json", "card.json"):
        document = json.loads((model / name).read_text())
        for entry in document["files"]:
            content = (model / entry["name"]).read_bytes()
            entry["sha256"], entry["size"] = hashlib.sha256(content).hexdigest(), len(content)
        (model / name).write_text(json.dumps(document))
    wanted = order((spec, model), pool=pool(50, 50, memory=1 << 45))
    outcome = do(tmp_path / "plan", wanted, memory_bytes=3 << 30)
    assert "more than the 3.22 GB of memory that the server allows" in outcome.error
    assert not outcome.crashed
    assert not outcome.unfit


def test_a_damaged_model_is_refused_without_naming_folders(made, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(made[1], model)
    (model / "graph.json").write_bytes(b"{}")
    outcome = do(tmp_path / "check", order(made, task="check", model=str(model)))
    assert "graph.json" in outcome.error
    assert not outcome.crashed
    assert str(tmp_path) not in outcome.error


def test_a_plan_that_is_not_wanted_any_more_is_cancelled(made, tmp_path, monkeypatch):
    """Its process is ended, and nobody is told anything."""
    begun = asyncio.Queue()

    async def noted(process):
        begun.put_nowait(process)
        return await last_words(process)

    last_words = work._last_words
    monkeypatch.setattr(work, "_last_words", noted)

    async def story():
        workshop, told = Workshop(WorkLimits(threads=1)), []

        async def done(outcome):
            told.append(outcome)

        workshop.start("plan j", tmp_path, order(made, pool=pool(50)), done)
        async with asyncio.timeout(30):
            process = await begun.get()
        assert process.returncode is None
        workshop.cancel("plan j")
        await workshop.close()
        assert process.returncode == -signal.SIGKILL
        assert told == []

    asyncio.run(story())


def test_a_folder_that_cannot_be_written_is_no_verdict_on_the_job(made, tmp_path):
    async def story():
        workshop, told = Workshop(WorkLimits(threads=1)), asyncio.Queue()
        (tmp_path / "file").write_bytes(b"")
        workshop.start("plan j", tmp_path / "file", order(made, pool=pool(50)), told.put)
        async with asyncio.timeout(30):
            outcome = await told.get()
        await workshop.close()
        assert outcome.crashed

    asyncio.run(story())
