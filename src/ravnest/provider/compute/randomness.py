"""The state of the random numbers that a stage draws, to draw the same ones again."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch


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
        before = RandomState.now(self.device)
        self.restore()
        try:
            yield
        finally:
            before.restore()


def _module(device: torch.device) -> Any:
    return None if device.type == "cpu" else torch.get_device_module(device)


def _device_state(module: Any, device: torch.device) -> torch.Tensor:
    state: torch.Tensor = (
        module.get_rng_state() if device.type == "mps" else module.get_rng_state(device)
    )
    return state
