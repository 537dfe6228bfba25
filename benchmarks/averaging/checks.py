"""What do the checks of a round cost? The same with and without them, in turn.

First the exchange alone: 100 MB between two members of one process, processor seconds. Then two
clusters of one provider each that train and average over a cable: batches per second, and per
second of the processor, which other work on the machine changes less. Without checks nothing is
measured and every round is taken over. Needs root.
"""

import statistics
import sys
import time

import pytest
import torch

from benchmarks.averaging.training import measure, provider
from ravnest.provider.averaging import exchange
from ravnest.provider.averaging.exchange import Exchange, Track
from ravnest.provider.averaging.witness import Watch, Witness

ELEMENTS, ROUNDS, RUNS, BATCHES = 25_000_000, 15, 9, 600
CABLES = {100: "always in a round", 1000: "background, every 20 updates"}
"""The most rounds that a fast line at home has room for, and those of a network of a company."""


def exchange_s(
    watches: list[Watch] | None, values: list[torch.Tensor], base: torch.Tensor
) -> float:
    members = (0, 1)
    tracks = [
        Track(own, ELEMENTS, base.clone(), changes=True, name="parameters", is_parameters=True)
        for own in values
    ]
    began = time.process_time()
    for track in tracks:
        track.divide(len(members))
    witnesses: list[Witness | None] = [None, None]
    if watches is not None:
        for watch in watches:
            watch.begin(members)
        pledges = [watches[k].pledge([tracks[k]], 1.0) for k in members]
        witnesses = [Witness(watches[k], [tracks[k]], [[0.5, 0.5]], pledges) for k in members]
    ends = [
        Exchange(0, 1, [tracks[k]], members, [0.5, 0.5], k, witness=witnesses[k]) for k in members
    ]
    line = [(1 - k, each) for k in members for each in ends[k].begin()]
    while line:
        to, (message, payload) = line.pop(0)
        assert isinstance(payload, torch.Tensor)
        onward = ends[to].arrived(message, payload.clone())
        if onward is not None:
            line.append((1 - to, onward))
    for witness in witnesses:
        if witness is not None:
            witness.applied()
    return time.process_time() - began


def no_length(values: torch.Tensor) -> float:
    return 0.0


def exchanges() -> None:
    torch.manual_seed(0)
    base = torch.randn(ELEMENTS)
    watches = [Watch(k) for k in (0, 1)]
    found: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(ROUNDS + 1):
        moved = [base + 0.01 * torch.randn(ELEMENTS) for _ in (0, 1)]
        for checked, taken in found.items():
            vectors = [vector.clone() for vector in moved]
            with pytest.MonkeyPatch.context() as patch:
                if not checked:
                    patch.setattr(exchange, "norm_of", no_length)
                taken.append(exchange_s(watches if checked else None, vectors, base))
    plain, checked_s = (statistics.median(found[checked][1:]) for checked in (False, True))
    more = checked_s - plain
    print(f"exchange of 100 MB between two members, medians of {ROUNDS}, processor seconds")
    print(f"  plain {plain:.3f}   checked {checked_s:.3f}   {more / 2 * 1e3:.1f} ms a member more")


def without_checks() -> None:
    def nothing(self: Witness, *_: object) -> None:
        return None

    exchange.norm_of = no_length
    for name in ("sends", "receives", "applied", "failed"):
        setattr(Witness, name, nothing)


def main() -> None:
    torch.set_num_threads(1)
    exchanges()
    print(f"two clusters that average 12 MB, checked / plain, medians of {RUNS} pairs")
    for mbps, mode in CABLES.items():
        ratios: list[list[float]] = [[], []]
        rounds: list[float] = []
        for _ in range(RUNS):
            plain, checked = (
                measure(mode, BATCHES, mbps, "checks", str(int(checks))) for checks in (0, 1)
            )
            for number, found in enumerate(ratios):
                found.append(checked[number] / plain[number])
            rounds.append(checked[2])
        print(f"  {mbps} Mbit/s, {mode}: {statistics.median(rounds):.0f} rounds")
        for what, found in zip(("a second", "a processor second"), ratios, strict=True):
            each = " ".join(f"{ratio:.3f}" for ratio in sorted(found))
            print(f"    batches {what}: {statistics.median(found):.3f} ({each})", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        if sys.argv[3] == "0":
            without_checks()
        provider(sys.argv[1], int(sys.argv[2]))
    else:
        main()
