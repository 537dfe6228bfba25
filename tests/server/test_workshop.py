"""Processes that plan: what becomes of those that are slow, large, broken or not wanted."""

import asyncio
import errno
import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import a_job
import msgspec
import pytest
import torch
from a_job import make_job, ref
from safetensors.torch import load_file

from ravnest.api.jobs import Legend
from ravnest.api.views import PlanView, RingView
from ravnest.api.work import Assignment
from ravnest.data.legend import read_legend
from ravnest.plan import ProviderSpec
from ravnest.planning.fusion import SAFETENSORS
from ravnest.sandbox.bubblewrap import sandboxed
from ravnest.server.folders import FUSED, FUSED_RUN, Folders
from ravnest.server.planjob import __main__ as planjob
from ravnest.server.planjob import outcome as outcome_module
from ravnest.server.planjob import tasks
from ravnest.server.planjob.outcome import (
    MOST_LEFT_BYTES,
    SPARE,
    PlanOrder,
    PlanOutcome,
    left_files,
)
from ravnest.server.service import work
from ravnest.server.service.fused_files import lay_out, put_in_place
from ravnest.server.service.partitions import take_over
from ravnest.server.service.runfiles import RunFiles
from ravnest.server.service.work import WorkLimits, Workshop
from ravnest.server.state.records import Part, PlanFacts, PlannedPart
from ravnest.server.state.world import World
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


def do(folder, task, root=None, **limits):
    async def run():
        workshop = Workshop(WorkLimits(threads=1, **limits), root)
        try:
            return await workshop.do(folder, task)
        finally:
            await workshop.close()

    return asyncio.run(run())


def test_four_providers_get_parts_with_files_that_are_there(made, tmp_path):
    task = order(made, pool=pool(50, 50, 50, 50))
    outcome = do(tmp_path, task)
    assert outcome.error == ""
    assert outcome.facts.clusters == 2
    blobs = {ref(path).sha256: path for path in made[1].parent.rglob("*.safetensors")}
    take_over(tmp_path, task, outcome, blobs.__getitem__, 0)
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
            sum(shard.rows for shard in assignment.train.data.shards)
        )
        others = {neighbour.provider for neighbour in assignment.neighbours}
        assert len(others) >= 2  # the other stage, and the same in the other cluster
    assert rows == {0: {32}, 1: {32}}
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
    model, run = shutil.copytree(made[1], tmp_path / "model"), tmp_path / "run"
    assert do(run, order((made[0], model), pool=pool(50, 50))).error == ""
    for package in (run / "node_data").glob("cluster_0/provider-*:1"):
        results = tmp_path / "results" / package.name.removeprefix("provider-").removesuffix(":1")
        results.mkdir(parents=True)
        loaded = load_package(package)
        weights = load_weights(package / "weights.safetensors", loaded.graph)
        save_trained(loaded, weights, save_id="s1")
        for file in package.glob("trained*"):
            file.rename(results / file.name)
    folders = {"model": run / "node_data", "results": tmp_path / "results"}
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
    lay_out(wanted)
    monkeypatch.setenv(SPARE, str(1 << 60))
    (tmp_path / "fusing").mkdir()
    planned = order(made, pool=pool(50, 50))
    for what, folder in ((planned, tmp_path / "run"), (wanted, tmp_path / "fusing")):
        outcome = planjob._done(what, folder)
        assert (outcome.full, outcome.crashed) == (True, True), outcome
    assert not (tmp_path / "result").exists()


def test_it_is_known_how_large_the_fused_weights_will_be(made, tmp_path, monkeypatch):
    wanted, told = trained(made, tmp_path), []
    monkeypatch.setattr(tasks, "leave_room", lambda folder, size, spare: told.append(size))
    (tmp_path / "fusing").mkdir()
    lay_out(wanted)
    tasks.fuse(wanted, tmp_path / "fusing")
    fresh = tmp_path / "fusing" / "result"
    weights = [path for path in fresh.iterdir() if path.suffix != ".sha256"]
    names = len(load_file(fresh / SAFETENSORS))
    size = sum(path.stat().st_size for path in weights)
    assert told[0] - 1000 * names < size < told[0] + 1000


