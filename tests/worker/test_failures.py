"""Whatever goes wrong, a worker says why, and whose fault it was if it was another's."""

import contextlib
import re
import shutil
import subprocess
import sys

import psutil
import pytest
import runs
from msgspec.structs import replace
from runs import TRAINING, Process, plan_run, prepare, started, write_order, written

from ravnest.api.work import Report
from ravnest.worker.blame import culprit_of


@pytest.fixture
def run(tmp_path):
    found = plan_run(tmp_path / "run")
    prepare(found, written(tmp_path / "data"), training=replace(TRAINING, epochs=5))
    return found


def of_stage(run, number, things):
    return things[f"node_{run.plan.clusters[0].stages[number].provider.id}"]


def end_of(folder):
    worker = Process(folder)
    try:
        end = worker.end()
        assert worker.code == 1
        assert end.outcome == "failed"
        return end
    finally:
        worker.kill()


def no_order(folder, order):
    (folder / "order.json").unlink()


def half_an_order(folder, order):
    content = (folder / "order.json").read_bytes()
    (folder / "order.json").write_bytes(content[: len(content) // 2])


def unknown_field(folder, order):
    content = (folder / "order.json").read_bytes()
    (folder / "order.json").write_bytes(content[:-1] + b',"run_this":"rm"}')


def path_upwards(folder, order):
    content = (folder / "order.json").read_bytes()
    (folder / "order.json").write_bytes(content.replace(b'"data/train/x-', b'"../../train/x-'))


def no_work(folder, order):
    write_order(folder, replace(order, assignment=replace(order.assignment, recipe=None)))


def no_data(folder, order):
    write_order(folder, replace(order, assignment=replace(order.assignment, train=None)))


ORDERS = {
    no_order: "order.json cannot be read: No such file",
    half_an_order: "order.json cannot be understood",
    unknown_field: "unknown field `run_this`",
    path_upwards: r"Expected `str` matching regex.*path",
    no_work: "either a recipe or a script",
    no_data: "stage 0 of 2 needs the field 'x'",
}


@pytest.mark.parametrize("spoil", list(ORDERS), ids=lambda spoil: spoil.__name__)
def test_an_order_that_makes_no_sense_is_refused(run, spoil):
    folder, order = of_stage(run, 0, run.folders), of_stage(run, 0, run.orders)
    spoil(folder, order)
    assert re.search(ORDERS[spoil], end_of(folder).reason)


def damaged_data(folder):
    file = next((folder / "data" / "train").glob("x-*"))
    file.write_bytes(file.read_bytes()[:-1])


def linked_data(folder):
    file = next((folder / "data" / "train").glob("x-*"))
    file.rename(folder / "x")
    file.symlink_to(folder / "x")


def damaged_package(folder):
    graph = folder / "package" / "graph.json"
    graph.write_bytes(graph.read_bytes().replace(b"aten", b"evil", 1))


def no_certificate(folder):
    shutil.rmtree(folder / "tls")


FOLDERS = {
    damaged_data: "x-00000.safetensors: it has .* bytes, and .* were announced",
    linked_data: "x-00000.safetensors is not a plain file",
    damaged_package: "graph.json",
    no_certificate: "the TLS file .* cannot be read",
}


@pytest.mark.parametrize("spoil", list(FOLDERS), ids=lambda spoil: spoil.__name__)
def test_a_folder_that_is_not_as_it_should_be_is_refused(run, spoil):
    folder = of_stage(run, 0, run.folders)
    spoil(folder)
    assert re.search(FOLDERS[spoil], end_of(folder).reason)


def test_a_leaf_that_reads_other_rows_is_found_out(run):
    folder, order = of_stage(run, 1, run.folders), of_stage(run, 1, run.orders)
    training = replace(order.assignment.training, seed=12)
    write_order(folder, replace(order, assignment=replace(order.assignment, training=training)))
    with started(run) as processes:
        root, leaf = (of_stage(run, stage, processes).end() for stage in (0, 1))
    assert {root.outcome, leaf.outcome} == {"failed"}
    assert "not on the same batch" in leaf.reason
    assert leaf.culprit is None
    assert root.culprit == of_stage(run, 1, run.orders).assignment.node
    assert not root.saved


def test_a_worker_whose_agent_is_gone_ends_and_the_others_hear_why(tmp_path):
    run = plan_run(tmp_path / "run")
    prepare(run, written(tmp_path / "data"), training=replace(TRAINING, epochs=1_000_000))
    with started(run) as processes:
        root, leaf = (of_stage(run, stage, processes) for stage in (0, 1))
        root.wait_for(lambda line: isinstance(line, Report) and line.report.epoch > 0)
        leaf.process.stdin.close()
        end = root.end()
        assert leaf.process.wait(runs.WAIT_S) == 1
    assert end.outcome == "failed"
    assert end.culprit == of_stage(run, 1, run.orders).assignment.node
    assert "its agent is gone" in end.reason


AGENT = """
import asyncio, os, sys
from pathlib import Path
from ravnest.agent.folders import AssignmentFolder
from ravnest.agent.worker import Worker

def told(report):
    if report.epoch > 0:
        print(worker.pid, flush=True)

folder = AssignmentFolder(Path(sys.argv[1]))
worker = Worker(folder, environment=dict(os.environ), on_report=told)
asyncio.run(worker.run())
"""


def test_a_worker_does_not_outlive_an_agent_that_is_killed(tmp_path):
    """Its stdin ends with the agent, however that has ended; nothing else holds the other end."""
    run = plan_run(tmp_path / "run", providers=1)
    prepare(run, written(tmp_path / "data"), training=replace(TRAINING, epochs=1_000_000))
    (folder,) = run.folders.values()
    command = [sys.executable, "-c", AGENT, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent:
        worker = psutil.Process(int(agent.stdout.readline()))
        agent.kill()
    try:
        worker.wait(runs.WAIT_S)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.kill()
    assert not worker.is_running()


def test_a_worker_that_is_terminated_says_so(tmp_path):
    run = plan_run(tmp_path / "run", providers=1)
    prepare(run, written(tmp_path / "data"), training=replace(TRAINING, epochs=1_000_000))
    with started(run) as processes:
        (worker,) = processes.values()
        worker.wait_for(lambda line: isinstance(line, Report) and line.report.epoch > 0)
        worker.process.terminate()
        end = worker.end()
    assert end.outcome == "failed"
    assert "was ended" in end.reason


def test_a_worker_without_a_folder_says_how_it_is_used():
    command = [sys.executable, "-m", "ravnest.worker"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 2
    assert "usage" in found.stderr


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("node_2 failed: out of memory", "node_2"),
        ("node_1 failed: node_2 (10.0.0.7:1) is gone: broken pipe", "node_2"),
        ("node_1 failed: the connection to node_3 (provider-3:1) failed: OSError", "node_3"),
        ("node_1 failed: node_0 (provider-0:1) is gone: timed out", None),
        ("something else", None),
    ],
)
def test_the_last_line_of_a_script_names_who_failed_first(text, node):
    assert culprit_of(text, "node_0") == node
