"""Benchmarks that train look into stages: ten steps show that they still find what they need.

Each has a process of its own, for their modules have names such as `text` and `report`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
STALENESS = """
import entrants, json, learning
entrants.MOST_STEPS.update(text=10, digits=10)
who = entrants.Contestant(stages=2)
print(json.dumps(learning.train(entrants.Run(who, 6e-3, 0))))
"""
CONVERGENCE = """
import contestants, json, training
contestants._MOST_STEPS[4] = 10
who = contestants.Contestant(clusters=2, stages=2)
print(json.dumps(training.train(contestants.Run(who, 2e-3, 0))))
"""


@pytest.mark.parametrize(
    ("name", "script"), [("staleness", STALENESS), ("convergence", CONVERGENCE)]
)
def test_ten_steps(name, script):
    path = os.pathsep.join([str(BENCHMARKS / name), str(BENCHMARKS), *sys.path])
    run = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr
    curve = json.loads(run.stdout)
    assert curve["steps"] == [0, 10]
    assert curve["losses"][1] < curve["losses"][0]
