"""What the system holds a worker to, whether it is in a sandbox or not."""

import resource
from pathlib import Path

import pytest
import runs
import torch
from msgspec.structs import replace
from runs import TRAINING, plan_run, prepare, started, written
from torch import nn

from ravnest.api.limits import FileRef
from ravnest.api.work import Report
from ravnest.errors import PackageError
from ravnest.stage.package import load_package
from ravnest.worker import training


def limited(run, most):
    for node, folder in run.folders.items():
        runs.write_order(folder, replace(run.orders[node], memory_bytes=most))


def test_a_worker_has_its_limit_and_starts_no_program(tmp_path):
    most, data = 2 << 30, written(tmp_path / "data")
    run = plan_run(tmp_path / "run")
    prepare(run, data, training=replace(TRAINING, epochs=10_000))
    limited(run, most)
    # Not through the zygote: the process that is looked at has to be the worker itself.
    with started(run, lambda command, folder: command) as processes:
        for process in processes.values():
            process.wait_for(lambda said: isinstance(said, Report) and said.report.updates > 0)
            proc = Path(f"/proc/{process.process.pid}")
            status = dict(line.split(":\t", 1) for line in (proc / "status").open())
            soft, hard = resource.prlimit(process.process.pid, resource.RLIMIT_DATA)
            assert most <= soft == hard < most + (32 << 20)
            assert (proc / "oom_score_adj").read_text() == "1000\n"
            assert (int(status["Seccomp_filters"]), int(status["NoNewPrivs"])) == (1, 1)


class Large(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 2_000_000)
        self.last = nn.Linear(2_000_000, 4)

    def forward(self, features):
        return self.last(torch.relu(self.first(features)))


def test_a_worker_that_needs_more_memory_than_it_may_have_says_so(tmp_path):
    data = written(tmp_path / "data")
    run = plan_run(tmp_path / "run", Large(), providers=1)
    prepare(run, data)
    limited(run, 600 << 20)
    with started(run) as processes:
        (process,) = processes.values()
        end = process.end()
    assert (end.outcome, end.out_of_memory) == ("failed", True), end


def test_a_package_that_asks_for_more_than_its_assignment_says_is_refused(tmp_path):
    """Its graph could have 64 MB, and its tensors four terabytes, whatever was announced."""
    run = plan_run(tmp_path / "run", providers=1)
    prepare(run, written(tmp_path / "data"))
    (order,) = run.orders.values()
    listed = FileRef(path="package/graph.json", sha256="0" * 64, size=100)
    work = replace(order.assignment, files=(listed,))
    for changed, what in (
        (replace(order, assignment=work), "100 bytes"),
        (replace(order, memory_bytes=1 << 9), "bytes of tensors"),
    ):
        limits = training.package_limits(changed)
        with pytest.raises(PackageError, match=what):
            load_package(run.folders["node_0"] / "package", limits)
