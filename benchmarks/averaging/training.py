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

BATCHES, WARM_UP, ROWS, WIDTH = 160, 20, 64, 1000
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

    def __init__(self) -> None:
        self.seconds = self.processor_s = 0.0

    def on_step_end(self, progress: Progress) -> None:
        if progress.step == WARM_UP:
            self.seconds, self.processor_s = -time.perf_counter(), -time.process_time()
        elif progress.step == BATCHES:
            self.seconds += time.perf_counter()
            self.processor_s += time.process_time()


def provider(mode: str) -> None:
    torch.set_num_threads(1)
    how, every = MODES[mode]
    data: Any = [torch.randn(ROWS, WIDTH)] * (2 * BATCHES)
    node = Node(
        optimizer="sgd",
        optimizer_params={"lr": 1e-4},
        criterion=lambda outputs, batch: (outputs - batch).square().mean(),
        labels=data,
        reduce_factor=every,
        averaging=Averaging(mode=how),  # type: ignore[arg-type]
        transport="tcp",
    )
    watch = Watch()
    with node:
        Trainer(node=node, train_loader=data, callbacks=[watch]).train()
        print(watch.processor_s, watch.seconds, node.stages.get("rounds/0", 0.0), flush=True)


def measure(mode: str) -> tuple[float, float]:
    """Batches per second of a cluster after the warm-up, and how many rounds there were."""
    with (
        two_hosts(MBPS) as chain,
        tempfile.TemporaryDirectory() as folder,
    ):
        machine = {"ram": 4.0, "bandwidth": float(MBPS)}
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
        ends = [
            subprocess.Popen(
                chain.inside(r, [sys.executable, "-m", "benchmarks.averaging.training", mode]),
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
    seconds = max(float(words[-2]) for words in printed)
    return (BATCHES - WARM_UP) / seconds, float(printed[0][-1])


def main() -> None:
    print(f"12 MB averaged over {MBPS} Mbit/s; batches per second of a cluster")
    found: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
    for _ in range(3):
        for mode in MODES:
            found[mode].append(measure(mode))
    middle = {mode: statistics.median(speed for speed, _ in found[mode]) for mode in MODES}
    for mode, speed in middle.items():
        print(
            f"  {mode:29} {speed:6.2f}  {speed / middle['no rounds']:.3f}  "
            f"{found[mode][-1][1]:.0f} rounds",
            flush=True,
        )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        provider(sys.argv[1])
    else:
        main()
