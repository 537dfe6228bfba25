"""What do rounds cost training? Two clusters of one provider each, joined by a slow cable.

Rounds follow each other without a pause (reduce_factor=1), so that training is always in one;
beside it the same without rounds, and with blocking rounds every so many updates. Medians of three
runs in turn. Needs root.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.local import equal_pool
from benchmarks.wan.bucket import two_hosts
from ravnest import Averaging, Node, Trainer, clusterize
from ravnest.callbacks import Callback, Progress

WARM_UP, ROWS, WIDTH = 20, 64, 1000
MBPS = 100
MODES: dict[str, tuple[str, int]] = {
    "no rounds": ("background", 10**9),
    "always in a round": ("background", 1),
    "blocking, every 20 updates": ("blocking", 20),
    "background, every 20 updates": ("background", 20),
}


def make_model() -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(3):  # 12 MB of weights
        layers += [nn.Linear(WIDTH, WIDTH), nn.GELU()]
    return nn.Sequential(*layers)


class Watch(Callback):
    """Times the batches after the first ones."""

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.seconds = self.processor_s = 0.0

    def on_step_end(self, progress: Progress) -> None:
        if progress.step == WARM_UP:
            self.seconds, self.processor_s = -time.perf_counter(), -time.process_time()
        elif progress.step == self.batches:
            self.seconds += time.perf_counter()
            self.processor_s += time.process_time()


def provider(mode: str, batches: int) -> None:
    torch.set_num_threads(1)
    how, every = MODES[mode]
    data: Any = [torch.randn(ROWS, WIDTH)] * (2 * batches)
    node = Node(
        optimizer="sgd",
        optimizer_params={"lr": 1e-4},
        criterion=lambda outputs, batch: (outputs - batch).square().mean(),
        labels=data,
        reduce_factor=every,
        averaging=Averaging(mode=how),  # type: ignore[arg-type]
        transport="tcp",
    )
    watch = Watch(batches)
    with node:
        Trainer(node=node, train_loader=data, callbacks=[watch]).train()
        print(watch.processor_s, watch.seconds, node.stages.get("rounds/0", 0.0), flush=True)


def measure(
    mode: str, batches: int = 160, mbps: int = MBPS, module: str = "training", *more: str
) -> tuple[float, float, float]:
    """Batches per second of a cluster after the warm-up, the same per second of a processor, and
    how many rounds there were."""
    with (
        two_hosts(mbps) as chain,
        tempfile.TemporaryDirectory() as folder,
    ):
        machine = {"ram": 4.0, "bandwidth": float(mbps)}
        run = equal_pool(Path(folder), [f"{where}:7401" for where in chain.addresses], machine)
        clusterize(
            make_model(),
            (torch.randn(ROWS, WIDTH),),
            node_data=run.root,
            min_cluster_size=1,
            max_clusters=2,
            idle_gain=1e9,
            quiet=True,
        )
        command = [sys.executable, "-m", f"benchmarks.averaging.{module}", mode, str(batches)]
        ends = [
            subprocess.Popen(
                chain.inside(r, [*command, *more]),
                stdout=subprocess.PIPE,
                text=True,
                cwd=folder,
                env={
                    **os.environ,
                    "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
                    "RAVNEST_NODE": f"node_{r}",
                    "RAVNEST_NODE_DATA": str(run.root),
                    "OMP_NUM_THREADS": "1",
                },
            )
            for r in (0, 1)
        ]
        printed = [end.communicate(timeout=300)[0].split() for end in ends]
    if any(end.returncode for end in ends):
        raise SystemExit("a provider failed")
    processor_s, seconds, rounds = zip(
        *([float(word) for word in words[-3:]] for words in printed), strict=True
    )
    timed = batches - WARM_UP
    return timed / max(seconds), 2 * timed / sum(processor_s), rounds[0]


def main() -> None:
    print(f"12 MB averaged over {MBPS} Mbit/s; batches per second of a cluster")
    found: dict[str, list[tuple[float, float, float]]] = {mode: [] for mode in MODES}
    for _ in range(3):
        for mode in MODES:
            found[mode].append(measure(mode))
    middle = {mode: statistics.median(speed for speed, *_ in found[mode]) for mode in MODES}
    for mode, speed in middle.items():
        print(
            f"  {mode:29} {speed:6.2f}  {speed / middle['no rounds']:.3f}  "
            f"{found[mode][-1][2]:.0f} rounds",
            flush=True,
        )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        provider(sys.argv[1], int(sys.argv[2]))
    else:
        main()
