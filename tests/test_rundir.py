"""The folder of a run: a new plan replaces the old one completely or not at all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ravnest.errors import RunDirError
from ravnest.rundir import RunDir, address_folder


def tree(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_text() if path.is_file() else None
        for path in folder.rglob("*")
        if path.name != ".lock"
    }


def writer(name, clusters=2):
    """Writes a plan in which every file says whose it is."""

    def write(run):
        run.plan_file.write_text(name)
        run.model_file.write_text(name)
        (run.root / "nodes").mkdir()
        for number in range(clusters):
            run.node_file(number).write_text(name)
            package = run.package_dir(number, f"h{number}:1")
            package.mkdir(parents=True)
            (package / "manifest.json").write_text(name)

    return write


@pytest.fixture
def run(tmp_path):
    """A folder with a pool, a file of the user's and an older plan of three clusters."""
    run = RunDir(tmp_path / "node_data")
    assert run.replace_plan(writer("old", clusters=3)) is None
    run.pool_file.write_text("pool")
    (run.root / "notes.txt").write_text("mine")
    return run


def helpers(run):
    return [path.name for path in run.root.glob(".*") if path.name != ".lock"]


def add_results(run):
    (run.package_dir(1, "h1:1") / "trained.json").write_text("results")


def test_a_new_plan_replaces_every_part_of_the_old_one(run):
    """The third cluster is gone, what is not part of a plan stays, no helper folder is left."""
    assert run.replace_plan(writer("new")) is None
    found = tree(run.root)
    assert {path: text for path, text in found.items() if text is not None} == {
        "node_configs.json": "pool",
        "notes.txt": "mine",
        "plan.json": "new",
        "model.json": "new",
        "nodes/node_0.json": "new",
        "nodes/node_1.json": "new",
        f"cluster_0/{address_folder('h0:1')}/manifest.json": "new",
        f"cluster_1/{address_folder('h1:1')}/manifest.json": "new",
    }
    assert not helpers(run)


def test_results_are_archived_not_deleted(run):
    """Numbers go on from the highest there is, so an archive is never written into twice."""
    (run.root / "archive" / "007").mkdir(parents=True)
    add_results(run)
    before = {path: text for path, text in tree(run.root).items() if "old" in (text or "")}
    archived = run.replace_plan(writer("new"))
    assert archived == run.root / "archive" / "008"
    kept = tree(archived)
    assert kept.pop(f"cluster_1/{address_folder('h1:1')}/trained.json") == "results"
    assert {path: text for path, text in kept.items() if text is not None} == before
    assert run.plan_file.read_text() == "new"


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()], ids=repr)
def test_a_plan_that_is_not_finished_leaves_no_trace(run, error):
    before = tree(run.root)

    def write(fresh):
        writer("new")(fresh)
        raise error

    with pytest.raises(type(error)):
        run.replace_plan(write)
    assert tree(run.root) == before


@pytest.mark.parametrize("error", [OSError("in use"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("part", ["plan.json", "model.json", "nodes", "cluster_0", "cluster_1"])
@pytest.mark.parametrize("direction", ["out", "in"])
@pytest.mark.parametrize("results", [True, False], ids=["with results", "without results"])
def test_an_interrupted_swap_is_taken_back(run, monkeypatch, part, direction, results, error):
    """One of the moves fails, of the old plan out or of the new one in: all others are undone."""
    if results:
        add_results(run)
    before, honest, place = tree(run.root), os.replace, run.root / part

    def failing(source, target):
        if place == Path(source if direction == "out" else target):
            monkeypatch.setattr(os, "replace", honest)
            raise error
        honest(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(type(error)):
        run.replace_plan(writer("new"))
    assert os.replace is honest, "the move that should fail was never tried"
    assert tree(run.root) == before


def test_the_plan_file_appears_last(run, monkeypatch):
    """Whoever finds the new plan.json finds the rest of the new plan as well."""
    honest, order = os.replace, []

    def recording(source, target):
        if Path(target).parent == run.root and not Path(target).name.startswith("."):
            order.append(Path(target).name)
        honest(source, target)

    monkeypatch.setattr(os, "replace", recording)
    run.replace_plan(writer("new"))
    assert order[-1] == "plan.json"
    assert sorted(order) == ["cluster_0", "cluster_1", "model.json", "nodes", "plan.json"]


@pytest.mark.parametrize(("platform", "folder"), [("linux", "h:1"), ("win32", "h_1")])
def test_folders_are_named_as_the_system_allows(monkeypatch, platform, folder):
    monkeypatch.setattr("sys.platform", platform)
    assert address_folder("h:1") == folder


KILLED = """
import os, sys
from pathlib import Path
from ravnest.rundir import RunDir
sys.path.insert(0, {tests!r})
from test_rundir import writer

move, made = os.replace, 0

def replace(source, target):
    global made
    if made == {after}:
        os._exit(9)
    made += 1
    move(source, target)

os.replace = replace
RunDir({root!r}).replace_plan(writer("new"))
"""


@pytest.mark.parametrize("after", [0, 1, 3, 6, 10])
def test_a_swap_cut_off_by_a_kill_is_finished_or_never_began(run, after):
    """Six parts go out after the list of moves is in place, five come in."""
    add_results(run)
    script = KILLED.format(tests=str(Path(__file__).parent), root=str(run.root), after=after)
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 9
    run.settle()
    if after == 0:  # the list of moves was not there yet
        assert run.plan_file.read_text() == "old"
        assert not (run.root / "archive" / "001" / "plan.json").exists()
    else:
        assert {run.plan_file.read_text(), run.node_file(1).read_text()} == {"new"}
        assert len(list(run.root.glob("cluster_*"))) == 2
        kept = {path: text for path, text in tree(run.root / "archive" / "001").items() if text}
        assert len(kept) == 9
        assert set(kept.values()) == {"old", "results"}
    assert run.replace_plan(writer("newer")) is None or after == 0
    assert run.plan_file.read_text() == "newer"
    assert not helpers(run)


def test_two_processes_do_not_write_into_one_folder(run):
    def write_while_another_tries(fresh):
        writer("first")(fresh)
        with pytest.raises(RunDirError, match="another process is writing a plan into"):
            RunDir(run.root).replace_plan(writer("second"))

    run.replace_plan(write_while_another_tries)
    assert run.plan_file.read_text() == "first"


@pytest.mark.parametrize("failing", ["journal", "undoing"])
def test_a_swap_that_fails_at_a_bad_moment_can_be_finished(run, monkeypatch, failing):
    """Interrupted just after the list of moves is there, or while moves are being taken back."""
    honest, moves = os.replace, []

    def replace(source, target):
        moves.append(target)
        if failing == "journal" and ".swap.json" in str(target):
            honest(source, target)
            raise KeyboardInterrupt
        if failing == "undoing" and len(moves) in (5, 6):
            raise KeyboardInterrupt
        honest(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        run.replace_plan(writer("new"))
    monkeypatch.undo()
    run.settle()
    whole = {run.plan_file.read_text(), run.model_file.read_text(), run.node_file(1).read_text()}
    assert whole == ({"old"} if failing == "journal" else {"new"})
    run.replace_plan(writer("newer"))
    assert run.plan_file.read_text() == "newer"
    assert not helpers(run)


def test_files_that_only_look_like_a_cluster_are_left_alone(run):
    (run.root / "cluster_notes.txt").write_text("mine")
    (run.root / "cluster_old").mkdir()
    run.replace_plan(writer("new"))
    assert (run.root / "cluster_notes.txt").read_text() == "mine"
    assert (run.root / "cluster_old").is_dir()
