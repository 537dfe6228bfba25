"""How much memory a device has left, and what to do where it is short.

A shortage shows in two ways: as an error in the middle of a pass, which can be tried again with
activations given up (`passes.py`), and in figures, before an update. The second must not become the
first: an optimizer that has failed half-way has changed some parameters and not others.
"""

import gc
import traceback
from typing import Any

import torch

from ravnest.errors import RunError
from ravnest.wire.messages import MicroBatch

_TEMPORARIES = 3
"""Most copies of a group's parameters that optimizers of torch make at once with `foreach`."""
_STATES = 2
"""Of the trainable parameters, that the first step of most optimizers makes for itself."""


def let_go(error: BaseException | None) -> None:
    """What an error holds: all that had been computed where it was raised."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def is_shortage(error: BaseException | None) -> bool:
    """Whether a device had no memory left, at the beginning of it all."""
    while error is not None:
        of_torch = isinstance(error, RuntimeError) and "out of memory" in str(error)
        if of_torch or isinstance(error, torch.OutOfMemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False


class Room:
    """Of one device, for this process. Devices that do not say how much is free have enough until
    they fail; the processor is one of them, its limit is the system's."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._module: Any = None if device.type == "cpu" else torch.get_device_module(device)

    def most(self) -> int | None:
        """What this process may take."""
        if self.device.type == "mps":
            return int(self._module.recommended_max_memory())
        if not hasattr(self._module, "mem_get_info"):
            return None
        total = int(self._module.mem_get_info(self.device)[1])
        fraction = getattr(self._module, "get_per_process_memory_fraction", None)
        return total if fraction is None else int(total * fraction(self.device))

    def limit(self, share: float) -> None:
        """This process takes no more than so much of all there is."""
        if self.device.type == "mps":
            self._module.set_per_process_memory_fraction(share)
        elif hasattr(self._module, "set_per_process_memory_fraction"):
            self._module.set_per_process_memory_fraction(share, self.device)

    def used(self) -> int:
        """By tensors that exist now."""
        if self.device.type == "mps":
            return int(self._module.current_allocated_memory())
        used = getattr(self._module, "memory_allocated", None)
        return 0 if used is None else int(used(self.device))

    def free(self) -> int | None:
        """Also what the allocator holds and nobody uses."""
        most = self.most()
        if most is None:
            return None
        free = most - self.used()
        if self.device.type != "mps":
            kept = int(self._module.memory_reserved(self.device)) - self.used()
            free = min(free, int(self._module.mem_get_info(self.device)[0]) + kept)
        return max(0, free)

    def sweep(self) -> None:
        """What is in nobody's use goes back."""
        gc.collect()
        if hasattr(self._module, "empty_cache"):
            self._module.empty_cache()

    def too_small(self, stage: int, stages: int, of: MicroBatch) -> RunError:
        """With what would fit, as far as figures tell. To be asked for when nothing else is in
        flight."""
        most, used = self.most(), self.used()
        there = ""
        if most is not None:
            there = (
                f": of the {most / 1e9:.2f} GB that it may use, {used / 1e9:.2f} GB hold weights, "
                f"gradients and the optimizer's state, and {(most - used) / 1e9:.2f} GB are too "
                "little for the rest"
            )
        smaller = f"micro_batches={2 * of.parts} halves what it takes beside them"
        if of.rows < 2:
            smaller = "fewer layers on this stage are needed"
        return RunError(
            f"stage {stage} of {stages} does not fit on {self.device}, with one micro-batch of "
            f"{of.rows} of {of.batch_rows} rows at a time{there}. {smaller}; or give it a device "
            "with more memory, or more of this one (ravnest join --gpu-memory)"
        )


class StepMemory:
    """Lets the steps of an optimizer fit into what is free."""

    def __init__(self, optimizer: torch.optim.Optimizer | None, room: Room) -> None:
        self._room = room
        groups: list[dict[str, Any]] = [] if optimizer is None else optimizer.param_groups
        self._has_stepped = False
        # Where the user has said nothing; torch then takes `foreach` on GPUs.
        self._open = [g for g in groups if g.get("foreach", 0) is None and not g.get("fused")]
        self._largest = max((_bytes_of(group) for group in self._open), default=0)
        self._all = sum(map(_bytes_of, groups))

    def needed(self) -> int:
        """Bytes that the next step takes at least, beside gradients."""
        return 0 if self._has_stepped else self._all * _STATES

    def prepare(self) -> None:
        """Parameter by parameter, if temporaries of all of them together might not fit."""
        needed, self._has_stepped = self.needed(), True
        if not self._open or (free := self._room.free()) is None:
            return
        fits = free >= needed + _TEMPORARIES * self._largest
        for group in self._open:
            group["foreach"] = None if fits else False


def _bytes_of(group: dict[str, Any]) -> int:
    return sum(int(p.numel()) * p.element_size() for p in group["params"])
