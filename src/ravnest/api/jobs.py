"""A job as its requester hands it over: model, data, recipe and settings, all of it data.

The model is a one-stage package (see docs/packages.md); loss, optimizer and schedule are names from
the registry of recipes; the dataset is columns of numbers in shards. A job with a script instead of
a recipe runs only on providers whose owners have agreed to that.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ravnest.api.limits import (
    Count,
    Figure,
    FileRef,
    Name,
    Parameters,
    Positive,
    Sha256,
    Strict,
    Word,
)

Few = 64
Shards = 100_000


class Named(Strict, frozen=True, kw_only=True):
    """Something from a registry, with its arguments."""

    name: Word
    params: Parameters = msgspec.field(default_factory=dict)


class FieldSpec(Strict, frozen=True, kw_only=True):
    """A column of the dataset: a tensor of this type and shape for every row."""

    name: Word
    dtype: Word
    shape: Annotated[tuple[Count, ...], Meta(max_length=8)] = ()


class ShardSpec(Strict, frozen=True, kw_only=True):
    """Consecutive rows; one file per field, in the order of the fields."""

    rows: Positive
    files: Annotated[tuple[FileRef, ...], Meta(min_length=1, max_length=Few)]


class DataSpec(Strict, frozen=True, kw_only=True):
    """Rows in the order in which shards follow each other."""

    fields: Annotated[tuple[FieldSpec, ...], Meta(min_length=1, max_length=Few)]
    shards: Annotated[tuple[ShardSpec, ...], Meta(min_length=1, max_length=Shards)]

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)


_Names = Annotated[
    tuple[Annotated[str, Meta(min_length=1, max_length=1000)], ...], Meta(max_length=1_000_000)
]


class Legend(Strict, frozen=True, kw_only=True):
    """What numbers in the data stand for: each is the place of its name. Empty: not known."""

    classes: _Names = ()
    vocabulary: _Names = ()


class InputSpec(Strict, frozen=True, kw_only=True):
    """How a column becomes an argument of the model, or a target of the loss."""

    field: Word
    argument: Word = "_"
    """The model's own name for it; `_` is the next one by position."""
    transforms: Annotated[tuple[Named, ...], Meta(max_length=16)] = ()


class LossSpec(Strict, frozen=True, kw_only=True):
    """A loss of the registry, between one output of the model and one target."""

    name: Word
    params: Parameters = msgspec.field(default_factory=dict)
    output: Annotated[tuple[str | int, ...], Meta(max_length=8)] = ()
    """Keys and indices that lead to it in a structured output; () is the output itself."""
    target: InputSpec
    weight: Figure = 1.0


class Recipe(Strict, frozen=True, kw_only=True):
    """How to train, by names: needs no foreign Python at all."""

    inputs: Annotated[tuple[InputSpec, ...], Meta(min_length=1, max_length=Few)]
    losses: Annotated[tuple[LossSpec, ...], Meta(min_length=1, max_length=Few)]
    """Added up with their weights."""
    optimizer: Named
    schedule: Named | None = None
    schedule_per: Literal["epoch", "update"] = "epoch"
    metrics: Annotated[tuple[Named, ...], Meta(max_length=16)] = ()
    """Judged on the first loss's output and target."""


class ScriptSpec(Strict, frozen=True, kw_only=True):
    """A provider script with a Node and a Trainer, run as it is where the owner consents."""

    file: FileRef
    arguments: Annotated[tuple[str, ...], Meta(max_length=64)] = ()


class TrainingSpec(Strict, frozen=True, kw_only=True):
    epochs: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    batch_size: Annotated[int, Meta(ge=1, le=1 << 24)] = 64
    shuffle: bool = True
    seed: Annotated[int, Meta(ge=0, lt=1 << 62)] = 42
    update_frequency: Annotated[int, Meta(ge=1, le=1 << 20)] = 1
    reduce_factor: Annotated[int, Meta(ge=1, le=1 << 30)] | None = None
    schedule: Literal["async", "sync"] = "async"
    precision: Literal["bf16", "fp16"] | None = None
    compression: bool | Word = False
    average_optim: bool = False
    clip_grad_norm: Figure | None = None
    validate_every: Annotated[int, Meta(ge=0, le=1_000_000)] = 1
    """Epochs between validations; 0 is only at the end."""


class PlanningSpec(Strict, frozen=True, kw_only=True):
    """What `clusterize` would be told."""

    min_cluster_size: Annotated[int, Meta(ge=1, le=100_000)] = 2
    max_clusters: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    micro_batches: Annotated[int, Meta(ge=1, le=1 << 16)] | None = None
    idle_gain: Annotated[float, Meta(ge=1.0, le=1e9)] = 1.5
    max_providers: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    max_runs: Annotated[int, Meta(ge=1, le=1000)] = 3
    """How often the server may begin again when providers are lost."""


class JobSpec(Strict, frozen=True, kw_only=True):
    """Everything a requester says about a job. Files are uploaded first, by content."""

    name: Name
    model: Annotated[tuple[FileRef, ...], Meta(min_length=1, max_length=Few)]
    train: DataSpec
    validation: DataSpec | None = None
    recipe: Recipe | None = None
    script: ScriptSpec | None = None
    training: TrainingSpec = TrainingSpec()
    planning: PlanningSpec = PlanningSpec()
    legend: Legend | None = None
    """Kept with the trained weights, for whoever uses them."""
    start: Literal["asked", "at once"] = "at once"
    """Whether training begins as soon as there is a plan, or when the requester says so."""

    def __post_init__(self) -> None:
        if (self.recipe is None) == (self.script is None):
            raise ValueError("a job has either a recipe or a script")

    def files(self) -> dict[Sha256, FileRef]:
        """Every file that must be there before the job can begin."""
        shards = [*self.train.shards, *(self.validation.shards if self.validation else ())]
        found = [*self.model, *(file for shard in shards for file in shard.files)]
        if self.script is not None:
            found.append(self.script.file)
        return {file.sha256: file for file in found}
