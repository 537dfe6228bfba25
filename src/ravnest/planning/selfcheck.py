"""Compare the stages, as loaded from their files, with the model they came from.

Cutting rests on torch's capture being right about code nobody here has seen. So before a plan is
handed out, the model and its stages play the same short training run on the example inputs, at
three batch sizes where the model allows it, and outputs, gradients and buffers must agree at every
step. A difference is an error, never a silent wrong result. A few rows show it as well as many.
"""

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from ravnest.errors import CaptureError
from ravnest.planning.capture.call import Call
from ravnest.planning.capture.program import Program
from ravnest.planning.capture.surroundings import as_in_training
from ravnest.planning.outcomes import Outcome, difference_of
from ravnest.planning.rehearsal import Scene, SceneError, play_model, play_stages
from ravnest.planning.study import Study
from ravnest.stage.graph import MODES, Mode
from ravnest.stage.local import LocalPipeline
from ravnest.stage.module import StageModule

logger = logging.getLogger("ravnest.planning")
_ROWS = 4
_LIKELY_CAUSES = (
    "Causes seen before: the forward uses the batch size as a plain number (float(len(x))), sets a "
    "random seed (torch.manual_seed), assigns to a tensor's .data, or depends on Python state that "
    "changes between calls. It should depend on its inputs, parameters and buffers only. If none "
    "of these is the case, it may be a fault of the capture: please report it."
)


class OneRowError(CaptureError):
    """A single row is nothing for this model, or its stages do something else with it."""

    def __init__(self, mode: Mode, text: str) -> None:
        super().__init__(text)
        self.mode = mode


class DifferenceError(CaptureError):
    """The stages compute something else than the model."""


_T = TypeVar("_T")


def as_it_runs(studied: Study, use: Callable[[Study], _T]) -> _T:
    """Use a study; if its stages differ from the model, one for which the model was not told that
    it is being captured. What it does for a compiler may be something else than for its users."""
    try:
        return use(studied)
    except DifferenceError:
        if studied.untold is None:
            raise
        logger.info("capturing %s as it runs for its users …", studied.name)
        with contextlib.suppress(CaptureError):  # the first one says more
            return use(studied.untold())
        raise


