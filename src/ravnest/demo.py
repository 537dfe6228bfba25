"""`ravnest demo`: the whole way of a model, on one machine, in a minute.

Plan a small network for three unequal providers, cut it, run the stages as separate modules with
real data, train, fuse the stages, load the result into the original model, and compare with the
same network trained whole.
"""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import torch
from torch import nn

from ravnest.errors import PlanError
from ravnest.operations.utils import clusterize
from ravnest.plan import Plan
from ravnest.rundir import RunDir
from ravnest.stage.local import LocalPipeline
from ravnest.stage.package import load_package, save_trained
from ravnest.utils import model_fusion, set_seed

EPOCHS = 5
BATCH = 64
POOL = {
    "0": {"IP": "127.0.0.1:8080", "benchmarks": {"ram": 8, "bandwidth": 1000, "gflops": 100}},
    "1": {"IP": "127.0.0.1:8081", "benchmarks": {"ram": 4, "bandwidth": 1000, "gflops": 50}},
    "2": {"IP": "127.0.0.1:8082", "benchmarks": {"ram": 2, "bandwidth": 1000, "gflops": 25}},
}


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
        return _demo(workdir, kept=True)
    with tempfile.TemporaryDirectory(prefix="ravnest-demo-") as folder:
        return _demo(Path(folder), kept=False)


def _demo(folder: Path, *, kept: bool) -> int:
    train, test = _digits()
    set_seed(42)
    model = DigitsNet()
    whole = DigitsNet()
    whole.load_state_dict(model.state_dict())

    run = RunDir(folder / "node_data")
    run.root.mkdir(parents=True, exist_ok=True)
    pool = msgspec.json.format(msgspec.json.encode(POOL), indent=2)
    if run.pool_file.exists() and run.pool_file.read_bytes() != pool:
        raise PlanError(f"{run.pool_file} is not the demo's own; choose another folder")
    run.pool_file.write_bytes(pool)
    print("1. Plan for three unequal providers, and cut\n")
    plan = clusterize(
        model, example_args=(train[0][:BATCH],), node_data=run.root, optimizer="momentum"
    )

    print(
        "\n2. Train the stages, each with its own weights and optimizer, beside the whole model\n"
    )
    difference = _train_side_by_side(plan, run, whole, train)

    print("\n3. Fuse the stages and load them into the original model\n")
    path = model_fusion(node_data=run.root, output=folder / "trained")
    model.load_state_dict(torch.load(path, weights_only=True), strict=True)
    fused, reference = _accuracy(model, test), _accuracy(whole, test)
    print(f"   {path}" + ("" if kept else " (temporary; keep it with --workdir DIR)"))
    print(f"   accuracy of the fused model {fused:.1%}, of the model trained whole {reference:.1%}")
    print(f"   largest difference between their losses {difference:.1e}")
    return 0 if abs(fused - reference) < 0.01 else 1


Data = tuple[torch.Tensor, torch.Tensor]


def _digits() -> tuple[Data, Data]:
    """1,797 real images that ship with scikit-learn: nothing is downloaded."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    target = torch.tensor(labels)
    order = torch.randperm(len(target), generator=torch.Generator().manual_seed(0))
    pixels, target = pixels[order], target[order]
    return (pixels[:1500], target[:1500]), (pixels[1500:], target[1500:])


def _batches(data: Data, seed: int) -> Iterator[Data]:
    order = torch.randperm(len(data[1]), generator=torch.Generator().manual_seed(seed))
    for rows in order.split(BATCH):
        yield data[0][rows], data[1][rows]


def _train_side_by_side(plan: Plan, run: RunDir, whole: nn.Module, data: Data) -> float:
    cluster = plan.clusters[0]
    packages = [
        load_package(run.package_dir(cluster.id, stage.provider.address))
        for stage in cluster.stages
    ]
    pipeline = LocalPipeline([package.module() for package in packages])
    optimizers = [_optimizer(stage) for stage in pipeline.stages]
    reference = _optimizer(whole)
    pipeline.train()
    whole.train()
    worst = 0.0
    for epoch in range(EPOCHS):
        for images, labels in _batches(data, epoch):
            for optimizer in (reference, *optimizers):
                optimizer.zero_grad()
            expected = nn.functional.cross_entropy(whole(images), labels)
            expected.backward()
            criterion = partial(nn.functional.cross_entropy, target=labels)
            loss, _ = pipeline.step(((images,), {}), criterion)
            for optimizer in (reference, *optimizers):
                optimizer.step()
            worst = max(worst, abs(float(loss - expected.detach())))
        figures = f"in stages {float(loss):.4f}, whole {float(expected.detach()):.4f}"
        print(f"   epoch {epoch + 1}: loss {figures}")
    for package, stage in zip(packages, pipeline.stages, strict=True):
        save_trained(package, stage.tensors())
    return worst


def _optimizer(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)


def _accuracy(model: nn.Module, data: Data) -> float:
    model.train(False)
    with torch.no_grad():
        return float((model(data[0]).argmax(1) == data[1]).float().mean())
