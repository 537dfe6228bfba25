"""The documented walk, step by step, as somebody takes it who has read nothing else: a pool written
by hand, a plan, roles read off its log, one script with another name for everybody, results."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import torch

from ravnest.ports import free_ports

EPOCHS, ROWS, BATCH = 4, 64, 16

MODEL = f"""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class DL_Model(nn.Module):
    def __init__(self):
        super(DL_Model, self).__init__()
        self.conv2d_1 = nn.Conv2d(1, 8, 3, padding=1)
        self.bn_1 = nn.BatchNorm2d(8)
        self.conv2d_2 = nn.Conv2d(8, 8, 3, padding=1)
        self.dropout = nn.Dropout(0.1)
        self.dense_1 = nn.Linear(128, 32)
        self.bn_3 = nn.BatchNorm1d(32)
        self.dense_2 = nn.Linear(32, 4)

    def forward(self, x):
        x = torch.max_pool2d(torch.relu(self.bn_1(self.conv2d_1(x))), 2)
        x = self.dropout(torch.relu(self.conv2d_2(x)))
        x = self.bn_3(torch.relu(self.dense_1(torch.flatten(x, 1))))
        return torch.softmax(self.dense_2(x), 1)


def preprocess_dataset():
    drawn = torch.Generator().manual_seed(1)
    classes = torch.arange({ROWS}) % 4
    images = torch.randn({ROWS}, 1, 8, 8, generator=drawn) * 0.3
    images[torch.arange({ROWS}), 0, classes * 2] += 2.0
    data = TensorDataset(images, nn.functional.one_hot(classes, 4).float())
    generator = torch.Generator().manual_seed(42)
    train_loader = DataLoader(data, batch_size={BATCH}, shuffle=True, generator=generator)
    return train_loader, DataLoader(data, batch_size={BATCH})
"""

PLAN = """
import torch
from model import DL_Model
from ravnest import clusterize, set_seed

set_seed(42)

model = DL_Model()
example_args = torch.rand((16, 1, 8, 8))

clusterize(model=model, example_args=(example_args,))
"""

PROVIDER = f"""
import torch
from model import preprocess_dataset
from ravnest import Node, Trainer, set_seed

set_seed(42)


def loss_fn(outputs, batch):
    return torch.nn.functional.mse_loss(outputs, batch[1])


if __name__ == '__main__':

    train_loader, val_loader = preprocess_dataset()

    node = Node(name='node_<id>',
                optimizer=torch.optim.Adam,
                optimizer_params={{'lr': 0.01}},
                criterion=loss_fn,
                labels=train_loader,
                test_labels=val_loader,
                device=torch.device('cpu'))

    trainer = Trainer(node=node,
                      train_loader=train_loader,
                      val_loader=val_loader,
                      val_freq=2,
                      epochs={EPOCHS},
                      batch_size={BATCH},
                      save=True)

    trainer.train()
    accuracy = trainer.evaluate()
    print('accuracy', accuracy)
"""

FUSION = """
import torch
from model import DL_Model, preprocess_dataset
from ravnest.utils import model_fusion

model_fusion(cluster_id=0)
model = DL_Model()
state = torch.load('trained/trained_state_dict.pt', weights_only=True)
model.load_state_dict(state, strict=True)
model.eval()
_, loader = preprocess_dataset()
right = sum((model(x).argmax(1) == y.argmax(1)).sum().item() for x, y in loader)
print('accuracy', right / len(loader.dataset))
"""

BLOCK = re.compile(
    r"Node\((\d+), Cluster\((\d+)\)\) *\n"
    r"self\.IP\((\S+)\) *\n"
    r"Ring IDs\((\{.*\})\) *\n"
    r"Address2Param\((\{.*\})\)"
)


def pool(addresses):
    nodes = ",\n".join(
        f'        "{k}":{{\n            "IP":"{address}",\n            "benchmarks":{{\n'
        f'                "ram":8,\n                "bandwidth":{20 if k == 0 else 10}\n'
        "            }\n        }"
        for k, address in enumerate(addresses)
    )
    return f"{{\n{nodes}\n        // Add as many nodes as you need here\n}}\n"


def start(folder, name):
    return subprocess.Popen(
        [sys.executable, name],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finish(process):
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0, printed
    return printed


def numbers(path):
    return [float(line) for line in path.read_text().splitlines()]


def test_the_documented_walk(tmp_path):
    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
    (tmp_path / "node_data").mkdir()
    (tmp_path / "node_data" / "node_configs.json").write_text(pool(addresses))
    for name, text in (("model", MODEL), ("plan", PLAN), ("fusion", FUSION)):
        (tmp_path / f"{name}.py").write_text(text)

    log = finish(start(tmp_path, "plan.py"))
    blocks = BLOCK.findall(log)
    assert all(address == addresses[int(number)] for number, _, address, _, _ in blocks), log
    assert {cluster for _, cluster, *_ in blocks} == {"0"}
    assert all("'" in rings for _, _, _, rings, _ in blocks), log
    ids = [int(number) for number, *_ in blocks]
    roles = ["Root", *["Stem"] * (len(ids) - 2), "Leaf"]  # by their order in the log
    nodes = tmp_path / "node_data" / "nodes"
    for number, role in zip(ids, roles, strict=True):
        assert json.loads((nodes / f"node_{number}.json").read_text())["node_type"] == role

    for number in ids:
        script = PROVIDER.replace("<id>", str(number))
        (tmp_path / f"provider_{number}.py").write_text(script)
    running = [start(tmp_path, f"provider_{number}.py") for number in ids]
    printed = [finish(process) for process in running]

    losses = numbers(tmp_path / "losses.txt")
    assert len(losses) == EPOCHS * ROWS // BATCH
    assert sum(losses[-4:]) < 0.5 * sum(losses[:4])
    accuracies = numbers(tmp_path / "val_accuracies.txt")
    assert len(accuracies) == EPOCHS // 2 + 1
    assert accuracies[-1] > 0.8
    told = sorted(line for text in printed for line in re.findall(r"^accuracy .*$", text, re.M))
    assert told == sorted([f"accuracy {accuracies[-1]}"] + ["accuracy None"] * (len(ids) - 1))

    fused = finish(start(tmp_path, "fusion.py"))
    assert f"accuracy {accuracies[-1]}" in fused
    assert Path(tmp_path / "trained" / "trained_state_dict.pt").exists()
    state = torch.load(tmp_path / "trained" / "trained_state_dict.pt", weights_only=True)
    assert {"conv2d_1.weight", "bn_3.running_mean", "dense_2.bias"} <= state.keys()
