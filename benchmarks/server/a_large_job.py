"""A job that a thousand providers can take part in: a small deep network, many rows."""

import hashlib
from pathlib import Path

import msgspec
import torch
from torch import nn

from ravnest.api.jobs import InputSpec, JobSpec, LossSpec, Named, PlanningSpec, Recipe, TrainingSpec
from ravnest.api.limits import FileRef
from ravnest.data.writing import write_data
from ravnest.planning.handover import write_model
from ravnest.planning.study import study


def make_large_job(folder: Path, providers: int) -> tuple[bytes, dict[str, Path]]:
    """The job as JSON, and its files by hash."""
    torch.manual_seed(0)
    rows = 16 * providers
    x, y = torch.randn(rows, 16), torch.randint(0, 3, (rows,))
    layers = [layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(16, 3))
    written = write_data({"x": x, "y": y}, folder / "data", split="train")
    card = write_model(folder / "model", study(model, (x[:8],)))
    names = ["card.json", *(entry.name for entry in card.files)]
    paths = [folder / "model" / name for name in names]
    refs = [_ref(path) for path in paths]
    files = {ref.sha256: path for ref, path in zip(refs, paths, strict=True)}
    files |= {file.sha256: path for file, path in written.files()}
    spec = JobSpec(
        name="a large job",
        model=tuple(refs),
        train=written.spec,
        recipe=Recipe(
            inputs=(InputSpec(field="x"),),
            losses=(LossSpec(name="cross_entropy", target=InputSpec(field="y")),),
            optimizer=Named(name="sgd", params={"lr": 0.1}),
        ),
        training=TrainingSpec(epochs=1000, batch_size=8),
        planning=PlanningSpec(idle_gain=1e9),
    )
    return msgspec.json.encode(spec), files


def _ref(path: Path) -> FileRef:
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return FileRef(path=path.name, sha256=digest, size=len(content))
