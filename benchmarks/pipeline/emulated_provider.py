"""One provider of the emulated pipeline: everything is real, but its stage sleeps to compute."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parent))

import emulated
import torch
from delayed import DelayedNetwork

from ravnest import Node


def slowly(compute: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """Takes so long in all, whatever the computing itself takes."""

    def slow(*args: Any) -> Any:
        started = time.perf_counter()
        result = compute(*args)
        time.sleep(max(0.0, seconds - (time.perf_counter() - started)))
        return result

    return slow


def main(delay_s: float, batches: int, transport: Literal["grpc", "tcp"]) -> None:
    torch.set_num_threads(1)
    data = [torch.ones(emulated.ROWS, emulated.WIDTH)] * batches
    node = Node(
        optimizer=torch.optim.SGD,
        optimizer_params={"lr": 1e-3},
        criterion=torch.nn.MSELoss(),
        labels=data,
        micro_batches=emulated.PARTS,
        transport=transport,
        start=False,
    )
    plain = node._make_network
    node._make_network = lambda: DelayedNetwork(plain(), delay_s)
    node.start()
    runner = node.runtime.runner
    assert runner is not None
    passes: Any = runner._passes
    passes.forward = slowly(passes.forward, emulated.FORWARD_S)
    passes.backward = slowly(passes.backward, emulated.BACKWARD_S)
    seen = watch_backwards(runner)
    for batch in data if node.is_root else ():
        node.forward_compute(batch)
    node.wait_for_backwards()
    if node.is_root:
        node.finish_training()
    else:
        node.serve_until_trained()
    first, last = (seen[int(len(seen) * share)] for share in emulated.counted(batches))
    print("BUSY", node.document.stage, (last[1] - first[1]) / (last[0] - first[0]), flush=True)
    if node.is_root:
        print("WINDOW", runner.window.size, "STALE", runner.meter.worst_staleness, flush=True)
    node.close()


def watch_backwards(runner: Any) -> list[tuple[float, float]]:
    """When each micro-batch was done with, and how long the stage had computed until then."""
    seen: list[tuple[float, float]] = []
    backward = runner._backward

    def watched(instruction: Any) -> None:
        backward(instruction)
        seen.append((time.monotonic(), runner.meter.busy_s))

    runner._backward = watched
    return seen


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3])  # type: ignore[arg-type]
