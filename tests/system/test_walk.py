"""What README tells a newcomer to type, typed: a server, two machines, a file from the examples."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from cast import Cast, cast

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def two(tmp_path):
    with cast(tmp_path) as made:
        for name in ("ada", "grace"):
            made.join(name)
        made.wait_for_pool(2)
        yield made


def test_the_first_example_learns_as_its_readme_says(two: Cast):
    command = [sys.executable, "-m", "ravnest", "submit", str(EXAMPLES / "spirals" / "job.py")]
    command += ["--server", two.server.url, "--token", two.server.operator_token, "--yes"]
    command += ["--output", str(two.folder / "trained")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    said = run.stdout + run.stderr
    assert run.returncode == 0, said + two.story(None)
    found = re.search(r"score: accuracy ([0-9.]+)", said)
    assert found is not None, said
    assert float(found[1]) > 0.95, said
    assert (two.folder / "trained" / "trained_state_dict.pt").exists()
    # Agents of one user on one machine talk to each other, not through the server.
    assert two.wait("the end", lambda now: True).server.relayed_bytes == 0
