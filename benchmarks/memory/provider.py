"""One provider; says by how much its memory has grown at most since before it had a stage."""

import gc
import resource
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from jobs import JOBS

from ravnest import Node, Trainer

PAGE = resource.getpagesize()
EARLY = 200
"""Updates after which nothing is new any more."""


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def most() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def reset_most() -> None:
    """Importing has needed more than it left; that is not to be counted."""
    Path("/proc/self/clear_refs").write_text("5")


def high_water() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return most()


def load_libraries() -> None:
    """A little of everything that a stage does, so that nothing is loaded for it later."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten()
    )
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    q = torch.ones(1, 2, 16, 8, requires_grad=True)
    torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()


def watch_updates(runner: Any) -> list[int]:
    """Resident memory after every update."""
    seen: list[int] = []
    apply = runner._updater.apply

    def watched(*args: Any, **kwargs: Any) -> None:
        apply(*args, **kwargs)
        seen.append(resident())

    runner._updater.apply = watched
    return seen


def main(name: str, steps: int) -> None:
    torch.set_num_threads(1)
    job = JOBS[name]
    batch = job.make_batch()
    data = [batch] * steps
    load_libraries()
    gc.collect()
    reset_most()
    before = resident()
    node = Node(
        optimizer=torch.optim.AdamW,
        optimizer_params={"lr": 1e-4},
        criterion=job.criterion,
        labels=data,
    )
    runner = node.runtime.runner
    assert runner is not None
    seen = watch_updates(runner)
    trainer = Trainer(node=node, train_loader=data, epochs=2)
    trainer.train()
    stage = node.document.stage
    print("PEAK", stage, high_water() - before, "window", runner.window.size)
    if len(seen) > EARLY:
        print("GROWTH", stage, seen[-1] - seen[EARLY], "after", len(seen), flush=True)
    node.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
