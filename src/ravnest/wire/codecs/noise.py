"""Random numbers for rounding: fast, from any thread, and other ones on every machine.

Not taken from torch's own generator, which belongs to the user's training: whether dropout draws
the same numbers must not depend on how many tensors were sent meanwhile. And never seeded alike on
two machines: averaging makes errors small only as long as they have nothing to do with each other.
"""

import threading

import torch


class Noise(threading.local):
    """Each thread has generators of its own: they take no lock against being drawn from twice."""

    def __init__(self) -> None:
        self._generators: dict[torch.device, torch.Generator] = {}

    def words(self, count: int, device: torch.device) -> torch.Tensor:
        """So many independent 16-bit integers."""
        # Drawn as 64 bits each: the time is the generator's, by the draw.
        wide = torch.empty(-(-count // 4), dtype=torch.int64, device=device)
        wide.random_(-(2**63), None, generator=self._generator(device))
        return wide.view(torch.int16)[:count]

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device)
            self._generators[device].seed()
        return self._generators[device]
