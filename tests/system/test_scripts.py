"""A job that is a script runs where owners have agreed to that, in a sandbox, and nowhere else."""

import re
from pathlib import Path

import pytest
from cast import cast
from digits import DigitsNet, accuracy, digits

pytestmark = pytest.mark.needs("bwrap")

DOCUMENT = Path(__file__).parents[2] / "docs" / "data.md"
SANDBOX = """
import pathlib

try:
    pathlib.Path("/etc/ravnest-was-here").write_text("x")
    raise SystemExit("this is no sandbox")
except OSError:
    pass
"""


def script_of_the_documentation():
    *_, program = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.DOTALL | re.M)
    return program


def test_a_script_trains_where_it_is_allowed_and_nowhere_else(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SANDBOX + script_of_the_documentation())
    with cast(tmp_path) as made:
        made.join("careful", "--memory", "8")
        made.wait_for_pool(1)
        with made.session() as session:
            (images, labels), _ = digits()
            job = session.submit_script(
                script,
                DigitsNet(),
                (images[:32],),
                {"images": images, "labels": labels},
                name="a script",
                idle_gain=1e9,
            )
            waiting = made.wait(
                "a reason",
                lambda now: any("not running scripts of others" in j.reason for j in now.jobs),
            )
            assert waiting.jobs[0].state == "waiting"
            for name in ("open", "generous"):
                made.join(name, "--memory", "2", "--allow-scripts", "sandboxed")
            made.wait_for_job(job.id, "done")
            assert accuracy(job.result()) > 0.9
        assert "assigned" not in made.providers["careful"].log
