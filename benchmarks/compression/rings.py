"""What do codecs between clusters save, and what do they cost in loss?

Clusters of two stages that average every so many updates, in the background, on a virtual clock;
each has its own shard. Bytes are held against those of data parallel training that sums all
gradients in every step, in a ring and in single precision: 2 (m - 1) / m times 4 bytes for each
parameter, by each of m members.
"""

import itertools
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(BENCHMARKS / "convergence"), str(BENCHMARKS / "staleness")]

import chargpt  # noqa: E402
import text  # noqa: E402
from edges import Outcome, declining, seed_noise  # noqa: E402
from virtual import BACKWARD, FORWARD  # noqa: E402
from virtual_clusters import Cluster, Links, VirtualClusters  # noqa: E402

from ravnest.planning.costing.costs import Division  # noqa: E402
from ravnest.provider.assembly import StageSettings  # noqa: E402
from ravnest.provider.averaging.share import Rules  # noqa: E402
from ravnest.provider.leaf import LeafSettings  # noqa: E402

STAGES = 2
LAYERS = 2
STEPS = 192
ROWS = 8
TRIED = (
    (4, "none"),
    (4, "topk"),
    (16, "none"),
    (16, "int8"),
    (16, "int4s"),
    (16, "topk"),
    (32, "none"),
    (32, "int8"),
)


@dataclass(frozen=True)
class Ring:
    clusters: int
    every: int
    codec: str
    seed: int

    @property
    def file(self) -> str:
        return f"ring_{self.clusters}_{self.every}_{self.codec}_{self.seed}.json"

    @property
    def cost(self) -> float:
        return 250.0 * self.clusters


def jobs(seeds: int) -> list[Ring]:
    return [Ring(m, *tried, seed) for m in (2, 4) for tried in TRIED for seed in range(seeds)]


def train(job: Ring) -> Outcome:
    torch.set_num_threads(1)
    seed_noise(job.seed)
    model = text.make_model(job.seed, LAYERS)
    parts = Division(batch_rows=ROWS, least_rows=1).parts(STAGES)
    shards = [
        list(itertools.islice(text.shard(number, job.clusters, ROWS), STEPS))
        for number in range(job.clusters)
    ]
    clusters = [
        Cluster(
            STAGES,
            StageSettings(
                update=declining(3e-3, STEPS),
                leaf=LeafSettings(
                    criterion=chargpt.loss_of, labels=[rows[:, 1:] for rows in shard]
                ),
                micro_batches=parts,
                averaging=Rules(job.every, blocking=False),
            ),
            parts=parts,
            unit=1 / ((FORWARD + BACKWARD) * STAGES),
            delay=0.002,
        )
        for shard in shards
    ]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    world = VirtualClusters(
        model,
        shards[0][0][:, :-1],
        clusters,
        codec=None if job.codec == "none" else job.codec,
        links=Links(0.02, 4.0 * parameters),
    )
    world.feed([rows[:, :-1] for rows in shard] for shard in shards)
    world.clock.run()
    return {
        "loss": text.held_out_loss(model, world.mean_state()),
        "total": world.ring_traffic.total,
        "rounds": world.rounds,
        "per_step": 2 * (job.clusters - 1) * 4 * parameters * STEPS,
    }


def report(found: dict[Ring, Outcome]) -> None:
    print("clusters  every  codec   rounds   fewer bytes   held-out loss   gap, %   by seed")
    cases = dict.fromkeys((job.clusters, job.every, job.codec) for job in found)
    for clusters, every, codec in cases:
        mine = {
            j.seed: r
            for j, r in found.items()
            if (j.clusters, j.every) == (clusters, every) and j.codec == codec
        }
        plain = {s: found[Ring(clusters, every, "none", s)] for s in mine}
        gaps = [100 * (mine[s]["loss"] / plain[s]["loss"] - 1) for s in mine]
        fewer = statistics.fmean(r["per_step"] / r["total"] for r in mine.values())
        print(
            f"{clusters:8} {every:6}  {codec:6}"
            f" {statistics.fmean(r['rounds'] for r in mine.values()):7.1f} {fewer:12.0f}x"
            f" {statistics.fmean(r['loss'] for r in mine.values()):15.4f}"
            f" {statistics.fmean(gaps):+8.2f}   {' '.join(f'{gap:+.2f}' for gap in gaps)}"
        )