def test_half_of_what_there_was_no_room_for_is_removed(made, tmp_path, monkeypatch):
    wanted = trained(made, tmp_path)
    lay_out(wanted)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tasks, "sha256_of", full)
    monkeypatch.setattr(tasks, "write_made", full)
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
    """The server records the result as soon as it is in place; then the power may fail."""
    said, result = [], tmp_path / "output"
    fresh, retired = tmp_path / "fusing" / "result", tmp_path / "retired"
    for folder, what in ((fresh, "0" * 64), (result, "before")):
        folder.mkdir(parents=True)
        for name in FUSED.values():
            (folder / name).write_text(what)
            (folder / f"{name}.sha256").write_text(what)

    def fsync(number):
        said.append(os.fstat(number).st_ino)

    def rename(self, target):
        said.append(f"to {target}")
        return move(self, target)

    move = Path.rename
    order = PlanOrder(task="fuse", run=3, output=str(result))
    with monkeypatch.context() as watched:
        watched.setattr(os, "fsync", fsync)
        watched.setattr(Path, "rename", rename)
        assert put_in_place(fresh.parent, order, PlanOutcome()).error == ""
    assert (result / FUSED_RUN).read_text() == "3"
    moves = [f"to {retired}", f"to {result}", tmp_path.stat().st_ino]
    assert said[-3:] == moves
    assert {path.stat().st_ino for path in (*result.iterdir(), result)} <= set(said[:-3])
    assert not retired.exists()


def test_a_server_that_ends_between_two_moves_has_the_last_result(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "retired").mkdir()
    (tmp_path / "retired" / SAFETENSORS).write_text("the last good one")
    paths = {name: str(tmp_path / name) for name in ("model", "results")}
    lay_out(PlanOrder(task="fuse", output=str(tmp_path / "result"), **paths))
    assert (tmp_path / "result" / SAFETENSORS).read_text() == "the last good one"


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
            task = order(made, task="check", owner=name[0])
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


LOOK = """
import contextlib, ctypes, errno, json, os, pathlib, socket, sys
given = json.loads(pathlib.Path(sys.argv[1], "given.json").read_text())
got = []
for path in given["unseen"]:
    with contextlib.suppress(OSError):
        pathlib.Path(path).read_bytes()
        got.append("reads " + path)
for path in given["unwritten"]:
    with contextlib.suppress(OSError):
        pathlib.Path(path, "written").write_text("1")
        got.append("writes to " + path)
for path in given["read"]:
    pathlib.Path(path).read_bytes()
for path in given["written"]:
    pathlib.Path(path, "mine").write_text("1")
got += ["has " + name for name, value in os.environ.items() if "SECRET" in value]
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_ALG):
    with contextlib.suppress(OSError):
        socket.socket(family, socket.SOCK_STREAM).close()
        got.append(f"has a socket {family}")
if os.listdir("/sys/class/net") != ["lo"] if os.path.isdir("/sys/class/net") else False:
    got.append("sees a network")
if len([name for name in os.listdir("/proc") if name.isdigit()]) > 2:
    got.append("sees processes")
got += [f"has {name}" for name in os.listdir("/dev") if name.startswith(("nvidia", "dri", "kfd"))]
system = ctypes.CDLL(None, use_errno=True)
if system.ptrace(16, os.getpid(), 0, 0) == 0 or ctypes.get_errno() != errno.ENOSYS:
    got.append("may trace")
pathlib.Path(sys.argv[1], "got.json").write_text(json.dumps(got))
"""


