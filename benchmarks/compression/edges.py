"""What do codecs between the stages of a pipeline save, and what do they cost in loss?

Four stages, real ones on a virtual clock. Everything but the codec is equal: weights at the start,
order of the data, order of events. One seed makes one set of weights at the start.
"""

import itertools
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(BENCHMARKS / "convergence"), str(BENCHMARKS / "staleness")]

import chargpt  # noqa: E402
import digits  # noqa: E402
import text  # noqa: E402
from virtual import VirtualPipeline  # noqa: E402

from ravnest.provider.assembly import StageSettings  # noqa: E402
from ravnest.provider.compression import Compression, Packing  # noqa: E402
from ravnest.provider.compute.optimizers import optimizer_named  # noqa: E402
from ravnest.provider.compute.updating import UpdateSettings  # noqa: E402
from ravnest.provider.leaf import LeafSettings  # noqa: E402
from ravnest.wire.codecs import codec_named  # noqa: E402

STAGES = 4
STEPS = 200
PARTS = 4
EPOCHS = 4
CODECS = ("none", "fp16", "bf16", "int8", "int4s", "int4")
SPLITS = (
    ("int4s", "none"),
    ("none", "int4s"),
    ("int4", "none"),
    ("none", "int4"),
    ("int4", "int4s"),
    ("int8", "int4s"),
)
"""Activations in one, gradients in another."""
Outcome = dict[str, Any]


@dataclass(frozen=True)
class Edge:
    model: str
    forward: str
    backward: str
    seed: int

    @property
    def codec(self) -> str:
        both = self.forward == self.backward
        return self.forward if both else f"{self.forward} / {self.backward}"

    @property
    def file(self) -> str:
        return f"edge_{self.model}_{self.forward}_{self.backward}_{self.seed}.json"

    @property
    def cost(self) -> float:
        return 300.0 if self.model == "gpt" else 30.0


def jobs(seeds: int, digit_seeds: int, *, splits: bool) -> list[Edge]:
    pairs = [*((codec, codec) for codec in CODECS), *(SPLITS if splits else ())]
    found = [Edge("gpt", *pair, seed) for pair in pairs for seed in range(seeds)]
    return found + [Edge("cnn", *pair, seed) for pair in pairs for seed in range(digit_seeds)]


def seed_noise(seed: int) -> None:
    """What is rounded at random is rounded the same way every time."""
    noise: Any = codec_named("int4s")
    noise._noise._generators[torch.device("cpu")] = torch.Generator().manual_seed(seed)


def declining(lr: float, steps: int) -> UpdateSettings:
    """AdamW with a rate that falls to nothing, so that losses at the end have little noise."""
    return UpdateSettings(
        optimizer=optimizer_named("adamw"),
        optimizer_params={"lr": lr},
        lr_scheduler=torch.optim.lr_scheduler.CosineAnnealingLR,
        lr_scheduler_params={"T_max": steps},
        lr_step_on_epoch_change=False,
    )


def train(job: Edge) -> Outcome:
    torch.set_num_threads(1)
    seed_noise(job.seed)
    return _train_gpt(job) if job.model == "gpt" else _train_cnn(job)


def _train_gpt(job: Edge) -> Outcome:
    model = text.make_model(job.seed)
    data = list(itertools.islice(text.shard(0, 1, chargpt.ROWS), STEPS))
    inputs, labels = [rows[:, :-1] for rows in data], [rows[:, 1:] for rows in data]
    pipeline = _pipeline(job, model, inputs, labels, chargpt.loss_of, declining(3e-3, STEPS), PARTS)
    pipeline.train(inputs)
    loss = text.held_out_loss(model, pipeline.state())
    return {"loss": loss, **_traffic(pipeline)}


def _train_cnn(job: Edge) -> Outcome:
    model = digits.make_model(job.seed)
    data = digits.batches(EPOCHS)
    inputs, labels = [images for images, _ in data], [wanted for _, wanted in data]
    update = declining(1e-3, len(data))
    pipeline = _pipeline(job, model, inputs, labels, nn.CrossEntropyLoss(), update, 1)
    pipeline.train(inputs)
    model.load_state_dict(pipeline.state())
    model.eval()
    _, _, images, wanted = digits.rows()
    with torch.no_grad():
        scores = model(images)
    right = float((scores.argmax(1) == wanted).float().mean())
    loss = float(nn.functional.cross_entropy(scores, wanted))
    return {"loss": loss, "right": right, **_traffic(pipeline)}


def _pipeline(
    job: Edge,
    model: nn.Module,
    inputs: Sequence[torch.Tensor],
    labels: Sequence[torch.Tensor],
    criterion: Callable[..., Any],
    update: UpdateSettings,
    parts: int,
) -> VirtualPipeline:
    settings = StageSettings(
        update=update,
        leaf=LeafSettings(criterion=criterion, labels=labels),
        micro_batches=parts,
        compression=Compression.of({"edges": _named(job.forward)}),
    )
    pipeline = VirtualPipeline(model, inputs[0], STAGES, lambda _: settings, parts=parts)
    if job.forward != job.backward:
        for stage in pipeline.stages:
            stage.runner._pack_backward = Packing(_named(job.backward))
    return pipeline


def _named(codec: str) -> str | None:
    return None if codec == "none" else codec


def _traffic(pipeline: VirtualPipeline) -> Outcome:
    traffic = pipeline.traffic
    return {"tensors": traffic.tensors, "total": traffic.total}


def report(found: dict[Edge, Outcome], model: str) -> None:
    codecs = dict.fromkeys(job.codec for job in found if job.model == model)
    by_codec = {
        codec: {j.seed: r for j, r in found.items() if j.model == model and j.codec == codec}
        for codec in codecs
    }
    plain = by_codec["none"]
    print("activations / gradients   tensors   all bytes   held-out loss   gap, %   by seed")
    for codec, results in by_codec.items():
        gaps = [100 * (results[s]["loss"] / plain[s]["loss"] - 1) for s in results]
        fewer = [sum(r[k] for r in plain.values()) for k in ("tensors", "total")]
        sent = [sum(r[k] for r in results.values()) for k in ("tensors", "total")]
        loss = statistics.fmean(r["loss"] for r in results.values())
        each = " ".join(f"{gap:+.2f}" for gap in gaps)
        right = [r["right"] for r in results.values() if "right" in r]
        accuracy = f"   accuracy {statistics.fmean(right):.4f}" if right else ""
        print(
            f"{codec:23} {fewer[0] / sent[0]:9.2f}x {fewer[1] / sent[1]:9.2f}x {loss:14.4f}"
            f" {statistics.fmean(gaps):+9.2f}   {each}{accuracy}"
        )
    losses = [r["loss"] for r in plain.values()]
    spread = 100 * statistics.stdev(losses) / statistics.fmean(losses)
    print(f"spread between seeds without a codec (standard deviation): {spread:.2f} %\n")
