"""How fast the devices of this machine train: a few layers forwards and backwards for about a
second each.

A program of its own (`python -m ravnest.agent.workload DEVICES THREADS SECONDS`), because it loads
torch and the agent must not. Prints one line of JSON. Speed is counted as planning counts it:
multiplications and additions of matrix products and convolutions, two for each pair, of forward and
backward, by the time they take.

Small layers leave a fast device waiting for the next call. So they grow until that makes them no
faster, or the time or the memory for it is spent; and they are measured as jobs compute them: in
single precision, and with autocast in each of the half ones.
"""

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """What was found on one device."""

    device: str
    device_name: str = ""
    device_memory_bytes: int = 0
    """Of the device in all; 0 for the processor, whose memory is the machine's."""
    device_free_bytes: int = 0
    device_ids: tuple[str, ...] = ()
    """By which programs of its maker know it: its number in the world, its place on the bus."""
    gflops: float = 0.0
    """In single precision."""
    rates: dict[str, float] = {}
    """GFLOP/s with autocast, by the job's `precision`; without those it cannot compute in."""
    torch: str = ""
    problem: str = ""
    """Why it cannot be used, if it cannot: a card that is broken, or full."""


ALL = "all"
_WIDTH, _LAYERS = 512, 4
_CHANNELS, _IMAGE, _IMAGES = 64, 32, 16
_KERNEL = 3
_SIZES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Of rows, widths, channels and images, in parts of those above."""
_USUAL_SIZE = 1.0
"""From here on it matters whether a larger one is faster."""
_RISES = 1.05
_LEAST_STEPS = 3
_HALF = {"bf16": "bfloat16", "fp16": "float16"}
_MEMORY_SHARE = 4
"""A part of what is free."""


def step_flops(size: float) -> int:
    """Forward, gradients of inputs, gradients of weights."""
    width, channels, images = _scaled(size)
    products = 2 * width**3 * _LAYERS
    return 3 * (products + 2 * images * _IMAGE * _IMAGE * channels**2 * _KERNEL**2)


def step_bytes(size: float) -> int:
    """About: weights, their gradients, and every activation with its gradient; twice, for casts."""
    width, channels, images = _scaled(size)
    return 2 * 4 * (4 * _LAYERS * width**2 + 6 * images * channels * _IMAGE**2)


def _scaled(size: float) -> tuple[int, int, int]:
    return int(_WIDTH * size), int(_CHANNELS * size), max(1, int(_IMAGES * size))


def rising(
    seconds_for: Callable[[float, float], float], budget_s: float, most_bytes: int | None
) -> float:
    """FLOP/s: of larger and larger steps, until they are no faster. `seconds_for` says what a step
    of a size takes, measured for so long."""
    best = 0.0
    each_s = budget_s / 4
    for size in _SIZES:
        if best:
            expected_s = step_flops(size) / best
            too_long = expected_s * _LEAST_STEPS > budget_s
            too_large = most_bytes is not None and step_bytes(size) * _MEMORY_SHARE > most_bytes
            if too_long or too_large:
                break
        try:
            rate = step_flops(size) / max(seconds_for(size, each_s), 1e-9)
        except RuntimeError:  # what it lacks for this size is not known; smaller ones went well
            if not best:
                raise
            break
        if size > _USUAL_SIZE and rate < _RISES * best:
            return max(best, rate)
        best = max(best, rate)
    return best


class _Steps:
    """On one device."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch, self._device = torch, device
        self._is_apart = device.type != "cpu"

    def seconds_for(self, size: float, budget_s: float, *, autocast: Any = None) -> float:
        step = self._made(size, autocast)
        # The first steps choose kernels and fill caches.
        taken = [self._timed(step, 1), self._timed(step, 1)]
        if taken[-1] > budget_s:
            return taken[-1]
        # Between two looks at the clock, enough to do that looking costs nothing.
        at_once = max(1, min(50, int(budget_s / 8 / taken[-1]))) if self._is_apart else 1
        taken = []
        while sum(taken) * at_once < budget_s or len(taken) < _LEAST_STEPS:
            taken.append(self._timed(step, at_once))
        # What others on this machine took for a moment does not count; what it always lacks does.
        return sorted(taken)[len(taken) // 4]

    def _timed(self, step: Callable[[], None], times: int) -> float:
        """Of one step, until the device has computed it."""
        self._finish()
        began = time.perf_counter()
        for _ in range(times):
            step()
        self._finish()
        return (time.perf_counter() - began) / times

    def _finish(self) -> None:
        if self._is_apart:
            self._torch.get_device_module(self._device).synchronize()

    def _made(self, size: float, autocast: Any) -> Callable[[], None]:
        torch, device = self._torch, self._device
        nn = torch.nn
        width, channels, images = _scaled(size)
        layers = [nn.Linear(width, width, bias=False) for _ in range(_LAYERS)]
        with_relu = (each for layer in layers for each in (layer, nn.ReLU()))
        linear = nn.Sequential(*with_relu).to(device)
        convolution = nn.Conv2d(channels, channels, _KERNEL, padding=1, bias=False).to(device)
        rows = torch.ones(width, width, device=device, requires_grad=True)
        pictures = torch.ones(images, channels, _IMAGE, _IMAGE, device=device, requires_grad=True)

        def step() -> None:
            around = torch.autocast(device.type, autocast) if autocast else contextlib.nullcontext()
            with around:
                total = linear(rows).sum() + convolution(pictures).sum()
            total.backward()

        return step


def measure(asked: str, threads: int, seconds: float) -> Speed:
    import torch

    torch.set_num_threads(threads)
    # Several workers may share the processor: cpu:0, cpu:1. To torch it is one.
    device = torch.device("cpu" if asked.startswith("cpu") else asked)
    if device.type != "cpu" and device.index is not None:
        torch.get_device_module(device).set_device(device)
    total, free, name = _memory(torch, device)
    steps, most = _Steps(torch, device), free or None
    gflops = rising(steps.seconds_for, seconds, most) / 1e9
    rates = {}
    for precision, dtype in _HALF.items():
        kind = getattr(torch, dtype)

        def timed(size: float, budget_s: float, kind: Any = kind) -> float:
            return steps.seconds_for(size, budget_s, autocast=kind)

        with contextlib.suppress(RuntimeError):  # not every device has it
            rates[precision] = round(rising(timed, seconds / 4, most) / 1e9, 2)
    return Speed(
        device=asked,
        device_name=name,
        device_memory_bytes=total,
        device_free_bytes=free,
        device_ids=_ids(torch, device),
        gflops=round(gflops, 2),
        rates=rates,
        torch=str(torch.__version__),
    )


def devices_of(asked: str) -> list[str]:
    """Each by its number. `all`: every GPU, or the processor where there is none."""
    import torch

    if asked != ALL:
        return [_numbered(each) for each in asked.split(",")]
    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind, None)
        if module is not None and module.is_available():
            return [f"{kind}:{number}" for number in range(module.device_count())]
    return ["mps"] if torch.backends.mps.is_available() else ["cpu"]