def instead(monkeypatch, program):
    """Another program in the place of planning, started as planning is."""

    def started(command, policy):
        return sandboxed([sys.executable, "-c", program, command[-1]], policy)

    monkeypatch.setattr(work, "sandboxed", started)


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize("task", ["check", "plan", "fuse"])
def test_a_process_sees_the_files_of_its_job_and_no_network(tmp_path, monkeypatch, task):
    """It had the server's environment, read the key of its authority, and reached any machine."""
    for name in ("RAVNEST_SERVER_STORE", "PYTHON_TOKEN", "http_proxy", "AWS_PROFILE"):
        monkeypatch.setenv(name, "SECRET")
    root, outside = tmp_path / "server", tmp_path / "outside"
    job, other = root / "jobs" / "j1", root / "jobs" / "j2"
    folder = job / "runs" / "2"
    places = [root / "authority", job / "model", job / "result", folder, other / "model", outside]
    for place in places:
        place.mkdir(parents=True)
        (place / "file").write_text("")
    for name in ("operator.token", "server.sqlite"):
        (root / name).write_text("")
    unseen = [root / "operator.token", root / "server.sqlite", root / "authority" / "file"]
    unseen += [other / "model" / "file", outside / "file", Path("/etc/shadow")]
    unwritten = [root, root / "jobs", job / "model", other, outside, Path("/usr"), Path("/")]
    wanted = {"task": task, "model": str(job / "model")}
    readable, writable = [job / "model" / "file"], [folder]
    unwritten += [job, job / "runs", job / "result"]
    if task == "plan":
        wanted["weights"] = str(job / "result" / "file")
        readable.append(job / "result" / "file")
    if task == "fuse":
        run, folder = folder, folder / "fusing"
        for place in (folder, run / "node_data", run / "results", run / "held-out"):
            place.mkdir()
            (place / "file").write_text("")
        wanted |= {"model": str(run / "node_data"), "results": str(run / "results" / "none")}
        wanted["output"] = str(job / "result")
        Path(wanted["results"]).mkdir()
        readable += [run / "node_data" / "file", run / "held-out" / "file", job / "result" / "file"]
        writable = [folder]
        unwritten += [run, run / "node_data", run / "results", run / "held-out"]
    given = {"unseen": unseen, "unwritten": unwritten, "read": readable, "written": writable}
    (folder / "given.json").write_text(json.dumps(given, default=str))
    instead(monkeypatch, LOOK)
    outcome = do(folder, PlanOrder(**wanted), root=root)
    assert "left nothing behind" in outcome.error, outcome
    assert json.loads((folder / "got.json").read_text()) == []


@pytest.mark.needs("bwrap")
def test_the_last_words_of_a_process_are_for_the_log(made, tmp_path, monkeypatch, caplog):
    """Torch's may hold a number of a tensor, and everybody who sees the job reads why it failed."""
    instead(monkeypatch, "raise IndexError('index 4711 is out of bounds')")
    outcome = do(tmp_path, order(made, pool=pool(50)))
    assert outcome.crashed
    assert "4711" not in outcome.error
    assert "4711" in caplog.text


@pytest.mark.needs("bwrap")
def test_a_model_that_ends_the_process_by_a_signal_is_not_planned_again(
    made, tmp_path, monkeypatch
):
    """It was taken for a mishap and tried four times. The server goes on with others."""
    with monkeypatch.context() as here:
        instead(here, "import ctypes; ctypes.string_at(0)")
        outcome = do(tmp_path / "first", order(made, pool=pool(50)))
    assert outcome.error == "it ended the server's process by SIGSEGV"
    assert (outcome.crashed, outcome.unfit) == (False, False)
    assert do(tmp_path / "second", order(made, task="check")).error == ""


@pytest.mark.needs("bwrap")
def test_a_link_that_a_process_leaves_behind_leads_nowhere(tmp_path, monkeypatch):
    """The server would have handed out what it leads to, as a part of the plan or as a result."""
    (tmp_path / "ca.key").write_text("secret")
    leaves = "import os, sys; os.symlink('../ca.key', sys.argv[1] + '/outcome.json')"
    instead(monkeypatch, leaves)
    outcome = do(tmp_path / "run", PlanOrder(task="plan"))
    assert outcome.error == "it left 'outcome.json' behind, which is no plain file"
    assert not (tmp_path / "run").exists()
    assert (tmp_path / "ca.key").read_text() == "secret"


ESCAPE = """
import contextlib, os, pathlib, sys
folder = pathlib.Path(sys.argv[1])
job = folder.parents[2]
for link, target in ((job / "result", "../victim/result"), (job / "runs/2", "../../..")):
    with contextlib.suppress(OSError):
        os.symlink(target, link)
(folder / "result").mkdir()
for name in sys.argv[2:]:
    (folder / "result" / name).write_text("0" * 64)
(folder / "outcome.json").write_text('{"result_bytes": 1}')
"""


