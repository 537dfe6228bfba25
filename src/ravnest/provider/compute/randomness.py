"""The random numbers that a stage draws: its own ones, and the same ones again.

Torch's layers draw from generators of the whole process. The same seed in every script, which data
that is shuffled alike needs, would give every stage of every cluster the same dropout masks; and
what a stage draws would change the order in which the data comes. So a stage puts the state of its
own numbers into the generators while it computes, and afterwards back what was there.
"""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import xxhash

from ravnest.stage.arithmetic import ARITHMETIC
from ravnest.stage.graph import StageGraph
from ravnest.stage.operators import GRADIENT, MODULE_CALL, tensor_operator

_ONE_AT_A_TIME = threading.RLock()
"""Several stages may be in one process."""


@dataclass(frozen=True)
class RandomState:
    """Of the CPU's generator and, if the stage computes elsewhere, that device's."""

    device: torch.device
    cpu: torch.Tensor
    other: torch.Tensor | None

    @classmethod
    def now(cls, device: torch.device) -> "RandomState":
        module = _module(device)
        return cls(device, torch.get_rng_state(), module and _device_state(module, device))

    def equals(self, other: "RandomState") -> bool:
        if not torch.equal(self.cpu, other.cpu):
            return False
        if self.other is None or other.other is None:
            return self.other is other.other
        return torch.equal(self.other, other.other)

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        module = _module(self.device)
        if module is not None and self.other is not None:
            if self.device.type == "mps":
                module.set_rng_state(self.other)
            else:
                module.set_rng_state(self.other, self.device)

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """While active, the numbers drawn are those that followed when this was taken."""
        with _ONE_AT_A_TIME:
            before = RandomState.now(self.device)
            self.restore()
            try:
                yield
            finally:
                before.restore()


class StageRandomness:
    """Follows from the process's seed at the time this is made, and from which stage of which
    cluster it is."""

    def __init__(self, device: torch.device, *of: int) -> None:
        self._device = device
        self._seed = xxhash.xxh3_64_intdigest(f"{(torch.initial_seed(), *of)}".encode())
        self._state: RandomState | None = None

    @contextlib.contextmanager
    def drawn(self) -> Iterator[None]:
        """While active, numbers that are drawn are this stage's."""
        with _ONE_AT_A_TIME:
            before = RandomState.now(self._device)
            if self._state is None:
                torch.manual_seed(self._seed)
            else:
                self._state.restore()
            try:
                yield
            finally:
                self._state = RandomState.now(self._device)
                before.restore()


def draws_numbers(graph: StageGraph) -> bool:
    """Whether anything in this stage may; of a module of the user's nothing is known."""
    operations = [op for mode in (graph.train, graph.eval) for op in mode.operations]
    names = {op.op for op in operations} - {GRADIENT, *ARITHMETIC}
    return MODULE_CALL in names or any(
        torch.Tag.nondeterministic_seeded in tensor_operator(name).tags for name in names
    )


def _module(device: torch.device) -> Any:
    return None if device.type == "cpu" else torch.get_device_module(device)


def _device_state(module: Any, device: torch.device) -> torch.Tensor:
    state: torch.Tensor = (
        module.get_rng_state() if device.type == "mps" else module.get_rng_state(device)
    )
    return state