class SelfCheck:
    """Holds what the model computes, so that the cuts of several clusters are compared with it."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self._scenes: list[Scene] = []
        self._expected: list[Outcome] = []

    @as_in_training()
    def __call__(self, stages: Sequence[StageModule]) -> None:
        """Raise `CaptureError` if the stages do not compute what the model computes."""
        if not self._expected:
            self._ask_model()
        pipeline = LocalPipeline(stages)
        found = self._play(pipeline, self._scenes)
        for number, (expected, other) in enumerate(zip(self._expected, found, strict=True)):
            difference = difference_of(expected, other)
            if difference is not None:
                raise self._explained(pipeline, number, difference)

    def _ask_model(self) -> None:
        """Sizes that the model itself refuses are left out, but not the example's."""
        sizes, turned = _sizes(self.study), True
        while True:
            self._scenes = _scenes(self.study, sizes, turned)
            try:
                self._expected = play_model(self.study, self._scenes)
                return
            except SceneError as refused:
                rows, planned = refused.scene.rows, self.study.train.batch_size
                if rows == planned and turned and refused.scene.call is not self.study.call:
                    turned = False  # offsets, for one, are right in their own order only
                    continue
                if rows == planned:
                    raise CaptureError(
                        f"{self.study.name} itself fails in {refused.scene.mode} mode on the "
                        f"example inputs ({refused.scene.call.described()}): {refused}"
                    ) from refused
                if rows == 1:
                    mode = refused.scene.mode
                    text = f"{self.study.name} does not take a single row ({refused})"
                    raise OneRowError(mode, text) from refused
                sizes = [size for size in sizes if size != rows]
                if rows < planned:  # it may need as many as it was shown
                    sizes = [planned, *(size for size in sizes if size != planned)]

    def _play(self, pipeline: LocalPipeline, scenes: Sequence[Scene]) -> list[Outcome]:
        try:
            return play_stages(self.study, pipeline, scenes)
        except CaptureError:
            raise
        except Exception as error:
            raise DifferenceError(
                f"the cut stages of {self.study.name} fail where the model does not: "
                f"{self.study.why(error)}. {_LIKELY_CAUSES}"
            ) from error

    def _explained(self, pipeline: LocalPipeline, number: int, difference: str) -> CaptureError:
        """Why might this be? Some causes can be told apart by asking again."""
        name, scene = self.study.name, self._scenes[number]
        again = play_model(self.study, self._scenes[: number + 1])[-1]
        if difference_of(self._expected[number], again) is not None:
            return CaptureError(
                f"{name} gives different results for equal inputs and equal torch seeds "
                f"({difference}), so its stages cannot be verified. Make its randomness depend "
                "on torch's generator only, or pass self_check=False."
            )
        if number and self._agree_on(pipeline, scene):
            return DifferenceError(
                f"{name} answers differently when it has been called before: {difference} (in "
                f"{scene.mode} mode, call {number + 1} of a short training run). It remembers "
                "something outside its parameters and buffers (a counter, a flag, a tensor in a "
                "plain attribute, weights merged in train() or eval()), which its stages would "
                "not. Keep it in a buffer (register_buffer), or leave it out; if it only prepares "
                "something in its first call, call it once before planning."
            )
        if scene.rows == 1:
            text = f"{name} does something else with a single row: {difference}"
            return OneRowError(scene.mode, text)
        return DifferenceError(
            f"the cut stages of {name} do not compute what the model computes: "
            f"{difference} (in {scene.mode} mode, batch of {scene.rows}). {_LIKELY_CAUSES}"
        )

    def _agree_on(self, pipeline: LocalPipeline, scene: Scene) -> bool:
        """Whether model and stages do the same if this is their first call."""
        (expected,) = play_model(self.study, [scene])
        (found,) = self._play(pipeline, [scene])
        return difference_of(expected, found) is None


def _sizes(study: Study) -> list[int]:
    """A few rows, one more, and a single one, where the plan allows it."""
    planned = study.train.batch_size
    if not (study.train.dynamic and study.evaluation.dynamic):
        return [planned]
    few = next(
        (rows for rows in range(min(planned, _ROWS), planned) if _modes(study, rows) == MODES),
        planned,
    )
    return [few, *(rows for rows in (few + 1, 1) if _modes(study, rows))]


def _modes(study: Study, rows: int) -> tuple[Mode, ...]:
    """Modes in which the plan allows batches of so many rows."""
    programs: tuple[tuple[Mode, Program], ...] = (
        ("train", study.train),
        ("eval", study.evaluation),
    )
    return tuple(
        mode
        for mode, program in programs
        if program.rows[0] <= rows and (program.rows[1] is None or rows <= program.rows[1])
    )


def _scenes(study: Study, sizes: Sequence[int], turned: bool) -> list[Scene]:
    """Train on each size before any is evaluated twice; no two calls in a row see equal rows,
    unless the model takes its rows as they come only."""
    calls = [_other_rows(study.call, start * turned, rows) for start, rows in enumerate(sizes)]
    if len(calls) == 1:
        calls.append(_other_rows(study.call, int(turned), sizes[0]))
    scenes = [Scene(calls[0], "train"), Scene(calls[1], "train"), Scene(calls[0], "eval")]
    scenes += [Scene(call, mode) for call in calls[2:] for mode in MODES]
    scenes += [Scene(calls[1], "eval")]
    return [s for s in scenes if s.rows == sizes[0] or s.mode in _modes(study, s.rows)]


def _other_rows(call: Call, start: int, rows: int) -> Call:
    """So many rows of the example, beginning with another one."""
    if start == 0 and rows == call.batch_size:
        return call
    leaves = tuple(
        torch.roll(leaf, -start, 0) if call.is_batched(leaf) else leaf for leaf in call.leaves
    )
    return Call(call.arguments, leaves, call.batch_size).resized(rows)
