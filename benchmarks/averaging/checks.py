"""What do the checks of a round cost? The same with and without them, in turn.

First the exchange alone: 100 MB between two members of one process, processor seconds. Then two
clusters of one provider each that train and average over a cable: batches per second, and per
second of the processor, which other work on the machine changes less. Without checks there are no
sketches and every round is taken over. Needs root.
"""

import statistics
import sys
import time
from collections.abc import Sequence

import torch

from benchmarks.averaging.training import measure, provider
from ravnest.provider.averaging.bounds import Pledge
from ravnest.provider.averaging.exchange import Exchange, Track
from ravnest.provider.averaging.testimony import Testimony
from ravnest.provider.averaging.witness import Watch, Witness

ELEMENTS, ROUNDS, RUNS, BATCHES = 25_000_000, 15, 9, 600
CABLES = {100: "always in a round", 1000: "background, every 20 updates"}
"""The most rounds that a fast line at home has room for, and those of a network of a company."""


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
