"""Between a provider's memory and the device that its stage computes on.

Tensors come from the network and go to it in main memory. A device with queues of its own (CUDA)
copies beside what it computes: inputs and gradients are on their way as soon as they have arrived,
and what leaves is copied while the next pass runs. The network waits for such a copy, not the
thread that computes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch


class Leaving(NamedTuple):
    """Tensors in main memory, which may be read once `ready` has returned."""

    tensors: tuple[torch.Tensor, ...]
    ready: Callable[[], None] | None = None


class Copies:
    """For devices that copy in line with what they compute, and for the CPU, which need not."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def bring(self, values: Mapping[int, Any]) -> dict[int, Any]:
        """The same values on the device; plain numbers as they are."""
        return {
            number: self._enter(value) if isinstance(value, torch.Tensor) else value
            for number, value in values.items()
        }

    def _enter(self, value: torch.Tensor) -> torch.Tensor:
        return value.detach().to(self.device)

    def leave(self, tensors: Sequence[torch.Tensor]) -> Leaving:
        """To be called when what made the tensors has been computed."""
        return Leaving(tuple(tensor.detach().to("cpu") for tensor in tensors))

    def finish_pass(self) -> None:
        """Wait until what was asked of the device is computed."""
        if self.device.type == "mps":
            torch.mps.synchronize()


class CudaCopies(Copies):
    """Two queues for copies, one for each direction, beside that of the computing."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._incoming = torch.cuda.Stream(device)
        self._outgoing = torch.cuda.Stream(device)

    def _enter(self, value: torch.Tensor) -> torch.Tensor:
        value = value.detach()
        if value.device == self.device:
            return value
        computing = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self._incoming):
            moved = value.pin_memory().to(self.device, non_blocking=True)
        computing.wait_stream(self._incoming)
        # The allocator must not give the memory away before the computing is done with it.
        moved.record_stream(computing)
        return moved

    def leave(self, tensors: Sequence[torch.Tensor]) -> Leaving:
        self._outgoing.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._outgoing):
            copies = tuple(self._copied(tensor.detach()) for tensor in tensors)
            copied = torch.cuda.Event()
            copied.record(self._outgoing)
        return Leaving(copies, copied.synchronize)

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_cuda:  # only handed on
            return tensor
        dense = tensor.to_dense().contiguous()
        dense.record_stream(self._outgoing)
        target = torch.empty(dense.shape, dtype=dense.dtype, pin_memory=True)
        return target.copy_(dense, non_blocking=True)

    def finish_pass(self) -> None:
        torch.cuda.current_stream(self.device).synchronize()


def copies_for(device: torch.device) -> Copies:
    return CudaCopies(device) if device.type == "cuda" else Copies(device)
