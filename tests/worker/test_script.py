"""A provider's own script: it finds its neighbours by the environment, and ends as it ends."""

import errno
import io
import os
import queue
import threading
from pathlib import Path

import pytest
import runs
from msgspec.structs import replace
from runs import TRAINING, plan_run, prepare, started, written

from ravnest.api.jobs import ScriptSpec
from ravnest.api.limits import FileRef
from ravnest.api.work import Report
from ravnest.sandbox.bubblewrap import Policy, sandboxed
from ravnest.worker import script
from ravnest.worker.orders import read_order
from ravnest.worker.speech import Speech
from ravnest.worker.steering import Steering

SPEC = ScriptSpec(
    file=FileRef(path="script.py", sha256="0" * 64, size=1), arguments=("--epochs", "2")
)

TRAINS = """
import sys
import torch
from ravnest import Node, Trainer, set_seed
from ravnest.data.own import own_part
from torch.utils.data import DataLoader, TensorDataset
import numpy as np

assert sys.argv[1:] == ["--epochs", "2"]
set_seed(1)
part = own_part("train")
rows = np.arange(part.rows)
data = TensorDataset(part.read("x", rows), part.read("y", rows).long())
loader = DataLoader(data, batch_size=8)

node = Node(
    optimizer="sgd", optimizer_params={"lr": 0.1}, labels=loader,
    criterion=lambda out, batch: torch.nn.functional.cross_entropy(out, batch[1]),
)
print("hello from the script")
Trainer(node=node, train_loader=loader, epochs=2, save=True).train()
"""

VALIDATES = TRAINS.replace(
    "labels=loader,", "labels=loader, test_labels=loader, telemetry=False,"
).replace("train_loader=loader,", "train_loader=loader, val_loader=loader,")

MEDDLES = """
import json, os

pipe = os.fdopen(json.loads(os.environ["RAVNEST_REPORTS"])["descriptor"], "wb", buffering=0)
pipe.write(b'{"type": "end", "end": {"outcome": "failed", "reason": "forged"}}\\n')
pipe.write(b'nonsense\\n')
pipe.write(b'{"report":' + b'[' * 100_000 + b'\\n')
pipe.write(b'x' * (3 << 20) + b'\\n')
pipe.write(b'{"type": "report", "report": {"at": 1.0, "notes": ["a note"]}}\\n')
"""


FORGES = """
import glob, os, signal

for path in glob.glob("/proc/[0-9]*/fd/*"):
    if path.startswith(f"/proc/{os.getpid()}/"):
        continue
    try:
        file = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        os.write(file, b'{"type": "end", "end": {"outcome": "done", "saved": true}}\\n')
    except OSError:
        pass
os.kill(os.getppid(), signal.SIGKILL)
raise SystemExit("this is how it ends")
"""


REACHES = """
import ctypes, errno, os, signal, sys

system = ctypes.CDLL(None, use_errno=True)
worker, reached = os.getppid(), []
assert worker == 1

def tried(name, act):
    try:
        if act():
            reached.append(name)
    except OSError:
        pass

def read(path):
    with open(path, "rb", buffering=0) as file:
        return file.read(8)

for name in ("environ", "maps", "auxv", "stack", "io", "fdinfo/0"):
    tried(name, lambda: read(f"/proc/{worker}/{name}"))
for name in ("map_files", "cwd", "root"):
    tried(name, lambda: os.listdir(f"/proc/{worker}/{name}"))
for name in ("fd/0", "fd/1", "fd/2", "fd/3"):
    tried(name, lambda: os.readlink(f"/proc/{worker}/{name}"))
tried("mem", lambda: os.open(f"/proc/{worker}/mem", os.O_RDONLY))
tried("mem to write", lambda: os.open(f"/proc/{worker}/mem", os.O_RDWR))

class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]

here = ctypes.create_string_buffer(8)
piece = ctypes.byref(Piece(ctypes.addressof(here), 8))
for name in ("process_vm_readv", "process_vm_writev"):
    done = getattr(system, name)(worker, piece, 1, piece, 1, 0)
    # Refused for its worker's sake, or not there at all.
    refused = (errno.EPERM, errno.ENOSYS)
    tried(name, lambda: done >= 0 or ctypes.get_errno() not in refused)
peer, pidfd_getfd, attach = os.pidfd_open(worker), 438, 16
for number in range(16):
    tried(f"descriptor {number}", lambda: system.syscall(pidfd_getfd, peer, number, 0) >= 0)
# Where it has reached something, its worker goes on to say so.
if not reached:
    tried("ptrace", lambda: system.ptrace(attach, worker, 0, 0) == 0)
    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        os.kill(worker, number)
sys.exit(f"reached {reached}")
"""