def _tried(device: str, threads: int, seconds: float) -> Speed:
    try:
        return measure(device, threads, seconds)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        return Speed(device=device, problem=str(error).strip().split("\n")[0] or repr(error))


def _numbered(device: str) -> str:
    return f"{device}:0" if device in ("cuda", "xpu") else device


def _memory(torch: Any, device: Any) -> tuple[int, int, str]:
    """In all, free, and what the device is called."""
    if device.type == "cpu":
        return 0, 0, ""
    if device.type == "mps":
        total = torch.mps.recommended_max_memory()
        return total, total - torch.mps.driver_allocated_memory(), "Apple GPU"
    module = torch.get_device_module(device)
    free, total = module.mem_get_info(device)
    return total, free, module.get_device_name(device)


def _ids(torch: Any, device: Any) -> tuple[str, ...]:
    """As `agent/vram.py` asks for it."""
    if device.type in ("cpu", "mps"):
        return ()
    known = torch.get_device_module(device).get_device_properties(device)
    found = [str(uuid).removeprefix("GPU-")] if (uuid := getattr(known, "uuid", None)) else []
    if (bus := getattr(known, "pci_bus_id", None)) is not None:
        domain = getattr(known, "pci_domain_id", 0)
        found.append(f"{domain:04x}:{bus:02x}:{getattr(known, 'pci_device_id', 0):02x}.0")
    return tuple(found)


def main(argv: list[str]) -> int:
    asked, threads, seconds = argv
    devices = devices_of(asked)
    share = max(1, int(threads) // len(devices))
    found = [_tried(device, share, float(seconds)) for device in devices]
    print(msgspec.json.encode(found).decode(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
