"""Real processes on loopback: the same weights as one machine, clean ends, clear failures."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import zygote

from ravnest import model_fusion
from ravnest.launch import launch, planned_nodes

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import jobs  # noqa: E402
from plans import plan  # noqa: E402


def command(job):
    return [zygote.python(), str(HERE / "provider.py"), json.dumps(job)]


def start(folder, run, job):
    lines = []
    outcome = launch(
        command(job),
        planned_nodes(run),
        folder=folder,
        environment={"OMP_NUM_THREADS": "1"},
        show=lambda name, line: lines.append(f"{name}: {line}"),
    )
    return outcome, "\n".join(lines)


JOBS = {
    "cnn on 1": (1, {"model": "cnn", "optimizer": "sgd"}),
    "cnn on 2, plain TCP": (2, {"model": "cnn", "optimizer": "sgd", "transport": "tcp"}),
    "cnn on 3": (3, {"model": "cnn", "optimizer": "sgd", "update_frequency": 2}),
    "a trained head on 3": (3, {"model": "frozen", "optimizer": "adamw", "update_frequency": 2}),
    "transformer on 2": (2, {"model": "transformer", "optimizer": "sgd", "extras": True}),
    "transformer on 5": (
        5,
        {
            "model": "transformer",
            "optimizer": "adamw",
            "extras": True,
            "update_frequency": 3,
            "micro_batches": 4,
        },
    ),
    "unet on 3": (3, {"model": "unet", "optimizer": "adamw", "extras": True}),
}


@pytest.mark.parametrize(("providers", "job"), JOBS.values(), ids=list(JOBS))
def test_a_synchronous_run_gives_the_weights_of_one_machine(tmp_path, monkeypatch, providers, job):
    """20 steps, a smaller last batch; all exit with 0 by themselves and leave no thread behind."""
    monkeypatch.chdir(tmp_path)
    run = plan(tmp_path, job["model"], providers)
    outcome, printed = start(tmp_path, run, job)
    assert set(outcome.codes.values()) == {0}, printed
    assert len(outcome.codes) == providers
    assert printed.count(": predicted (8, ") == 1
    assert printed.count("threads 1") == providers
    state = torch.load(model_fusion(), weights_only=True)
    reference = jobs.train_alone(job)
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=1e-5, atol=1e-5)
    updates = -(-jobs.STEPS // job.get("update_frequency", 1))
    assert len((tmp_path / "losses.txt").read_text().splitlines()) == updates


def test_a_neighbour_that_comes_late_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = plan(tmp_path, "cnn", 2)
    outcome, printed = start(
        tmp_path, run, {"model": "cnn", "optimizer": "sgd", "late": "node_1", "schedule": "async"}
    )
    assert set(outcome.codes.values()) == {0}, printed


def test_a_killed_provider_is_named_by_all_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = plan(tmp_path, "cnn", 3)
    job = {"model": "cnn", "optimizer": "sgd", "kill": "node_1", "epochs": 200}
    outcome, printed = start(tmp_path, run, job)
    assert outcome.codes["node_1"] != 0
    for name in ("node_0", "node_2"):
        assert outcome.codes[name] == 1, printed
        blamed = [line for line in printed.splitlines() if line.startswith(f"{name}:")]
        assert any("PeerError" in line and "node_1" in line for line in blamed), printed


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C works differently there")
def test_ctrl_c_ends_everybody(tmp_path, monkeypatch):
    """As a terminal does it: the launcher and all providers get the signal."""
    monkeypatch.chdir(tmp_path)
    plan(tmp_path, "cnn", 3)
    job = {"model": "cnn", "optimizer": "sgd", "epochs": 500, "kill": "nobody"}
    runner = subprocess.Popen(
        [sys.executable, "-m", "ravnest", "run", *command(job)[1:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # Whoever starts the tests in the background has made them deaf to the signal.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 60
    while not Path("at_work").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(runner.pid, signal.SIGINT)
    printed, _ = runner.communicate(timeout=120)
    assert runner.returncode == 130, printed
    assert "KeyboardInterrupt" in printed