@pytest.mark.needs("bwrap")
def test_a_fusing_process_that_was_taken_over_changes_nothing_but_its_own_folder(
    tmp_path, monkeypatch
):
    """It had the folder of its job: a link in the place of the result handed out the weights of
    another job, and one in the place of the next run let planning read and write the server's."""
    folders = Folders(tmp_path.resolve() / "server")
    folders.make()
    for place in (folders.result("victim"), folders.job("mine") / "model"):
        place.mkdir(parents=True)
        (place / SAFETENSORS).write_text("of another job")
    run = folders.run("mine", 1)
    for place in ("node_data", "results"):
        (run / place).mkdir(parents=True)
    paths = {"model": run / "node_data", "results": run / "results"}
    paths["output"] = folders.result("mine")
    wanted = PlanOrder(task="fuse", run=1, **{name: str(path) for name, path in paths.items()})
    escape = ESCAPE.replace("sys.argv[2:]", repr(NAMES))
    instead(monkeypatch, escape)
    outcome = do(run / "fusing", wanted, root=folders.root)
    assert (outcome.error, outcome.result_bytes) == ("", 64)  # as the server has counted
    found = sorted(path.name for path in folders.job("mine").iterdir())
    assert found == ["model", "result", "runs"]
    assert [path.name for path in (folders.job("mine") / "runs").iterdir()] == ["1"]
    assert (folders.result("mine") / SAFETENSORS).read_text() == "0" * 64
    assert (folders.result("mine") / FUSED_RUN).read_text() == "1"


NAMES = [*FUSED.values(), *(f"{name}.sha256" for name in FUSED.values())]
ALL_FUSED = (
    f"NAMES = {NAMES}; (folder / 'result').mkdir(); "
    "[(folder / 'result' / name).write_text('0' * 64) for name in NAMES]"
)


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize(
    "left",
    [
        "os.symlink('../../../../authority', folder / 'result')",
        "(folder / 'result').mkdir(); os.symlink('/etc/passwd', folder / 'result' / 'x.pt')",
        "(folder / 'result').mkdir(); (folder / 'result' / 'more').write_text('1')",
        "(folder / 'result').mkdir(); (folder / 'result').chmod(0o111)",
        "(folder / 'result').write_text('1')",
        f"{ALL_FUSED}; (folder / 'result' / NAMES[2]).write_text('not a hash')",
        f"{ALL_FUSED}; (folder / 'result' / NAMES[3]).open('wb').truncate(1 << 40)",
        f"{ALL_FUSED}; (folder / 'result' / NAMES[0]).unlink()",
        "pass",
    ],
)
def test_what_fusing_leaves_behind_is_a_folder_of_known_files_or_no_result(
    tmp_path, monkeypatch, left
):
    last = tmp_path / "job" / "result"
    last.mkdir(parents=True)
    (last / SAFETENSORS).write_text("the last good one")
    begin = "import os, pathlib, sys; folder = pathlib.Path(sys.argv[1])"
    end = "(folder / 'outcome.json').write_text('{}')"
    instead(monkeypatch, "; ".join((begin, left, end)))
    run = tmp_path / "job" / "runs" / "1"
    (run / "results").mkdir(parents=True)
    paths = {"model": run / "node_data", "results": run / "results", "output": last}
    wanted = PlanOrder(task="fuse", run=1, **{name: str(path) for name, path in paths.items()})
    outcome = do(run / "fusing", wanted)
    assert "it left " in outcome.error
    assert (last / SAFETENSORS).read_text() == "the last good one"
    assert not (run / "fusing" / "result").exists()


@pytest.mark.needs("bwrap")
def test_a_link_on_the_way_to_a_folder_is_not_followed(tmp_path):
    """Whoever made it: a sandbox would be given what it leads to."""
    folders = Folders(tmp_path.resolve() / "server")
    folders.make()
    runs = folders.job("mine") / "runs"
    runs.mkdir(parents=True)
    (runs / "2").symlink_to("../../..")
    for order, folder in (
        (PlanOrder(task="plan", run=2), runs / "2"),
        (PlanOrder(task="plan", run=2), runs / "2" / "jobs" / "new"),
        (PlanOrder(task="plan", run=3, weights=str(runs / "2" / "operator.token")), runs / "3"),
    ):
        outcome = do(folder, order, root=folders.root)
        assert "a link on the way" in outcome.error
    folders.remove_runs_except("mine", {1})
    assert [path.name for path in runs.iterdir()] == []
    assert folders.authority.is_dir()


