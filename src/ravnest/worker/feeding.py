"""What a stage reads of the data: inputs on the first one, targets on the last one."""

from dataclasses import dataclass
from pathlib import Path

from ravnest.api.jobs import InputSpec, Recipe
from ravnest.api.work import Assignment, DataPart
from ravnest.data.batches import Batches, Reading, batches_in
from ravnest.data.reading import PartReader
from ravnest.errors import JobError
from ravnest.recipes.checking import arguments_of
from ravnest.recipes.criterion import target_name
from ravnest.stage.graph import Mode, StageGraph


@dataclass(frozen=True)
class Feed:
    """Loaders for `Node` and `Trainer`; None where a stage has nothing to read."""

    inputs: Batches | None = None
    targets: Batches | None = None
    validation_inputs: Batches | None = None
    validation_targets: Batches | None = None
    batches_per_epoch: int = 0
    """Of this cluster; 0 if a stage without data was not told."""

    def updates(self, epochs: int, update_frequency: int) -> int:
        """Of the optimizer, in so many epochs."""
        return epochs * -(-self.batches_per_epoch // update_frequency)


def feed(work: Assignment, recipe: Recipe, graph: StageGraph, folder: Path) -> Feed:
    training = work.training
    rows = work.train.range.rows if work.train is not None else work.train_rows
    batches = batches_in(rows, training.batch_size, graph.train.least_rows)
    if (work.train is not None or work.train_rows) and not batches:
        raise JobError(
            f"cluster {work.cluster} has {rows} rows to train on, and the model takes batches of "
            f"at least {graph.train.least_rows}: give more rows, or plan fewer clusters"
        )
    inputs = _inputs(recipe, graph) if graph.is_first else {}
    targets = _targets(recipe) if graph.is_last else {}

    def loaders(part: DataPart | None, mode: Mode) -> tuple[Batches | None, Batches | None]:
        if part is None or not (inputs or targets):
            return None, None
        reader = PartReader(part, folder)
        how = Reading(
            batch_size=training.batch_size,
            seed=training.seed,
            cluster=work.cluster,
            shuffle=training.shuffle and mode == "train",
            training=mode == "train",
            least_rows=graph.mode(mode).least_rows,
        )
        # Two, also where one stage reads both: each goes through the epochs by itself.
        first, last = (
            Batches(reader, items, how, epoch=work.epochs_done) if items else None
            for items in (inputs, targets)
        )
        return first, last

    train, validation = loaders(work.train, "train"), (None, None)
    if work.validates:
        validation = loaders(work.validation, "eval")  # type: ignore[assignment]
    return Feed(*train, *validation, batches_per_epoch=batches)


def _inputs(recipe: Recipe, graph: StageGraph) -> dict[str, InputSpec]:
    """By the names of the model's arguments."""
    names = [argument.name for argument in graph.arguments]
    return dict(zip(arguments_of(recipe, names), recipe.inputs, strict=True))


def _targets(recipe: Recipe) -> dict[str, InputSpec]:
    return {target_name(number): loss.target for number, loss in enumerate(recipe.losses)}
