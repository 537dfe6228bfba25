"""Does a stage take as much memory as the plan says?

    python3 dev.py bench memory

Real providers on loopback; each says by how much its process has grown at most since before it had
a stage. Beside it the plan's prediction. The rest of a process (Python, torch, gRPC) is in neither.
Linux only: it reads /proc.
"""

import re
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import msgspec  # noqa: E402
from jobs import JOBS, Job  # noqa: E402
from local import equal_pool, free_addresses, printed_by  # noqa: E402

from ravnest import clusterize  # noqa: E402
from ravnest.plan import Plan  # noqa: E402
from ravnest.rundir import RunDir  # noqa: E402


def plan(folder: Path, job: Job) -> Plan:
    # About what a link carries here, beside everything else that two cores do.
    machine = {"ram": job.ram_gb, "bandwidth": 3_000, "gflops": 50}
    run = equal_pool(folder, free_addresses(job.stages), machine)
    return clusterize(
        job.make_model(),
        (job.make_batch(),),
        node_data=run.root,
        min_cluster_size=job.stages,
        max_clusters=1,
        idle_gain=float("inf"),
        quiet=True,
    )


def measure(name: str, job: Job) -> None:
    with tempfile.TemporaryDirectory() as where:
        folder = Path(where)
        made = plan(folder, job)
        printed = printed_by(
            [sys.executable, str(HERE / "provider.py"), name, str(job.batches)],
            RunDir(folder / "node_data"),
            folder,
            # Freed memory goes back at once, so that what is resident is what tensors take.
            {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "262144"},
        )
    found = re.findall(r"PEAK (\d+) (-?\d+) window (\d+)", printed)
    peaks = {int(stage): int(peak) for stage, peak, _ in found}
    windows = {int(stage): int(window) for stage, _, window in found}
    for stage, growth, steps in re.findall(r"GROWTH (\d+) (-?\d+) after (\d+)", printed):
        print(f"{name}: stage {stage} grew by {int(growth) / 1e6:.1f} MB from step 200 to {steps}")
    if "GROWTH" in printed:
        return
    print(f"{name}, {made.clusters[0].micro_batches} micro-batches")
    for stage in made.clusters[0].stages:
        predicted, peak = stage.memory.total, peaks[stage.index]
        parts = "  ".join(
            f"{part} {getattr(stage.memory, part) / 1e6:.0f}"
            for part in msgspec.structs.asdict(stage.memory)
        )
        print(
            f"  stage {stage.index}: predicted {predicted / 1e6:4.0f} MB"
            f"  found {peak / 1e6:4.0f} MB"
            f"  {peak / predicted:.2f}   in flight {stage.in_flight}, {windows[stage.index]}"
            f"{', recomputed' if stage.recompute else ''}"
            f"   ({parts})",
            flush=True,
        )


def main() -> None:
    wanted = sys.argv[1:]
    for name, job in JOBS.items():
        if not wanted or any(part in name for part in wanted):
            measure(name, job)


if __name__ == "__main__":
    main()
