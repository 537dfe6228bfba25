"""examples/digits, with the commands of its README."""

import re
import subprocess
import sys

from ravnest.planning.dryrun import plan_script


def test_plan_run_and_score(example, capsys):
    """Three processes; most digits are right, and as many in plain PyTorch as through them."""
    digits = example("digits")
    tried = plan_script(digits.script, ["--quick"])
    assert [len(cluster.stages) for cluster in tried.clusters] == [3]
    assert not (digits.folder / "node_data" / "plan.json").exists()
    digits.plan("--quick")
    done = subprocess.run(
        [sys.executable, "-m", "ravnest", "run", digits.script, "--nodes", "3", "--quick"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    (split,) = re.findall(r"^\w+ \| accuracy through the providers: (.*)", done.stdout, re.M)
    assert float(split.rstrip("%")) > 60  # chance is 10
    assert "epoch 2/2 batch 50 loss" in done.stdout
    capsys.readouterr()
    digits.call("--quick", "--score")
    assert f"in plain PyTorch: {split}" in capsys.readouterr().out
    digits.fused("--quick")
