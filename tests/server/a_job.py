"""A small job with everything in it, and how its files get to a server."""

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from ravnest.api.jobs import InputSpec, JobSpec, LossSpec, Named, PlanningSpec, Recipe, TrainingSpec
from ravnest.api.limits import FileRef
from ravnest.data.writing import write_data
from ravnest.planning.handover import write_model
from ravnest.planning.study import study

ROWS, BATCH = 64, 8


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def make_job(folder: Path, **more: Any) -> tuple[JobSpec, dict[str, Path]]:
    """The job, and where each of its files is by hash."""
    torch.manual_seed(0)
    x = torch.randn(ROWS, 16)
    y = torch.randint(0, 3, (ROWS,))
    written = write_data({"x": x, "y": y}, folder / "d", split="train")
    validated = more.pop("validated", True)
    judged = write_data({"x": x[:16], "y": y[:16]}, folder / "v", split="validation")
    card = write_model(folder / "model", study(Net(), (x[:BATCH],)))
    names = ["card.json", *(entry.name for entry in card.files)]
    files = {ref(folder / "model" / name).sha256: folder / "model" / name for name in names}
    for one in (written, judged):
        files |= {file.sha256: path for file, path in one.files()}
    spec = JobSpec(
        name=more.pop("name", "a small job"),
        model=tuple(ref(folder / "model" / name) for name in names),
        train=written.spec,
        validation=judged.spec if validated else None,
        recipe=Recipe(
            inputs=(InputSpec(field="x"),),
            losses=(LossSpec(name="cross_entropy", target=InputSpec(field="y")),),
            optimizer=Named(name="sgd", params={"lr": 0.1}),
        ),
        training=TrainingSpec(epochs=more.pop("epochs", 2), batch_size=BATCH),
        planning=PlanningSpec(**more.pop("planning", {})),
        **more,
    )
    return spec, files


def ref(path: Path) -> FileRef:
    content = path.read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    return FileRef(path=path.name, sha256=sha256, size=len(content))


def upload(client: Any, files: dict[str, Path]) -> None:
    for sha256, path in files.items():
        if client.head(f"blobs/{sha256}").status_code == 404:
            answer = client.put(f"blobs/{sha256}", content=path.read_bytes())
            assert answer.status_code == 204, answer.text


def submit(client: Any, spec: JobSpec) -> Any:
    answer = client.post("jobs", content=msgspec.json.encode(spec), timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()
