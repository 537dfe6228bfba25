"""What do the checks of a round cost? The same with and without them, in turn.

First the exchange alone: 100 MB between two members of one process, processor seconds. Then two
clusters of one provider each that train and average over loopback, rounds every 20 updates: batches
per second, and processor seconds for them, which other work on the machine changes less. Without
checks there are no sketches and every round is taken over.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.averaging.training import ROWS, WIDTH, make_model, provider
from benchmarks.local import equal_pool, free_addresses
from ravnest import clusterize
from ravnest.provider.averaging.bounds import Pledge
from ravnest.provider.averaging.exchange import Exchange, Track
from ravnest.provider.averaging.testimony import Testimony
from ravnest.provider.averaging.witness import Watch, Witness

ELEMENTS, ROUNDS, RUNS = 25_000_000, 15, 15
MODE = "background, every 20 updates"


def exchange_s(watches: list[Watch] | None, vectors: list[torch.Tensor]) -> float:
    members = (0, 1)
    tracks = [
        [Track(vector, ELEMENTS, name="parameters", is_parameters=True)] for vector in vectors
    ]
    began = time.process_time()
    pledges = []
    for watch, own in zip(watches or [], tracks, strict=False):
        watch.begin(members)
        pledges.append(watch.pledge(own, 1.0, has_ended=False))
    ends = [
        Exchange(
            *(0, 1, tracks[k], members, [0.5, 0.5], k),
            watch=None if watches is None else watches[k],
            pledges=pledges,
        )
        for k in members
    ]
    line = [(1 - k, each) for k in members for each in ends[k].begin()]
    while line:
        to, (message, payload) = line.pop(0)
        assert isinstance(payload, torch.Tensor)
        onward = ends[to].arrived(message, payload.clone())
        if onward is not None:
            line.append((1 - to, onward))
    for end in ends:
        if end.witness is not None:
            found = end.witness.judge(*end.witness.statement())
            assert not found, found
            end.witness.applied()
    return time.process_time() - began


def exchanges() -> None:
    torch.manual_seed(0)
    start = torch.randn(ELEMENTS)
    watches = [Watch(k) for k in (0, 1)]
    for watch in watches:
        watch.starts_from("parameters", start)
    found: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(ROUNDS + 1):
        moved = [start + 0.01 * torch.randn(ELEMENTS) for _ in (0, 1)]
        for checked, taken in found.items():
            vectors = [vector.clone() for vector in moved]
            taken.append(exchange_s(watches if checked else None, vectors))
        start = (moved[0] + moved[1]) / 2
    plain, checked_s = (statistics.median(found[checked][1:]) for checked in (False, True))
    more = checked_s - plain
    print(f"exchange of 100 MB between two members, medians of {ROUNDS}, processor seconds")
    print(f"  plain {plain:.3f}   checked {checked_s:.3f}   {more / 2 * 1e3:.1f} ms a member more")


class Unchecked(Testimony):
    """Believes everything."""

    def verdict(self) -> str | None:
        return ""


def without_checks() -> None:
    from ravnest.provider.averaging import ring

    def nothing(self: Witness, *_: object) -> None:
        return None

    def has_not_moved(self: Watch, tracks: Sequence[Track], weight: float, **_: object) -> Pledge:
        still = (0.0,) * len(tracks)
        return Pledge(still, max(weight, 1.0), still, still)

    ring.Testimony = Unchecked  # type: ignore[attr-defined]
    Watch.pledge = has_not_moved  # type: ignore[assignment,method-assign]
    for name in ("sends", "receives", "applied", "failed"):
        setattr(Witness, name, nothing)


def train(checked: bool) -> tuple[float, float]:
    """Seconds, and processor seconds of both clusters."""
    with tempfile.TemporaryDirectory() as folder:
        run = equal_pool(Path(folder), free_addresses(2), {"ram": 4.0, "bandwidth": 1000.0})
        clusterize(
            make_model(),
            (torch.randn(ROWS, WIDTH),),
            node_data=run.root,
            min_cluster_size=1,
            max_clusters=2,
            idle_gain=1e9,
            quiet=True,
        )
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
            "RAVNEST_NODE_DATA": str(run.root),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "benchmarks.averaging.checks", str(int(checked))]
        ends = [
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                text=True,
                cwd=folder,
                env={**environment, "RAVNEST_NODE": f"node_{rank}"},
            )
            for rank in (0, 1)
        ]
        printed = [end.communicate(timeout=300)[0].split() for end in ends]
    if any(end.returncode for end in ends):
        raise SystemExit("a provider failed")
    assert all(float(words[-1]) > 2 for words in printed), "there were no rounds"
    seconds = max(float(words[-2]) for words in printed)
    return seconds, sum(float(words[-3]) for words in printed)


def main() -> None:
    torch.set_num_threads(1)
    exchanges()
    pairs = [(train(checked=False), train(checked=True)) for _ in range(RUNS)]
    print(f"two clusters, 12 MB averaged every 20 updates, plain / checked, {RUNS} pairs")
    for number, what in enumerate(("seconds", "processor seconds")):
        ratios = sorted(plain[number] / checked[number] for plain, checked in pairs)
        found = " ".join(f"{ratio:.3f}" for ratio in ratios)
        print(f"  {what}: median {statistics.median(ratios):.3f}   ({found})", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        if sys.argv[1] == "0":
            without_checks()
        provider(MODE)
    else:
        main()
