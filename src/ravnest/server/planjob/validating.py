"""A fused model is judged before it becomes the result: by rows that were held out of training.

Reads the folder of the job and nothing else. What the figures mean is decided in `state/fusing.py`.
Within bounds of time, rows and memory: weights that cannot be judged here are worth keeping all the
same, and it is said why they were not.
"""

import contextlib
import itertools
import math
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from safetensors import safe_open

from ravnest.api.jobs import JobSpec
from ravnest.api.work import DataPart
from ravnest.data.batches import Batch, Batches, Reading
from ravnest.data.dividing import held_out_part
from ravnest.data.reading import PartReader
from ravnest.errors import RavnestError
from ravnest.planning.figures import size
from ravnest.planning.handover import take_model, weights_of
from ravnest.planning.handover.taking import TakenModel
from ravnest.recipes.checking import arguments_of
from ravnest.recipes.criterion import build_criterion, target_name
from ravnest.server.planjob.outcome import MEMORY
from ravnest.server.state.records import Validation
from ravnest.stage.checking import tensor_bytes
from ravnest.stage.local import LocalPipeline
from ravnest.stage.module import StageModule

MOST_ROWS = 4096
MOST_SECONDS = 60.0
_BATCH = 64
_SEED = 18


class _LateError(Exception):
    pass


def validate(
    spec: JobSpec | None, model: Path, rows: Path, fused: Path, last: Path | None
) -> Validation:
    """How the `fused` weights do, beside those of the `last` good fusion and those that the model
    came with. `rows` is where the held-out rows lie."""
    taken = take_model(model)
    if (name := _not_finite(taken, fused)) is not None:
        return Validation(not_finite=name)
    part = None if spec is None else held_out_part(spec)
    if spec is None or spec.recipe is None:
        return Validation(note="a script says itself what it learns")
    if part is None:
        return Validation(note="the job has no validation rows")
    needed = 2 * sum(map(tensor_bytes, taken.graph.tensors))
    allowed = int(os.environ.get(MEMORY, "0"))
    if 0 < allowed < needed:
        return Validation(
            note=f"the model takes {size(needed)}, and the server allows {size(allowed)} "
            "(ravnest server --plan-memory)"
        )
    try:
        with _deadline(MOST_SECONDS):
            return _Judge(taken, spec, part, rows).judge(fused, last)
    except _LateError:
        note = f"it takes the server longer than {MOST_SECONDS:g} seconds"
    except (RavnestError, OSError, RuntimeError, MemoryError) as error:
        # By kind alone: in the words of torch there may be numbers of a tensor.
        note = f"the rows cannot be evaluated on the server ({type(error).__name__})"
    return Validation(note=note)


class _Judge:
    def __init__(self, taken: TakenModel, spec: JobSpec, part: DataPart, rows: Path) -> None:
        assert spec.recipe is not None
        graph, recipe = taken.graph, spec.recipe
        self._taken = taken
        self._criterion = build_criterion(recipe)
        names = [argument.name for argument in graph.arguments]
        arguments = dict(zip(arguments_of(recipe, names), recipe.inputs, strict=True))
        targets = {target_name(n): loss.target for n, loss in enumerate(recipe.losses)}
        how = Reading(
            batch_size=graph.static_batch or min(_BATCH, spec.training.batch_size),
            seed=_SEED,
            training=False,
            least_rows=graph.static_batch or graph.eval.least_rows,
        )
        self._arguments = tuple(arguments)
        self._reader = PartReader(part, rows)
        self._items, self._how = {**arguments, **targets}, how
        self._most = max(1, MOST_ROWS // how.batch_size)

    def judge(self, fused: Path, last: Path | None) -> Validation:
        # Those first that are known to be good: what fails with them is not the fusion's fault.
        untrained = None
        if self._taken.weights_file is not None:
            untrained = self._loss(None)
        before = None if last is None else self._loss(last)
        try:
            loss = self._loss(fused)
        except (RavnestError, RuntimeError):
            if untrained is before is None:
                raise
            loss = math.nan
        rows = sum(len(batch[target_name(0)]) for batch in self._batches())
        if not rows:
            return Validation(note="there are fewer validation rows than the model takes at once")
        return Validation(
            rows=rows, loss=_known(loss), last_loss=_known(before), untrained_loss=_known(untrained)
        )

    def _batches(self) -> Iterator[Batch]:
        """Some of the rows, the same ones each time."""
        return itertools.islice(Batches(self._reader, self._items, self._how), self._most)

    def _loss(self, weights: Path | None) -> float:
        pipeline = LocalPipeline([StageModule(self._taken.graph, weights_of(self._taken, weights))])
        pipeline.train(False)
        total = count = 0.0
        for batch in self._batches():
            outputs = pipeline(**{name: batch[name] for name in self._arguments})
            more, rows = self._criterion.judged(outputs, batch)
            total, count = total + more, count + rows
        return total / count if count else math.nan


def _known(loss: float | None) -> float | None:
    return loss if loss is not None and math.isfinite(loss) else None


def _not_finite(taken: TakenModel, fused: Path) -> str | None:
    """A tensor with numbers that are none, or infinite, unless the model came with such ones: some
    keep a mask so."""
    own = weights_of(taken) if taken.weights_file is not None else {}
    tensors = {entry.key: entry.tensor for entry in taken.index.state}
    with safe_open(fused, framework="pt") as file:
        for key in file.keys():  # noqa: SIM118  it is no mapping
            values = file.get_tensor(key)
            if not values.is_floating_point() or bool(values.isfinite().all()):
                continue
            came = own.get(tensors.get(key, key))
            if came is None or bool(came.isfinite().all()):
                return str(key)
    return None


def stage_not_finite(fused: Path, owners: Mapping[str, int]) -> int | None:
    """The only stage with such a tensor. Training that diverges makes all stages so, and nobody is
    to blame for that."""
    stages = set()
    with safe_open(fused, framework="pt") as file:
        for key, stage in owners.items():
            values = file.get_tensor(key)
            if values.is_floating_point() and not bool(values.isfinite().all()):
                stages.add(stage)
    return stages.pop() if len(stages) == 1 and len(set(owners.values())) > 1 else None


@contextlib.contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Operators are called one by one: between two of them the alarm is heard."""
    if (
        not hasattr(signal, "setitimer")
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return

    def late(*_: object) -> None:
        raise _LateError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