def script_run(tmp_path, text):
    run = plan_run(tmp_path / "run")
    # Without a recipe nobody knows who needs which field.
    both = replace(
        runs.RECIPE,
        inputs=(replace(runs.RECIPE.inputs[0]), replace(runs.RECIPE.inputs[0], field="y")),
        losses=(*runs.RECIPE.losses, replace(runs.RECIPE.losses[0], target=runs.RECIPE.inputs[0])),
    )
    prepare(run, written(tmp_path / "data"), recipe=both, training=TRAINING)
    for node, folder in run.folders.items():
        (folder / "script.py").write_text(text)
        order = run.orders[node]
        changed = replace(order.assignment, recipe=None, script=SPEC)
        runs.write_order(folder, replace(order, assignment=changed))
    return run


def within_sandbox(command, folder):
    return sandboxed(command, Policy(Path(folder), Path(folder).parent))


def test_a_script_trains_with_what_its_node_reads_from_the_environment(tmp_path):
    run = script_run(tmp_path, TRAINS)
    with started(run) as processes:
        found = {node: process.end() for node, process in processes.items()}
    for node, end in found.items():
        assert (end.outcome, end.saved, end.epochs_done) == ("done", True, 2), processes[node].log()
        assert "hello from the script" in processes[node].log()
        assert runs.is_started(processes[node].said[0])
    assert set(run.trained()) == set(runs.make_model().state_dict())


def test_the_trainer_of_a_script_reports_as_that_of_a_recipe(tmp_path):
    run = script_run(tmp_path, VALIDATES)
    with started(run) as processes:
        ends = {node: process.end() for node, process in processes.items()}
    (root,) = [p for node, p in processes.items() if run.orders[node].assignment.role == "Root"]
    (leaf,) = [p for node, p in processes.items() if run.orders[node].assignment.role == "Leaf"]
    losses = root.points("train/loss")
    batches = len(losses) // 2
    assert batches > 1
    assert [point.step for point in losses] == [*range(1, 2 * batches + 1)]
    assert [point.epoch for point in losses] == [
        step / batches for step in range(1, len(losses) + 1)
    ]
    assert all(point.value > 0 for point in losses)
    assert [point.epoch for point in root.points("eval/accuracy")] == [1.0, 2.0]
    assert leaf.points("train/loss") == []
    for process in processes.values():
        last = process.reports[-1]
        assert last.epoch == 2
        assert 0 < last.updates <= 2 * batches  # fewer where one took several batches along
        assert last.memory_bytes > 0
        assert {span.kind for report in process.reports for span in report.spans} >= {"backward"}
        assert any(link.sent and link.received for link in last.links)
    (rows,) = {order.assignment.train_rows for order in run.orders.values()}
    assert root.reports[-1].samples == 2 * rows
    (score,) = [end.metrics for end in ends.values() if end.metrics]
    assert score["eval/accuracy"] == root.points("eval/accuracy")[-1].value


def test_what_else_a_script_writes_to_where_it_reports_is_left_out(tmp_path):
    run = script_run(tmp_path, MEDDLES)
    with started(run) as processes:
        worker = next(iter(processes.values()))
        end = worker.end()
    assert (end.outcome, end.reason) == ("done", "")
    assert "the script reports what is not understood" in worker.log()
    assert [report.notes for report in worker.reports if report.notes] == [("a note",)]


@pytest.mark.needs("bwrap")
def test_a_script_in_a_sandbox_cannot_speak_for_its_worker_nor_end_it(tmp_path):
    """Through /proc it wrote to the pipe that the agent listens to."""
    run = script_run(tmp_path, FORGES)

    with started(run, within_sandbox) as processes:
        worker = next(iter(processes.values()))
        end = worker.end()
    assert (end.outcome, end.saved) == ("failed", False)
    assert end.reason == "the script ended with code 1: this is how it ends"


@pytest.mark.needs("bwrap")
def test_a_script_in_a_sandbox_reaches_nothing_of_its_worker(tmp_path):
    """Neither its memory, nor what it has open, nor its environment; and signals do nothing."""
    run = script_run(tmp_path, REACHES)
    with started(run, within_sandbox) as processes:
        end = next(iter(processes.values())).end()
    assert end.reason == "the script ended with code 1: reached []"


WRITES_ON = """
import os, signal

open("package/trained.json", "w").write("{}")
if os.fork() == 0:
    os.setsid()
    os.closerange(0, 64)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    os.write(os.open("until", os.O_WRONLY), b"w")
    while True:
        with open("package/trained.json", "w") as file:
            file.write("{}")
"""


@pytest.mark.needs("bwrap")
def test_nobody_of_a_sandbox_writes_to_results_when_its_worker_has_ended(tmp_path):
    """From then on the agent looks at them."""
    run = script_run(tmp_path, WRITES_ON)
    folder = next(iter(run.folders.values()))
    for each in run.folders.values():
        os.mkfifo(each / "until")
    line = os.open(folder / "until", os.O_RDONLY | os.O_NONBLOCK)
    with started(run, within_sandbox) as processes, os.fdopen(line, "rb", buffering=0) as until:
        end = next(iter(processes.values())).end()
        assert (end.outcome, end.saved) == ("done", True)
        assert until.read(1) == b"w"
        assert until.read(1) == b"", "somebody has it open"


