"""How fast this machine trains: a few layers forwards and backwards for about a second.

A program of its own (`python -m ravnest.agent.workload DEVICE THREADS SECONDS`), because it loads
torch and the agent must not. Prints one line of JSON. Speed is counted as planning counts it:
multiplications and additions of matrix products and convolutions, two for each pair, of forward and
backward, by the time they take.
"""

import sys
import time

import msgspec


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """What was found."""

    device: str
    device_name: str = ""
    device_memory_bytes: int = 0
    """Of the device in all; 0 for the processor, whose memory is the machine's."""
    device_free_bytes: int = 0
    gflops: float
    torch: str


_WIDTH, _ROWS, _LAYERS = 512, 512, 4
_CHANNELS, _IMAGE, _IMAGES = 64, 32, 16
_KERNEL = 3
STEP_FLOPS = 3 * (
    2 * _ROWS * _WIDTH * _WIDTH * _LAYERS
    + 2 * _IMAGES * _IMAGE * _IMAGE * _CHANNELS * _CHANNELS * _KERNEL * _KERNEL
)
"""Forward, gradients of inputs, gradients of weights."""
_LEAST_STEPS = 3


def measure(asked: str, threads: int, seconds: float) -> Speed:
    import torch
    from torch import nn

    torch.set_num_threads(threads)
    device = torch.device(asked if asked != "auto" else _best(torch))
    linear = nn.Sequential(
        *(
            layer
            for _ in range(_LAYERS)
            for layer in (nn.Linear(_WIDTH, _WIDTH, bias=False), nn.ReLU())
        )
    ).to(device)
    convolution = nn.Conv2d(_CHANNELS, _CHANNELS, _KERNEL, padding=1, bias=False).to(device)
    rows = torch.ones(_ROWS, _WIDTH, device=device, requires_grad=True)
    images = torch.ones(_IMAGES, _CHANNELS, _IMAGE, _IMAGE, device=device, requires_grad=True)

    def step() -> float:
        began = time.perf_counter()
        total = linear(rows).sum() + convolution(images).sum()
        total.backward()
        # Brings a number back from the device: only then has everything been computed.
        total.item()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began

    # The first steps choose kernels and fill caches.
    step()
    step()
    taken: list[float] = []
    while sum(taken) < seconds or len(taken) < _LEAST_STEPS:
        taken.append(step())
    # What others on this machine took for a moment does not count; what it always lacks does.
    typical = sorted(taken)[len(taken) // 4]
    total, free, name = _memory(torch, device)
    return Speed(
        device=str(device),
        device_name=name,
        device_memory_bytes=total,
        device_free_bytes=free,
        gflops=round(STEP_FLOPS / typical / 1e9, 2),
        torch=str(torch.__version__),
    )


def _best(torch) -> str:  # type: ignore[no-untyped-def]
    if torch.cuda.is_available():
        return "cuda:0"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _memory(torch, device) -> tuple[int, int, str]:  # type: ignore[no-untyped-def]
    """In all, free, and what the device is called."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total, free, torch.cuda.get_device_name(device)
    if device.type == "mps":
        total = torch.mps.recommended_max_memory()
        return total, total - torch.mps.driver_allocated_memory(), "Apple GPU"
    return 0, 0, ""


def main(argv: list[str]) -> int:
    asked, threads, seconds = argv
    print(msgspec.json.encode(measure(asked, int(threads), float(seconds))).decode(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
