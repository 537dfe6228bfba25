"""One provider of the emulated pipeline: everything is real, but its stage sleeps to compute."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import emulated
import torch
from delayed import DelayedNetwork

import ravnest.node
from ravnest import Node


def slowly(compute: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """Takes so long in all, whatever the computing itself takes."""

    def slow(*args: Any) -> Any:
        started = time.perf_counter()
        result = compute(*args)
        time.sleep(max(0.0, seconds - (time.perf_counter() - started)))
        return result

    return slow


def main(delay_s: float, batches: int) -> None:
    torch.set_num_threads(1)
    DelayedNetwork.delay_s = delay_s
    ravnest.node.GrpcNetwork = DelayedNetwork  # type: ignore[misc]
    data = [torch.ones(emulated.ROWS, emulated.WIDTH)] * batches
    node = Node(
        optimizer=torch.optim.SGD,
        optimizer_params={"lr": 1e-3},
        criterion=torch.nn.MSELoss(),
        labels=data,
        micro_batches=emulated.PARTS,
        start=False,
    )
    node.start()
    runner = node.runtime.runner
    assert runner is not None
    passes: Any = runner._passes
    passes.forward = slowly(passes.forward, emulated.FORWARD_S)
    passes.backward = slowly(passes.backward, emulated.BACKWARD_S)
    if not node.is_root:
        node.serve_until_trained()
        node.close()
        return
    for batch in data:
        node.forward_compute(batch)
    node.wait_for_backwards()
    ended = [batch.at for batch in node.finished_batches()]
    pace = emulated.MEASURED / (
        ended[-1 - emulated.TAIL] - ended[-1 - emulated.TAIL - emulated.MEASURED]
    )
    print("BUSY", pace * emulated.PARTS * (emulated.FORWARD_S + emulated.BACKWARD_S))
    print("WINDOW", runner.window.size, "STALE", runner.meter.worst_staleness)
    node.finish_training()
    node.close()


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
