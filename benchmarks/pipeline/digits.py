"""A model far too small to be divided: do three providers at least not slow it down?

    .venv/bin/python benchmarks/pipeline/digits.py

The network of `ravnest demo` on batches of 64, as one process with one thread and with two, and as
three providers of one thread each on this machine. Batches per second, of everything in turn
and several times; medians.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

import torch  # noqa: E402
from local import equal_pool, free_addresses, printed_by  # noqa: E402

from ravnest.demo import BATCH, DigitsNet  # noqa: E402

PROVIDERS, WARM_UP, MEASURED = 3, 100, 600


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(BATCH, 1, 8, 8, generator=generator)
    return [(images, torch.arange(BATCH) % 10)] * (WARM_UP + MEASURED)


def loss_of(outputs: torch.Tensor, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(outputs, batch[1])


def train_alone() -> float:
    torch.manual_seed(0)
    model = DigitsNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    started = 0.0
    for number, batch in enumerate(batches()):
        if number == WARM_UP:
            started = time.perf_counter()
        optimizer.zero_grad()
        loss_of(model(batch[0]), batch).backward()
        optimizer.step()
    return MEASURED / (time.perf_counter() - started)


def provide(transport: str) -> None:
    from ravnest import Node, Trainer
    from ravnest.callbacks import Callback, Progress

    class Watch(Callback):
        def on_step_end(self, progress: Progress) -> None:
            seconds.append(progress.seconds)

    seconds: list[float] = []
    torch.set_num_threads(1)
    data = batches()
    node = Node(
        optimizer=torch.optim.SGD,
        optimizer_params={"lr": 0.05, "momentum": 0.9},
        criterion=loss_of,
        labels=data,
        transport=transport,  # type: ignore[arg-type]
    )
    Trainer(node=node, train_loader=data, callbacks=[Watch()]).train()
    if node.is_root:
        print("PACE", MEASURED / (seconds[-1] - seconds[WARM_UP - 1]))


def alone(threads: int) -> float:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, __file__, "--alone"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return pace(done.stdout)


def together(transport: str) -> float:
    from ravnest import clusterize

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        machine = {"ram": 8, "bandwidth": 10_000, "gflops": 50}
        run = equal_pool(folder, free_addresses(PROVIDERS), machine)
        clusterize(
            DigitsNet(),
            (torch.zeros(BATCH, 1, 8, 8),),
            node_data=run.root,
            min_cluster_size=PROVIDERS,
            max_clusters=1,
            idle_gain=float("inf"),
            quiet=True,
        )
        command = [sys.executable, __file__, "--provide", transport]
        return pace(printed_by(command, run, folder, {"OMP_NUM_THREADS": "1"}))


def pace(printed: str) -> float:
    (found,) = re.findall(r"PACE ([\d.]+)", printed)
    return float(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--provide", choices=["grpc", "tcp"])
    options = parser.parse_args()
    if options.alone:
        print("PACE", train_alone())
    elif options.provide:
        provide(options.provide)
    else:
        contestants = {
            "one process, one thread": lambda: alone(1),
            "one process, two threads": lambda: alone(2),
            "three providers, gRPC": lambda: together("grpc"),
            "three providers, TCP": lambda: together("tcp"),
        }
        found = {name: [measure()] for name, measure in contestants.items()}
        for _ in range(options.rounds - 1):
            for name, measure in contestants.items():
                found[name].append(measure())
        for name, paces in found.items():
            print(f"{name:26} {statistics.median(paces):6.0f} batches/s   {paces}")


if __name__ == "__main__":
    main()
