"""Does a deep pipeline over slow links keep its busiest stage busy?

    .venv/bin/python benchmarks/pipeline/emulated.py

Pipelines of 4, 8 and 16 providers, each a process of its own with everything that a provider has;
only the computing is replaced by sleep, so that two cores can play sixteen machines, and every
message is held back by 0, 20 or 80 ms. With --wan the providers live in network namespaces and talk
over emulated wide-area links (benchmarks/wan) instead: rate, delay, jitter and losses for real TCP.

All stages take equally long, so each of them should be the busiest: the result is the part of the
time in which a stage is at work, of the busiest and of the least busy one, once the pipeline is
full and its windows have grown.
"""

import argparse
import re
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "wan")]

import torch  # noqa: E402
from local import equal_pool, free_addresses, printed_by  # noqa: E402
from network import chain_of_hosts  # noqa: E402
from torch import nn  # noqa: E402

from ravnest import clusterize  # noqa: E402
from ravnest.rundir import RunDir  # noqa: E402

PROVIDER = str(HERE / "emulated_provider.py")
WIDTH, ROWS, PARTS = 64, 8, 4
FORWARD_S, BACKWARD_S = 0.02, 0.04
"""Of one micro-batch."""
MEASURED, TAIL = 50, 10
"""Batches that are counted, and batches after them, when the pipeline may be running empty."""
Result = tuple[float, str]


def plan(folder: Path, addresses: list[str]) -> RunDir:
    node_data = equal_pool(folder, addresses, {"ram": 1, "bandwidth": 1000, "gflops": 50})
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in addresses))
    made = clusterize(
        model,
        (torch.randn(ROWS, WIDTH),),
        node_data=node_data.root,
        min_cluster_size=len(addresses),
        max_clusters=1,
        idle_gain=float("inf"),
        quiet=True,
    )
    order = [stage.provider.id for stage in made.clusters[0].stages]
    if order != sorted(order):  # hosts in a row know their neighbours only
        raise SystemExit(f"equal machines were put into another order: {order}")
    return node_data


def warm_up(stages: int, delay_s: float) -> int:
    """Batches until the windows have grown: some ten times through the pipeline and back."""
    way_s = stages * (FORWARD_S + BACKWARD_S) + 2 * (stages - 1) * delay_s
    return 20 + int(10 * way_s / (PARTS * (FORWARD_S + BACKWARD_S)))


def counted(batches: int) -> tuple[float, float]:
    """Between which shares of the run it is looked at."""
    return (batches - MEASURED - TAIL) / batches, (batches - TAIL) / batches


def on_loopback(stages: int, delay_s: float, transport: str) -> Result:
    batches = warm_up(stages, delay_s) + MEASURED + TAIL
    command = [sys.executable, PROVIDER, str(delay_s), str(batches), transport]
    return measure(free_addresses(stages), command)


def over_wan(
    stages: int, delay_s: float, transport: str, mbps: float, jitter_ms: float, loss: float
) -> Result:
    batches = warm_up(stages, delay_s) + MEASURED + TAIL
    nature = ["--mbps", str(mbps), "--delay-ms", str(1e3 * delay_s)]
    nature += ["--jitter-ms", str(jitter_ms), "--loss", str(loss)]
    with chain_of_hosts(stages, *nature) as chain:
        addresses = [f"{address}:9000" for address in chain.addresses]
        prefix = chain.namespaces[0].removesuffix("0")
        here = f'exec ip netns exec {prefix}${{RAVNEST_NODE#node_}} "$@"'
        command = ["sh", "-c", here, "sh", sys.executable, PROVIDER, "0", str(batches)]
        command.append(transport)
        return measure(addresses, command)


def measure(addresses: list[str], command: list[str]) -> Result:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        node_data = plan(folder, addresses)
        printed = printed_by(command, node_data, folder, {"OMP_NUM_THREADS": "1"})
    busy = [float(part) for part in re.findall(r"BUSY \d+ ([\d.]+)", printed)]
    (window,) = re.findall(r"(WINDOW .*)", printed)
    return max(busy), f"least {min(busy):.3f}   {window}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stages", type=int, nargs="*", default=[4, 8, 16])
    parser.add_argument("--delays", type=float, nargs="*", default=[0.0, 0.02, 0.08])
    parser.add_argument("--wan", action="store_true", help="across network namespaces; needs root")
    parser.add_argument("--transport", choices=["grpc", "tcp"], default="grpc")
    parser.add_argument("--mbps", type=float, default=100.0)
    parser.add_argument("--jitter-ms", type=float, default=2.0)
    parser.add_argument("--loss", type=float, default=0.0)
    options = parser.parse_args()
    for stages in options.stages:
        for delay_s in options.delays:
            if options.wan:
                busy, window = over_wan(
                    stages,
                    delay_s,
                    options.transport,
                    options.mbps,
                    options.jitter_ms,
                    options.loss,
                )
            else:
                busy, window = on_loopback(stages, delay_s, options.transport)
            print(
                f"{stages:3} stages  {1e3 * delay_s:3.0f} ms  busiest {busy:.3f}  {window}",
                flush=True,
            )


if __name__ == "__main__":
    main()
