"""Computing a stage's activations a second time, exactly as they were the first time; and undoing
a first time that has failed.

What the first forward used and may be gone when it is repeated: inputs that the model writes to,
buffers that it writes to (their values enter the result of some layers), and random numbers. Which
inputs and buffers a stage writes to shows when it does so for the first time; from then on copies
of those are kept, and of no others.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ravnest.provider.compute.randomness import RandomState
from ravnest.stage.module import StageModule

logger = logging.getLogger("ravnest")
_TRIES = 4
Values = dict[int, Any]
Place = tuple[dict[str, torch.Tensor | None], str]


@dataclass
class Replay:
    """Of one forward: what it began with."""

    buffers: list[tuple[Place, torch.Tensor]]
    before: RandomState
    after: RandomState | None = None
    """None if no random number was drawn."""


class Replays:
    """Records and repeats the forwards of one stage."""

    def __init__(self, stage: StageModule) -> None:
        self._stage = stage
        self._first = True
        self._written_inputs: set[int] = set()
        self._written_buffers: list[Place] = []
        self._warned = False

    @contextlib.contextmanager
    def recording(self, inputs: Values) -> Iterator[tuple[Values, Replay]]:
        """Around a forward with the values given out here, which it may write to."""
        tensors = [number for number, value in inputs.items() if isinstance(value, torch.Tensor)]
        copied = tensors if self._first else self._written_inputs
        given = inputs | {number: inputs[number].clone() for number in copied}
        places = self._buffers() if self._first else self._written_buffers
        kept = [(place, _at(place).clone()) for place in places]
        device = self._stage.device
        replay = Replay(kept, RandomState.now(device))
        try:
            yield given, replay
            after = RandomState.now(device)
            replay.after = None if after.equals(replay.before) else after
            if self._first:
                self._learn(given, replay)
        except BaseException:
            self._undo(replay, kept)
            raise

    def _learn(self, given: Values, replay: Replay) -> None:
        written = {n for n, v in given.items() if isinstance(v, torch.Tensor) and v._version}
        # By their values: what BatchNorm writes to its statistics is not counted by torch.
        replay.buffers = [(p, was) for p, was in replay.buffers if not torch.equal(_at(p), was)]
        self._written_inputs = written
        self._written_buffers = [place for place, _ in replay.buffers]
        self._first = False

    @staticmethod
    def _undo(replay: Replay, kept: list[tuple[Place, torch.Tensor]]) -> None:
        """A forward that has failed half-way leaves no trace."""
        for place, was in kept:
            # An alias with a version counter of its own: backwards that are to come may hold it.
            _at(place).data.copy_(was)
        replay.before.restore()

    def run_again(self, replay: Replay, run: Callable[[], Values]) -> Values:
        """What the forward gave; buffers stay as they are now."""
        if replay.after is None:
            with self._placed(replay.buffers):
                return run()
        for _ in range(_TRIES):
            with self._placed(replay.buffers), replay.before.again():
                outputs = run()
                if RandomState.now(self._stage.device).equals(replay.after):
                    return outputs
        self._warn()
        return outputs

    def _warn(self) -> None:
        if not self._warned:
            logger.warning(
                "random numbers were drawn beside the pipeline, from the same generator, so that "
                "activations could not be computed again with the same ones (dropout). Let the "
                "data draw from a generator of its own: num_workers=1 in its DataLoader, or "
                "generator=…"
            )
        self._warned = True

    @contextlib.contextmanager
    def _placed(self, buffers: list[tuple[Place, torch.Tensor]]) -> Iterator[None]:
        """While active, these are the values of the buffers. All of them are copies: the first
        forward has written to the real ones already."""
        present = [(place, _at(place)) for place in self._buffers()]
        try:
            for registry, name in self._buffers():
                registry[name] = _at((registry, name)).clone()
            for (registry, name), value in buffers:
                registry[name] = value.clone()
            yield
        finally:
            for (registry, name), value in present:
                registry[name] = value

    def _buffers(self) -> list[Place]:
        return [
            (module._buffers, name)
            for module in self._stage.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]


def _at(place: Place) -> torch.Tensor:
    registry, name = place
    buffer = registry[name]
    assert buffer is not None
    return buffer
