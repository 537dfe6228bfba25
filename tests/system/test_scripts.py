"""A job that is a script runs where owners have agreed to that, in a sandbox, and nowhere else."""

import textwrap

import pytest
from cast import cast
from digits import DigitsNet, accuracy, digits

pytestmark = pytest.mark.needs("bwrap")

SCRIPT = """
    import os
    import pathlib

    import numpy as np
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    from ravnest import Node, Trainer, set_seed
    from ravnest.data.own import own_part

    try:
        pathlib.Path("/etc/ravnest-was-here").write_text("x")
        raise SystemExit("this is no sandbox")
    except OSError:
        pass
    set_seed(7)
    part = own_part("train")
    rows = np.arange(part.rows)
    data = TensorDataset(part.read("images", rows), part.read("labels", rows))

    def loader():
        return DataLoader(data, batch_size=32)

    node = Node(
        optimizer=torch.optim.AdamW,
        optimizer_params={"lr": 2e-3},
        criterion=lambda outputs, batch: nn.functional.cross_entropy(outputs, batch[1]),
        labels=loader(),
        shard_data=False,
    )
    Trainer(node=node, train_loader=loader(), epochs=4, save=True).train()
"""


def test_a_script_trains_where_it_is_allowed_and_nowhere_else(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
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