@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o6700])
def test_nothing_stays_that_would_run_as_the_user_of_the_server(tmp_path, mode):
    """Whoever could reach it was the server's user then."""
    folder = tmp_path / "run"
    (folder / "node_data").mkdir(parents=True)
    (folder / "node_data" / "own").write_bytes(b"#!")
    (folder / "node_data" / "own").chmod(mode)
    (folder / "outcome.json").write_text("{}")
    outcome = work._outcome(folder, PlanOrder(task="plan"), None)
    assert outcome.error == "it left 'own' behind, which is no plain file"
    assert not folder.exists()


def test_the_folders_of_a_server_are_closed_to_others_wherever_they_are(tmp_path):
    """One that was linked to another disk was open, and what planning had marked to run as the
    server's user could be run by everybody."""
    folders = Folders(tmp_path / "server")
    folders.root.mkdir()
    all_of_them = [folders.authority, folders.blobs, folders.jobs, folders.incoming, folders.aside]
    for folder in all_of_them:
        disk = tmp_path / "disk" / folder.name
        disk.mkdir(parents=True)
        disk.chmod(0o777)
        folder.symlink_to(disk)
    (folders.incoming / "half").mkdir()
    folders.make()
    folders.empty_incoming()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folders.root, *all_of_them)] == (
        [0o700] * 6
    )
    assert list(folders.incoming.iterdir()) == []


def test_a_folder_of_somebody_else_is_told_and_used(tmp_path, monkeypatch, caplog):
    def refused(path, mode):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refused)
    Folders(tmp_path).make()
    assert f"others on this machine may be able to enter {tmp_path / 'jobs'}" in caplog.text


