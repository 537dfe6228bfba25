"""Does a codec make a link of 100 Mbit/s and 50 ms there and back as good as an unlimited one?

    python3 dev.py bench compression            with the other parts of this benchmark, as root
    .venv/bin/python benchmarks/compression/thin_link.py --rounds 3

A GPT in two stages: real providers, one process and one network namespace each, joined by the
emulated link of benchmarks/wan. The unlimited link is the same emulator without rate and delay.
Every contestant runs once in every round, and starts from the same plan; counted are batches after
the pipeline has filled and its window has grown. Medians over rounds, as a fraction of that of the
unlimited link. With `--kept FILE` rounds that were made before count, and only the missing ones are
made.

"narrow" has so little to compute for every byte that a plain link is the slowest part of the
pipeline; "usual" is the GPT of the pipeline benchmark, with half the rows. "faster" are machines of
500 GFLOP/s with two layers each: messages and codecs are real, computing is sleep, so it is also
the one that does not mind what else the machine has to do.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "wan")]

import torch  # noqa: E402
from gpt import Block  # noqa: E402
from local import equal_pool, printed_by  # noqa: E402
from network import chain_of_hosts  # noqa: E402
from torch import nn  # noqa: E402

from ravnest import clusterize  # noqa: E402
from ravnest.rundir import RunDir  # noqa: E402

MBPS = 100.0
UNLIMITED = "unlimited, none"
CODECS = ("none", "fp16", "int8", "int4", "auto")
LETTERS = 96
TAIL = 3
"""Batches after those that are counted, when the pipeline may be running empty."""
Outcome = dict[str, float | str]


@dataclass(frozen=True)
class Size:
    width: int
    layers: int
    heads: int
    length: int
    rows: int
    warm_up: int
    measured: int
    stage_s: float = 0.0
    """What a batch takes on a stage, if that is emulated."""

    @property
    def batches(self) -> int:
        return self.warm_up + self.measured + TAIL

    @property
    def edge_bytes(self) -> int:
        """What a batch brings over the link in each direction, without a codec."""
        return 4 * self.rows * self.length * self.width


SIZES = {
    "narrow": Size(48, 2, 2, 64, 512, warm_up=8, measured=16),
    "usual": Size(384, 6, 6, 128, 8, warm_up=8, measured=10),
    # The layers that sleep stands for are left out; embedding and head are real.
    "faster": Size(512, 0, 8, 128, 16, warm_up=30, measured=50, stage_s=0.15),
}


class Gpt(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.words = nn.Embedding(LETTERS, size.width)
        self.positions = nn.Embedding(size.length, size.width)
        self.blocks = nn.ModuleList(Block(size.width, size.heads) for _ in range(size.layers))
        self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, LETTERS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words) + self.positions(torch.arange(words.shape[1], device=words.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def data_of(size: Size) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = (size.rows, size.length)
    return [torch.randint(0, LETTERS, shape, generator=generator) for _ in range(size.batches)]


def loss_of(outputs: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, 1), batch.roll(-1, 1).flatten())


def plan(size: Size, folder: Path) -> RunDir:
    addresses = ["127.0.0.1:9000", "10.9.0.2:9000"]  # those of a chain of two hosts
    # A fast link, so that the cut is where it makes the stages equal, whatever the link costs.
    node_data = equal_pool(folder, addresses, {"ram": 8, "bandwidth": 10_000, "gflops": 50})
    torch.manual_seed(0)
    made = clusterize(
        Gpt(size),
        (data_of(size)[0],),
        node_data=node_data.root,
        min_cluster_size=2,
        max_clusters=1,
        idle_gain=float("inf"),
        quiet=True,
    )
    order = [stage.provider.id for stage in made.clusters[0].stages]
    if order != sorted(order):
        raise SystemExit(f"equal machines were put into another order: {order}")
    return node_data


def measure(
    name: str, codec: str, nature: Sequence[str], planned: RunDir, transport: str
) -> Outcome:
    """One run of two providers."""
    provider = [sys.executable, str(HERE / "thin_link_provider.py"), name, codec, transport]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        run = RunDir(Path(shutil.copytree(planned.root, folder / "node_data")))
        with chain_of_hosts(2, *nature) as chain:
            prefix = chain.namespaces[0].removesuffix("0")
            here = f'exec ip netns exec {prefix}${{RAVNEST_NODE#node_}} "$@"'
            command = ["sh", "-c", here, "sh", *provider]
            printed = printed_by(command, run, folder, {"OMP_NUM_THREADS": "1"})
            before_link_s = seconds_of_children()
        link_s = seconds_of_children() - before_link_s
    stages = [json.loads(found) for found in re.findall(r"STAGE (\{.*\})", printed)]
    root, leaf = sorted(stages, key=lambda stage: stage["stage"])
    return {
        "rows_per_s": root["rows_per_s"],
        "busy": f"{root['busy']:.2f} / {leaf['busy']:.2f}",
        "mbps": f"{root['mbps']:.0f} / {leaf['mbps']:.0f}",
        "used": f"{root['codec']} / {leaf['codec']}",
        "window": root["window"],
        # While the link was up; the emulator has little to do before and after training.
        "link_cpu": link_s / root["trained_s"],
    }


def seconds_of_children() -> float:
    """CPU time of all processes that have ended and been waited for."""
    times = os.times()
    return times.children_user + times.children_system


def contestants(delay_ms: float) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    yield UNLIMITED, "none", ()
    thin = ("--mbps", str(MBPS), "--delay-ms", str(delay_ms))
    for codec in CODECS:
        yield f"{MBPS:g} Mbit/s, {codec}", codec, thin


def report(name: str, found: dict[str, list[Outcome]]) -> None:
    size = SIZES[name]
    carried = size.edge_bytes / 1e6
    print(
        f"\n{name}: width {size.width}, {size.layers} layers, batches of {size.rows} x "
        f"{size.length}; each way {carried:.2f} MB a batch, {8 * carried / MBPS:.2f} s of the link"
    )
    print(
        "link and codec           rows/s  of unlimited (each round)        busy, by stage  ", end=""
    )
    print("Mbit/s sent   in flight  emulator's CPU  codecs")
    reference = [float(outcome["rows_per_s"]) for outcome in found[UNLIMITED]]
    for contestant, outcomes in found.items():
        speeds = [float(outcome["rows_per_s"]) for outcome in outcomes]
        each = " ".join(f"{s / r:.2f}" for s, r in zip(speeds, reference, strict=False))
        ratio = statistics.median(speeds) / statistics.median(reference)
        last = outcomes[-1]
        cpu = statistics.median(float(outcome["link_cpu"]) for outcome in outcomes)
        print(
            f"{contestant:22} {statistics.median(speeds):8.1f}  {ratio:.2f} ({each:20})  "
            f"{last['busy']:>20}  {last['mbps']:>12}  {last['window']:>9}  {cpu:13.2f}  "
            f"{last['used']}"
        )


def rounds_in(kept: Path, where: Sequence[object]) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = {}
    for line in kept.read_text().splitlines():
        *made_where, contestant, outcome = json.loads(line)
        if made_where == list(where):
            found.setdefault(contestant, []).append(outcome)
    return found


def compare(name: str, rounds: int, delay_ms: float, transport: str, kept: Path) -> None:
    where = (name, delay_ms, transport)
    with tempfile.TemporaryDirectory() as folder:
        planned = plan(SIZES[name], Path(folder))
        for number in range(rounds):
            everyone = list(contestants(delay_ms))
            first = number % len(everyone)  # nobody is always the last
            for contestant, codec, nature in everyone[first:] + everyone[:first]:
                if number < len(rounds_in(kept, where).get(contestant, ())):
                    continue
                outcome = measure(name, codec, nature, planned, transport)
                with kept.open("a") as file:
                    file.write(json.dumps([*where, contestant, outcome]) + "\n")
    report(name, rounds_in(kept, where))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="*", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay-ms", type=float, default=25.0, help="one way")
    parser.add_argument("--transport", choices=["grpc", "tcp"], default="tcp")
    parser.add_argument("--kept", type=Path, help="rounds made before, and now")
    options = parser.parse_args(arguments)
    if os.geteuid():
        print("thin link: left out, network namespaces need root")
        return
    with tempfile.TemporaryDirectory() as folder:
        kept = options.kept or Path(folder) / "found.jsonl"
        kept.touch()
        for name in options.sizes:
            compare(name, options.rounds, options.delay_ms, options.transport, kept)


if __name__ == "__main__":
    main()
