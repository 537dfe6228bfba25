"""Between a provider's memory and the device that its stage computes on.

Tensors come from the network and go to it in main memory. A device with queues of its own (CUDA)
copies beside what it computes, in both directions. What comes sets out as soon as it has arrived,
and the computing waits for it where it begins to use it; what leaves is copied while the next pass
runs, and it is the network that waits then.

Memory belongs to the queue it was asked for on, which gives it out again as soon as nobody here
refers to it. So whatever another queue works with is recorded for that queue, and must be memory of
its own: what leaves is made dense by the queue that has computed it, and recorded like that.

What is packed travels to the device packed, and is unpacked there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from ravnest.provider.batches import with_tensors
from ravnest.wire.codecs import Packed, is_for_main_memory, unpack

Sent = torch.Tensor | Packed
"""In main memory, as it came or is to be sent."""


class Leaving(NamedTuple):
    """Tensors in main memory, which may be read once `ready` has returned."""

    tensors: tuple[torch.Tensor, ...]
    ready: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class OnTheWay:
    """A value that has set out for the device."""

    original: Sent
    moved: torch.Tensor
    has_come: Any
    """An event of the device."""


class Copies:
    """For devices that copy in line with what they compute, and for the CPU, which need not."""

    runs_ahead = False
    """Whether it is worth calling `set_out` before the value is needed."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._module: Any = torch.get_device_module(device)
        self._has_doubles = _has_doubles(device)

    def claim_thread(self) -> None:
        """What the calling thread asks for without naming a device is meant for this one."""
        if hasattr(self._module, "set_device"):  # where there can be several
            self._module.set_device(self.device)

    def set_out(self, value: Any) -> Any:
        """Let it begin its way to the device; from any thread. Gives what `bring` takes."""
        return value

    @property
    def is_apart(self) -> bool:
        """What was brought to the device is still in main memory as well, as long as it is held."""
        return self.device.type != "cpu"

    def bring(self, values: Mapping[int, Any]) -> dict[int, Any]:
        """The values on the device, for what is computed next; plain numbers as they are."""
        return {number: self.brought(value) for number, value in values.items()}

    def brought(self, value: Any) -> Any:
        if isinstance(value, Packed):
            return self._unpacked(value, self._moved)
        return self._moved(value) if isinstance(value, torch.Tensor) else value

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to(self.device)

    def _unpacked(
        self, packed: Packed, move: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        if is_for_main_memory(packed):
            return move(unpack(packed))
        return unpack(replace(packed, parts=tuple(move(part) for part in packed.parts)))

    def place(self, item: Any) -> Any:
        """The same structure with its tensors on the device; a module is moved as it is."""
        if self.device.type == "cpu":
            return item
        return with_tensors(item, self._placed, self.device)

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype == torch.float64 and not self._has_doubles:
            tensor = tensor.float()
        placed: torch.Tensor = self.brought(tensor)
        return placed

    def leave(self, tensors: Sequence[torch.Tensor]) -> Leaving:
        """To be called when what made the tensors has been computed."""
        return Leaving(tuple(tensor.detach().to("cpu") for tensor in tensors))

    def finish_pass(self) -> None:
        """Wait until what was asked of the device is computed."""
        self._module.synchronize()


class QueuedCopies(Copies):
    """Two queues for copies, one for each direction, beside that of the computing."""

    runs_ahead = True

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._incoming = self._module.Stream(device)
        self._outgoing = self._module.Stream(device)
        self._pass_end = self._event()

    @property
    def _computing(self) -> Any:
        return self._module.current_stream(self.device)

    def _event(self) -> Any:
        """One that is waited for asleep: the processor has other things to do meanwhile."""
        try:
            return self._module.Event(blocking=True)
        except TypeError:  # not every kind of device has others
            return self._module.Event()

    # ---- in ----

    def set_out(self, value: Any) -> Any:
        if not isinstance(value, Packed) and not _is_on_host(value):
            return value
        # In this block, as everywhere, the device is that of the queue, also for pinning memory.
        with self._module.stream(self._incoming):
            if isinstance(value, Packed):
                moved = self._unpacked(value, self._upload)
            else:
                moved = self._upload(value.detach())
            has_come = self._event()
            has_come.record(self._incoming)
        return OnTheWay(value, moved, has_come)

    def _upload(self, tensor: torch.Tensor) -> torch.Tensor:
        return pinned(tensor).to(self.device, non_blocking=True)

    def brought(self, value: Any) -> Any:
        value = self.set_out(value)
        if not isinstance(value, OnTheWay):
            return super().brought(value)
        self._computing.wait_event(value.has_come)
        value.moved.record_stream(self._computing)
        return value.moved

    # ---- out ----

    def leave(self, tensors: Sequence[torch.Tensor]) -> Leaving:
        if all(_is_on_host(tensor) for tensor in tensors):  # only handed on
            return Leaving(tuple(tensor.detach() for tensor in tensors))
        plain = [_plain(tensor.detach()) for tensor in tensors]
        self._outgoing.wait_stream(self._computing)
        with self._module.stream(self._outgoing):
            copies = tuple(self._download(tensor) for tensor in plain)
            copied = self._event()
            copied.record(self._outgoing)
        return Leaving(copies, copied.synchronize)

    def _download(self, plain: torch.Tensor) -> torch.Tensor:
        if _is_on_host(plain):
            return plain
        plain.record_stream(self._outgoing)
        return pinned_room(plain).copy_(plain, non_blocking=True)

    def finish_pass(self) -> None:
        self._pass_end.record(self._computing)
        self._pass_end.synchronize()


def original(value: Any) -> Any:
    """As it came, whether or not it has set out for the device."""
    return value.original if isinstance(value, OnTheWay) else value


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    """In memory that a device can copy from by itself."""
    if tensor.layout is not torch.strided or tensor.is_pinned():
        return tensor
    return pinned_room(tensor).copy_(tensor)


def pinned_room(like: torch.Tensor) -> torch.Tensor:
    """With an element for each of its elements, also where those share memory (`expand`)."""
    return torch.empty_like(like, device="cpu", pin_memory=True)


def _is_on_host(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """With elements side by side, for which no queue but the one that has them needs memory."""
    return tensor.to_dense().resolve_conj().resolve_neg().contiguous()


def _has_doubles(device: torch.device) -> bool:
    try:
        torch.empty(0, dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):
        return False
    return True


def copies_for(device: torch.device) -> Copies:
    has_queues = hasattr(torch.get_device_module(device), "Stream") and device.type != "cpu"
    return QueuedCopies(device) if has_queues else Copies(device)
