"""`ravnest demo`: the whole way of a model, on one machine, in a minute.

Plan a small network for three unequal providers and cut it; start three processes that train it
together over loopback connections, each with its own stage only; score it through the pipeline;
fuse the stages, load the result into the original model, and score that.

Run as a program with RAVNEST_NODE set, this file is the script that all three providers run.
"""

import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ravnest.errors import PlanError, RunError
from ravnest.launch import launch, planned_nodes
from ravnest.operations.utils import clusterize
from ravnest.ports import free_ports
from ravnest.rundir import RunDir
from ravnest.utils import model_fusion, set_seed

EPOCHS = 5
BATCH = 64
SEED = 42
MACHINES = ({"ram": 8, "gflops": 100}, {"ram": 4, "gflops": 50}, {"ram": 2, "gflops": 25})
_SCORE = "score.txt"


class DigitsNet(nn.Module):
    """A small convolutional network for 8x8 images of handwritten digits."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(inplace=True),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.classifier(self.features(images))
        return scores


def run_demo(workdir: Path | None = None) -> int:
    """Run the demonstration; files go to `workdir` or to a temporary folder."""
    if workdir is not None:
        return _demo(workdir)
    with tempfile.TemporaryDirectory(prefix="ravnest-demo-") as folder:
        return _demo(Path(folder), note=" (temporary; keep it with --workdir DIR)")


def _demo(folder: Path, note: str = "") -> int:
    set_seed(SEED)
    model = DigitsNet()
    run = _write_pool(folder)
    print("1. Plan for three unequal providers, and cut\n", flush=True)
    clusterize(
        model, example_args=(torch.zeros(BATCH, 1, 8, 8),), node_data=run.root, optimizer="momentum"
    )

    print("\n2. Train: three processes, one stage each, connected by gRPC\n", flush=True)
    outcome = launch(
        [sys.executable, "-m", "ravnest.demo", str(EPOCHS)],
        planned_nodes(run),
        folder=folder,
        show=lambda name, line: print(f"   {name} | {line}", flush=True),
        environment={"RAVNEST_NODE_DATA": str(run.root.absolute())},
    )
    if outcome.failures:
        raise RunError("; ".join(outcome.lines()))

    print("\n3. Fuse the stages and load them into the original model\n")
    path = model_fusion(node_data=run.root, output=folder / "trained")
    model.load_state_dict(torch.load(path, weights_only=True), strict=True)
    split, fused = float((folder / _SCORE).read_text()), _accuracy(model)
    print(f"   {path}{note}")
    print(f"   accuracy through the three providers {split:.1%}, of the fused model {fused:.1%}")
    return 0 if abs(fused - split) < 0.01 else 1


def _write_pool(folder: Path) -> RunDir:
    """Three machines at free ports; a pool that somebody else wrote is not touched."""
    run = RunDir(folder / "node_data")
    mark = run.root / ".demo"
    if run.pool_file.exists() and not mark.exists():
        raise PlanError(f"{run.pool_file} is not the demo's own; choose another folder")
    run.root.mkdir(parents=True, exist_ok=True)
    mark.touch()
    ports = free_ports(len(MACHINES))
    pool = {
        str(number): {
            "IP": f"127.0.0.1:{port}",
            "benchmarks": {"bandwidth": 1000, **figures},
        }
        for number, (figures, port) in enumerate(zip(MACHINES, ports, strict=True))
    }
    run.pool_file.write_bytes(msgspec.json.format(msgspec.json.encode(pool), indent=2))
    return run


# ---- what every provider runs ----------------------------------------------------------------


def digits() -> tuple[DataLoader[Any], DataLoader[Any]]:
    """1,797 real images that ship with scikit-learn: nothing is downloaded."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    target = torch.tensor(labels)
    order = torch.randperm(len(target), generator=torch.Generator().manual_seed(0))
    pixels, target = pixels[order], target[order]
    generator = torch.Generator()
    generator.manual_seed(SEED)
    train = TensorDataset(pixels[:1500], target[:1500])
    test = TensorDataset(pixels[1500:], target[1500:])
    return (
        DataLoader(train, batch_size=BATCH, shuffle=True, generator=generator),
        DataLoader(test, batch_size=BATCH),
    )


def provide(epochs: int) -> None:
    """One provider; which one, the environment says."""
    from ravnest.callbacks import PrintProgress
    from ravnest.node import Node
    from ravnest.trainer import Trainer

    set_seed(SEED)
    train, test = digits()
    node = Node(
        optimizer=torch.optim.SGD,
        optimizer_params={"lr": 0.05, "momentum": 0.9},
        criterion=_criterion,
        labels=train,
        test_labels=test,
    )
    trainer = Trainer(
        node=node,
        train_loader=train,
        val_loader=test,
        epochs=epochs,
        save=True,
        callbacks=[PrintProgress(sys.stdout)],
    )
    trainer.train()
    score = trainer.evaluate()
    if score is not None:
        Path(_SCORE).write_text(str(score))


def _criterion(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, batch[1])


def _accuracy(model: Callable[[torch.Tensor], torch.Tensor]) -> float:
    right = total = 0
    assert isinstance(model, nn.Module)
    model.train(False)
    loader: Iterable[Any] = digits()[1]
    with torch.no_grad():
        for images, labels in loader:
            right += int((model(images).argmax(1) == labels).sum())
            total += len(labels)
    return right / total


if __name__ == "__main__":
    provide(int(sys.argv[1]))