def grown(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(MOST_LEFT_BYTES + 1)  # it takes no room on the disk, and all of it in memory


def test_an_outcome_that_is_too_large_is_not_read(tmp_path):
    """Two gigabytes of zeros were read whole, by the server."""
    grown(tmp_path / "outcome.json")
    outcome = work._outcome(tmp_path, PlanOrder(task="plan"), None)
    assert "it left nothing behind" in outcome.error
    assert f"more than {1 << 20} bytes" in outcome.error
    assert not (tmp_path / "outcome.json").exists()


LONG = "x" * 4001
VIEW = {"steps_per_s": 1, "single_machine_steps_per_s": 1, "batch_size": 1, "parameters": 1}
VIEW |= {"model": "m", "clusters": 1, "providers": 1}
RING = {"id": 0, "first_parameter": "w", "bytes": 1, "providers": [1]}


@pytest.mark.parametrize(
    "left",
    [
        {"error": LONG},
        {"warnings": ["a"] * 101},
        {"warnings": [LONG]},
        {"result_bytes": 1 << 60},
        {"view": VIEW | {"warnings": ["a"] * 101}},
        {"view": VIEW | {"model": LONG}},
        {"view": VIEW | {"idle": [[1, LONG]]}},
        {"view": VIEW | {"idle": [[1 << 40, ""]]}},
        {"view": VIEW | {"batch_size": 1 << 60}},
        {"rings": [RING | {"first_parameter": LONG}]},
        {"rings": [RING | {"providers": [-1]}]},
        {"validation": {"note": LONG}},
        {"validation": {"not_finite": LONG}},
    ],
    ids=lambda left: f"{left}"[:60],
)
def test_what_is_said_at_length_is_no_outcome(tmp_path, left):
    """A reason of 250 MB, and as much in warnings, kept the server from everything else."""
    (tmp_path / "outcome.json").write_text(json.dumps(left))
    with pytest.raises(msgspec.ValidationError):
        work._outcome(tmp_path, PlanOrder(task="plan"), None)
    assert not (tmp_path / "outcome.json").exists()  # which others look at later
    problem = PlanOutcome(error="it was killed")
    (tmp_path / "outcome.json").write_text(json.dumps(left))
    assert work._outcome(tmp_path, PlanOrder(task="plan"), problem) is problem


def test_no_file_of_a_part_is_called_at_length(tmp_path):
    file = {"path": "node.json", "sha256": "0" * 64, "size": 1}
    for made in ([{"file": file, "place": LONG}], [{"file": file, "place": "p"}] * 1001):
        (tmp_path / "made.json").write_text(json.dumps({"1": made}))
        with pytest.raises(msgspec.ValidationError):
            left_files(tmp_path, PlanOrder(task="plan", pool=pool(50)))


def test_a_process_that_has_much_to_say_says_the_beginning(tmp_path):
    view = PlanView(**VIEW | {"warnings": (LONG,) * 200})
    said = PlanOutcome(error=LONG, warnings=(LONG,) * 200, view=view)
    (tmp_path / "outcome.json").write_bytes(msgspec.json.encode(said))
    found = work._outcome(tmp_path, PlanOrder(task="plan", pool=pool(50)), None)
    assert found == said
    assert found.error == LONG[:-1]
    assert found.warnings == found.view.warnings == (LONG[:-1],) * 100


def test_what_is_said_of_a_large_pool_fits(tmp_path):
    """1000 providers in 100 clusters, each of which is cut elsewhere."""
    parts = tuple(
        PlannedPart(
            provider=number, node=f"node_{number}", cluster=number // 10, stage=number % 10,
            role="Stem", parameters=1 << 33, memory_bytes=1 << 35, compute_s=0.12345678901234567,
        )
        for number in range(1000)
    )  # fmt: skip
    rings = tuple(
        RingView(
            id=number, first_parameter="model.layers.17.mlp.gate_proj.weight", bytes=1 << 33,
            providers=tuple(range(900, 1000)),
        )
        for number in range(901)
    )  # fmt: skip
    idle = tuple((number, "it would make the others wait" * 4) for number in range(1000))
    view = PlanView(**VIEW | {"idle": idle, "report": "x" * 300 * 1000})
    said = PlanOutcome(facts=PlanFacts(run=1, parts=parts), rings=rings, view=view)
    content = msgspec.json.encode(said)
    (tmp_path / "outcome.json").write_bytes(content)
    order = PlanOrder(task="plan", pool=pool(50) * 1000)
    assert work._outcome(tmp_path, order, None) == said
    assert len(content) < outcome_module._most_bytes(order) / 4


@pytest.mark.parametrize("name", ["places.json", "parts/1.json", "made.json"])
def test_no_file_of_a_plan_is_read_that_is_too_large(tmp_path, name):
    folders = Folders(tmp_path)
    part = Part(id="j-1-1", job="j", run=1, provider=1, node="n", cluster=0, stage=0, role="root")
    files = RunFiles(folders, None, World())
    grown(folders.run("j", 1) / name)
    read = {
        "places.json": lambda: files._read_places(part),
        "parts/1.json": lambda: files._assignment(part),
        "made.json": lambda: take_over(
            folders.run("j", 1), PlanOrder(task="plan"), PlanOutcome(), Path, 0
        ),
    }
    most = 1 << 20 if name == "made.json" else MOST_LEFT_BYTES
    with pytest.raises(OSError, match=f"more than {most} bytes"):
        read[name]()


@pytest.mark.parametrize("task", ["check", "plan", "fuse"])
def test_a_process_writes_no_file_that_is_larger_than_its_task_takes(tmp_path, task):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(b"0" * 1000)
    order = PlanOrder(task=task, model=str(tmp_path / "model"))
    (tmp_path / "planjob.json").write_bytes(msgspec.json.encode(order))
    program = (
        "import os, sys; from pathlib import Path\n"
        "from ravnest.server.planjob import __main__ as m\n"
        "m._done = lambda order, folder, loaded: os.truncate(folder / 'large', 1 << 30)\n"
        "Path(sys.argv[1], 'large').touch(); m.main(Path(sys.argv[1]))"
    )
    told = subprocess.run([sys.executable, "-c", program, str(tmp_path)], stderr=subprocess.PIPE)
    assert b"File too large" in told.stderr
    assert (tmp_path / "large").stat().st_size == 0


def test_planning_starts_no_program_once_it_has_begun(tmp_path):
    """Whatever a model makes of its process, there is nothing it could start."""
    program = (
        "import os, sys; from pathlib import Path\n"
        "from ravnest.server.planjob import __main__ as m\n"
        "from ravnest.server.planjob import tasks; from ravnest.server.planjob.outcome import *\n"
        "def plan(order, folder):\n"
        "    try: os.fork()\n"
        "    except PermissionError: return PlanOutcome(error='no process')\n"
        "tasks.plan = plan\n"
        "m.main(Path(sys.argv[1]))"
    )
    (tmp_path / "planjob.json").write_bytes(msgspec.json.encode(PlanOrder(task="plan")))
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    assert "no process" in (tmp_path / "outcome.json").read_text()


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
