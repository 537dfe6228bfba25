"""A job, from the model in a script to the trained one: real server, providers and training."""

import os
import signal
import subprocess
import sys

import pytest
import torch
from servers import running_server
from torch import nn

from ravnest import Session
from ravnest.cli import main

PATIENCE_S = 120.0
PROGRAM = """
import torch
from torch import nn

def job():
    torch.manual_seed(1)
    points = torch.randn(640, 8)
    return {
        "model": nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.Linear(32, 2)),
        "example_args": (points[:16],),
        "data": (points, (points.sum(1) > 0).long()),
        "validation": 0.25,
        "optimizer_params": {"lr": 0.01},
        "epochs": 3,
        "batch_size": 16,
        "idle_gain": 1e9,
    }
"""


@pytest.fixture(autouse=True)
def _project(tmp_path, monkeypatch, home):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def server(tmp_path):
    with running_server(tmp_path / "server") as running:
        yield running


@pytest.fixture
def providers(server, tmp_path):
    """Two machines that have joined and wait for work."""
    token = server.token("provider")
    own = {**os.environ, "OMP_NUM_THREADS": "1"}
    joined = []
    for name in ("ada", "grace"):
        command = [sys.executable, "-m", "ravnest", "join", server.url, "--token", token]
        command += ["--name", name, "--home", str(tmp_path / name), "--threads", "1"]
        command += ["--listen", "127.0.0.1:0", "--memory", "2"]
        log = (tmp_path / f"{name}.log").open("wb")
        joined.append(subprocess.Popen(command, env=own, stdout=log, stderr=subprocess.STDOUT))
        log.close()
    try:
        with Session(server.url, server.token("viewer")) as session:
            for now in session.watch(PATIENCE_S):
                if sum(one.state == "idle" and one.measured for one in now.providers) == 2:
                    break
            else:
                raise TimeoutError("the two have not joined")
        yield joined
    finally:
        for process in joined:
            process.send_signal(signal.SIGINT)
        for process in joined:
            process.wait(PATIENCE_S)


def test_one_command_has_a_model_trained_by_two_machines(server, providers, tmp_path, capsys):
    (tmp_path / "job.py").write_text(PROGRAM)
    token = server.token("requester")
    code = main(["submit", "job.py", "--yes", "--server", server.url, "--token", token])
    shown = capsys.readouterr()
    assert code == 0, shown
    assert "Verdict: " in shown.out
    state = torch.load(tmp_path / "trained" / "trained_state_dict.pt", weights_only=True)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.Linear(32, 2))
    model.load_state_dict(state, strict=True)
    points = torch.randn(500, 8, generator=torch.Generator().manual_seed(9))
    right = (model(points).argmax(1) == (points.sum(1) > 0)).float().mean()
    assert right > 0.9
    with Session() as session:
        job = session.job()
        assert job.state == "done"
        assert job.metrics["accuracy"] > 0.9
        assert any("planned" in event.text for event in job.events())
        assert "train/loss@0" in job.series().points
        job.delete()
        assert session.jobs() == []
