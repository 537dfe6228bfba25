"""`ravnest demo`: the first thing a newcomer runs."""

import re

import pytest
import torch

from ravnest.demo import DigitsNet, run_demo
from ravnest.errors import PlanError


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Three of the five epochs; and set_seed, which the demo calls, changes a variable for good."""
    monkeypatch.setattr("ravnest.demo.EPOCHS", 3)
    monkeypatch.setenv("PYTHONHASHSEED", "0")


def test_three_processes_train_what_is_fused(tmp_path, capsys):
    """Exit code 0, both accuracies printed and good, and a fused model that loads."""
    assert run_demo(tmp_path) == 0
    printed = capsys.readouterr().out
    pattern = r"accuracy through the three providers ([\d.]+)%, of the fused model ([\d.]+)%"
    split, fused = (float(figure) for figure in re.search(pattern, printed).groups())
    assert fused > 80
    assert abs(fused - split) < 1
    state = torch.load(tmp_path / "trained" / "trained_state_dict.pt", weights_only=True)
    DigitsNet().load_state_dict(state, strict=True)
    assert "(temporary" not in printed
    for step in ("1. Plan for three unequal providers", "2. Train: three processes", "3. Fuse"):
        assert step in printed
    assert "node_0 | epoch 3/3 batch 72 loss" in printed
    assert len((tmp_path / "losses.txt").read_text().splitlines()) == 72


def test_somebody_elses_pool_is_not_overwritten(tmp_path):
    (tmp_path / "node_data").mkdir()
    pool = tmp_path / "node_data" / "node_configs.json"
    pool.write_text("{}")
    with pytest.raises(PlanError, match="not the demo's own"):
        run_demo(tmp_path)
    assert pool.read_text() == "{}"


def test_without_a_folder_nothing_is_left_behind(tmp_path, monkeypatch, capsys):
    """The files go to a temporary folder, not to wherever the user happens to be."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "temporary").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    run_demo()
    printed = capsys.readouterr().out
    assert "epoch 3" in printed
    assert "trained_state_dict.pt (temporary; keep it with --workdir DIR)" in printed
    assert not list((tmp_path / "temporary").iterdir())
    assert not list((tmp_path / "here").iterdir())
