"""What callbacks are told, and what the ready-made ones write."""

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ravnest.callbacks import (
    CallbackList,
    CsvLog,
    JsonLinesLog,
    PrintProgress,
    Progress,
    TensorBoardLog,
)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def life_of(callback, epochs=2, steps=3, **more):
    """A short training as the Trainer tells it."""
    callbacks = CallbackList([callback])
    progress = Progress(epochs=epochs, batches_per_epoch=steps, **more)
    callbacks.on_train_begin(progress)
    for progress.epoch in range(epochs):
        callbacks.on_epoch_begin(progress)
        for _ in range(steps):
            progress.step += 1
            progress.samples += 8
            progress.loss = 1 / progress.step
            callbacks.on_step_end(progress)
        progress.stages = {"busy/0": 0.5, "busy/1": 0.25}
        callbacks.on_epoch_end(progress)
        progress.metrics = {"accuracy": 0.5}
        callbacks.on_evaluate(progress)
    callbacks.on_train_end(progress)


def test_one_plain_line_per_epoch_where_there_is_no_terminal():
    file = io.StringIO()
    life_of(PrintProgress(file))
    lines = file.getvalue().splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("epoch 1/2 batch 3 loss 0.3333 ")
    assert lines[0].endswith("stages busy 50% 25%")
    assert lines[1] == "validation: accuracy 0.5000"
    assert "\x1b" not in file.getvalue()


def test_a_terminal_line_is_rewritten():
    file = Terminal()
    life_of(PrintProgress(file, every_s=0.0))
    assert file.getvalue().count("\r\x1b[K") == 6 + 2
    assert " left" in file.getvalue()


def test_json_lines_hold_every_step_and_validation(tmp_path):
    path = tmp_path / "logs" / "run.jsonl"
    life_of(JsonLinesLog(path))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["train/loss"] for row in rows if "train/loss" in row] == pytest.approx(
        [1 / step for step in range(1, 7)]
    )
    assert [row["step"] for row in rows if "eval/accuracy" in row] == [3, 6]
    assert [row["busy/1"] for row in rows if "busy/1" in row] == [0.25, 0.25]


def test_csv_goes_on_where_an_earlier_run_ended(tmp_path):
    path = tmp_path / "run.csv"
    life_of(CsvLog(path))
    life_of(CsvLog(path))
    lines = path.read_text().splitlines()
    assert lines[0] == "step,epoch,samples,loss,samples_per_second"
    assert len(lines) == 1 + 12
    assert lines[1].startswith("1,0,8,1.0,")


def test_every_cluster_writes_files_of_its_own(tmp_path):
    for cluster in range(2):
        life_of(CsvLog(tmp_path / "run.csv"), cluster=cluster, clusters=2)
        life_of(JsonLinesLog(tmp_path / "run.jsonl"), cluster=cluster, clusters=2)
    names = {path.name: len(path.read_text().splitlines()) for path in tmp_path.iterdir()}
    assert names == {
        "run.csv": 7,
        "run_cluster_1.csv": 7,
        "run.jsonl": 10,
        "run_cluster_1.jsonl": 10,
    }


@pytest.mark.parametrize(
    ("clusters", "folder"), [(1, "runs"), (2, "runs/cluster_1")], ids=["one", "several"]
)
def test_tensorboard_gets_a_folder_for_every_cluster(monkeypatch, clusters, folder):
    """Without TensorBoard, which is large: what it would be told."""
    said = []

    class SummaryWriter:
        def __init__(self, folder):
            said.append(("open", Path(folder)))

        def add_scalar(self, name, value, step):
            said.append((name, step))

        def close(self):
            said.append(("close",))

    monkeypatch.setitem(
        sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=SummaryWriter)
    )
    life_of(TensorBoardLog("runs"), epochs=1, cluster=clusters - 1, clusters=clusters)
    assert said[0] == ("open", Path(folder))
    assert ("train/loss", 3) in said
    assert ("eval/accuracy", 3) in said
    assert said[-1] == ("close",)


def test_lines_say_whose_they_are_where_there_are_several_clusters():
    file = io.StringIO()
    life_of(PrintProgress(file), cluster=1, clusters=2)
    lines = file.getvalue().splitlines()
    assert lines[0].startswith("cluster 1: epoch 1/2 batch 3 ")
    assert lines[1] == "cluster 1: validation: accuracy 0.5000"