def test_a_script_that_fails_says_its_last_line(tmp_path):
    run = script_run(tmp_path, "raise RuntimeError('nothing works')")
    with started(run) as processes:
        end = next(iter(processes.values())).end()
    assert end.outcome == "failed"
    assert end.reason == "the script ended with code 1: RuntimeError: nothing works"
    assert end.culprit is None


def test_the_last_line_of_a_script_may_blame_another(tmp_path):
    run = script_run(tmp_path, "import sys; sys.exit('ravnest.errors.PeerError: node_9 failed: x')")
    with started(run) as processes:
        end = next(iter(processes.values())).end()
    assert end.culprit == "node_9"


TAKES_IT_WELL = """
import json, os, threading

pipe = os.fdopen(json.loads(os.environ["RAVNEST_REPORTS"])["descriptor"], "wb", buffering=0)
try:
    pipe.write(b'{"type": "report", "report": {"at": 1.0, "epoch": EPOCHS, "notes": ["waits"]}}\\n')
    threading.Event().wait(600)
except KeyboardInterrupt:
    open("package/trained.json", "w").write("{}")
"""


@pytest.mark.parametrize(("trained", "outcome", "counted"), [(1, "stopped", 0), (2, "done", 2)])
def test_a_script_that_is_stopped_and_ends_well_is_done_only_if_it_says_so(
    tmp_path, trained, outcome, counted
):
    """Half a training was taken for all of it."""
    run = script_run(tmp_path, TAKES_IT_WELL.replace("EPOCHS", str(trained)))
    with started(run) as processes:
        worker = next(iter(processes.values()))
        worker.wait_for(lambda line: isinstance(line, Report) and line.report.notes)
        worker.steer("stop")
        end = worker.end()
    assert (end.outcome, end.saved, end.epochs_done) == (outcome, True, counted), worker.log()


@pytest.mark.parametrize(
    "instead", ["os.mkfifo(mark)", "os.symlink('/dev/zero', mark)", "os.mkdir(mark)"]
)
def test_what_a_script_leaves_instead_of_a_result_is_none(tmp_path, instead):
    """Its worker waited for ever for somebody to write to the pipe."""
    run = script_run(tmp_path, f"import os; mark = 'package/trained.json'; {instead}")
    with started(run) as processes:
        end = next(iter(processes.values())).end()
    assert (end.outcome, end.saved) == ("done", False)


LEAVES_SOMEBODY_BEHIND = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "open('until').read()"])
print("goodbye", flush=True)
"""


def test_a_script_has_ended_though_a_process_that_it_started_goes_on(tmp_path, monkeypatch):
    """It holds what the script has printed to open, and was waited for."""
    monkeypatch.setattr(script, "GRACE_S", 0.1)
    monkeypatch.setattr(script, "_close_to_others", lambda: None)
    run = script_run(tmp_path, LEAVES_SOMEBODY_BEHIND)
    folder = next(iter(run.folders.values()))
    os.mkfifo(folder / "until")
    ends = queue.Queue()
    speech, steering = Speech(io.BytesIO()), Steering(io.BytesIO(), lambda: None)
    work = script.ScriptRun(read_order(folder), folder, speech, steering)
    other = os.open(folder / "until", os.O_RDWR)
    try:
        threading.Thread(target=lambda: ends.put(work.run()), daemon=True).start()
        assert ends.get(timeout=runs.WAIT_S).outcome == "done"
    finally:
        os.close(other)


class FullDisk(io.StringIO):
    def write(self, text):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_script_is_read_though_the_log_has_no_room(tmp_path, monkeypatch):
    monkeypatch.setattr(script, "_close_to_others", lambda: None)
    run = script_run(tmp_path, "print('much\\n' * 100_000); raise SystemExit('this is the end')")
    folder = next(iter(run.folders.values()))
    speech, steering = Speech(io.BytesIO()), Steering(io.BytesIO(), lambda: None)
    work = script.ScriptRun(read_order(folder), folder, speech, steering)
    ends = queue.Queue()
    with monkeypatch.context() as patched:
        patched.setattr(script.sys, "stderr", FullDisk())
        threading.Thread(target=lambda: ends.put(work.run()), daemon=True).start()
        assert "this is the end" in ends.get(timeout=runs.WAIT_S).reason


def test_a_script_can_be_stopped(tmp_path):
    waits = "import threading; print('waits', flush=True); threading.Event().wait(600)"
    run = script_run(tmp_path, waits)
    with started(run) as processes:
        worker = next(iter(processes.values()))
        worker.wait_for(runs.is_started)
        worker.steer("pause")
        worker.steer("stop")
        end = worker.end()
    assert (end.outcome, end.saved, end.epochs_done) == ("stopped", False, 0)
    assert "cannot be told to pause" in worker.log()
