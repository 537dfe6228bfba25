"""Computing a stage's activations a second time, exactly as they were the first time; and undoing
a first time that has failed.

What the first forward used and may be gone when it is repeated: inputs that the model writes to,
buffers that it writes to (their values enter the result of some layers), and random numbers. Which
inputs and buffers a stage may write to its graph says (stage/writes.py): what one forward happens
to leave as it was, the next one may change. Copies of those are kept, and of no others.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ravnest.provider.compute.randomness import RandomState
from ravnest.stage.graph import Mode
from ravnest.stage.module import StageModule
from ravnest.stage.writes import written_in

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
    """Records and repeats the forwards of one stage in one mode."""

    def __init__(self, stage: StageModule, mode: Mode = "train") -> None:
        self._stage = stage
        written = written_in(stage.graph.mode(mode))
        self._written_inputs = {number for tag, number in written if tag == "v"}
        self._written_buffers = {f"t{number}" for tag, number in written if tag == "t"}
        self._warned = False

    def apart(self, inputs: Values) -> Values:
        """With copies of what a forward writes to."""
        written = self._written_inputs & inputs.keys()
        return inputs | {number: inputs[number].clone() for number in written}

    @contextlib.contextmanager
    def recording(self, inputs: Values) -> Iterator[tuple[Values, Replay]]:
        """Around a forward with the values given out here, which it may write to."""
        device = self._stage.device
        kept = [(place, _at(place).clone()) for place in self._buffers()]
        replay = Replay(kept, RandomState.now(device))
        try:
            yield self.apart(inputs), replay
            after = RandomState.now(device)
            replay.after = None if after.equals(replay.before) else after
        except BaseException:
            self._undo(replay)
            raise

    @staticmethod
    def _undo(replay: Replay) -> None:
        """A forward that has failed half-way leaves no trace."""
        for place, was in replay.buffers:
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

    @staticmethod
    @contextlib.contextmanager
    def _placed(buffers: list[tuple[Place, torch.Tensor]]) -> Iterator[None]:
        """While active, copies of these are the values of the buffers: the first forward has
        written to the real ones already."""
        present = [(place, _at(place)) for place, _ in buffers]
        try:
            for (registry, name), value in buffers:
                registry[name] = value.clone()
            yield
        finally:
            for (registry, name), value in present:
                registry[name] = value

    def _buffers(self) -> list[Place]:
        """Those that a forward may write to. Of modules of the user's own that can be any."""
        return [
            (module._buffers, name)
            for module in self._stage.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None and (module is not self._stage or name in self._written_buffers)
        ]


def _at(place: Place) -> torch.Tensor:
    registry, name = place
    buffer = registry[name]
    assert buffer is not None
    return buffer
