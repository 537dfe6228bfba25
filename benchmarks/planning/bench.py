"""How good are plans, and how long does planning take?

    python benchmarks/planning/bench.py [--json FILE] [--quick]

- against brute force: throughput of the plan over that of the best of all plans, on random models
  and pools of up to 8 providers; with the exact solution of small pools, and by search alone
- against equal cuts: one cluster with speeds 4:2:1:1, over cutting the model into equal parts
- time: pools of 64 and 1,000 wildly unequal providers on synthetic tables of 128 cut points, once
  with memory to spare (short pipelines) and once with little (long ones)
- real models: time to cut ResNet-50 and a 12-layer GPT, and 70 B parameters (not with --quick)

Every measurement is a function that returns plain rows; models and pools come from the tests.
"""

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "planning"), str(ROOT / "benchmarks" / "planning")]

import brute_force  # noqa: E402
import real_models  # noqa: E402
import tables  # noqa: E402

from ravnest.errors import PlanError  # noqa: E402
from ravnest.plan import ProviderSpec  # noqa: E402
from ravnest.planning.costing.costs import CutCosts, TrainingMemory  # noqa: E402
from ravnest.planning.search.clusters import PlanOptions, form_clusters  # noqa: E402
from ravnest.planning.search.coarse import coarsen  # noqa: E402
from ravnest.planning.search.partition import StageTables, best_cut, refine  # noqa: E402

Row = dict[str, Any]
TRAINING = TrainingMemory()
SPACIOUS, TIGHT = (2.0, 32.0), (0.5, 4.0)
"""Memory of providers in GB, for a model that needs about 4.5 GB in training."""


def rate(costs: CutCosts, pool: Sequence[ProviderSpec], options: PlanOptions) -> float:
    try:
        return form_clusters(costs, pool, options).steps_per_s
    except PlanError:
        return 0.0


def against_brute_force(sizes: Sequence[int], seeds: int, exact_up_to: int) -> Iterator[Row]:
    for size in sizes:
        for memory_gb in (SPACIOUS, TIGHT):
            ratios, seconds = [], []
            for seed in range(seeds):
                costs = tables.random_costs(seed, 16)
                pool = tables.random_pool(seed, size, memory_gb=memory_gb)
                best = brute_force.best_rate(costs, pool, TRAINING, min_cluster_size=2)
                if best == 0.0:
                    continue
                options = PlanOptions(idle_gain=1.0, exact_up_to=exact_up_to)
                started = time.perf_counter()
                ratios.append(rate(costs, pool, options) / best)
                seconds.append(time.perf_counter() - started)
            yield {
                "question": "ratio to brute force",
                "case": f"N={size}, {memory_gb[0]:g}-{memory_gb[1]:g} GB, "
                + ("exact" if size <= exact_up_to else "search"),
                "pools": len(ratios),
                "min": min(ratios),
                "mean": float(np.mean(ratios)),
                "seconds": max(seconds),
            }


def equal_cuts(costs: CutCosts, pool: Sequence[ProviderSpec]) -> float:
    """Batches per second of one cluster whose stages have equally many operators."""
    last, stages = costs.cut_points - 1, len(pool)
    points = [round(k * last / stages) for k in range(stages + 1)]
    return 1 / max(
        max(
            costs.compute_seconds(p, q, who.gflops) + costs.fixed_seconds(p, q, parts=1),
            max(costs.sent_bytes(p, q), costs.received_bytes(p, q)) / who.bytes_per_s,
        )
        for who, p, q in zip(pool, points[:-1], points[1:], strict=True)
    )


def against_equal_cuts(seeds: int) -> Iterator[Row]:
    models: dict[str, Callable[[int], CutCosts]] = {
        "equal layers": lambda _: tables.cut_costs(
            tables.chain_model(96, weight_bytes=10**7, tensor_bytes=10**5, flops=2e9)
        ),
        "random layers": lambda seed: tables.random_costs(seed, 96),
    }
    speeds = (200.0, 100.0, 50.0, 50.0)
    pool = [tables.provider(i, gflops=g, mbps=1000.0) for i, g in enumerate(speeds)]
    for name, model in models.items():
        ratios = []
        for seed in range(seeds):
            costs = model(seed)
            ratios.append(rate(costs, pool, PlanOptions(max_clusters=1)) / equal_cuts(costs, pool))
        yield {
            "question": "ratio to equal cuts, speeds 4:2:1:1",
            "case": name,
            "pools": len(ratios),
            "min": min(ratios),
            "mean": float(np.mean(ratios)),
        }


def planning_time(sizes: Sequence[int], seeds: int) -> Iterator[Row]:
    for size in sizes:
        for memory_gb in (SPACIOUS, TIGHT):
            seconds, rates, clusters, idle = [], [], [], []
            for seed in range(seeds):
                costs = tables.random_costs(seed, 127)
                pool = tables.random_pool(seed, size, memory_gb=memory_gb)
                started = time.perf_counter()
                layout = form_clusters(costs, pool)
                seconds.append(time.perf_counter() - started)
                rates.append(layout.steps_per_s)
                clusters.append(len(layout.clusters))
                idle.append(len(layout.idle))
            yield {
                "question": "planning time, 128 cut points",
                "case": f"N={size}, {memory_gb[0]:g}-{memory_gb[1]:g} GB",
                "pools": seeds,
                "seconds": max(seconds),
                "mean": float(np.mean(rates)),
                "clusters": float(np.mean(clusters)),
                "idle": float(np.mean(idle)),
            }


def cutting_time() -> Iterator[Row]:
    costs, pool = tables.random_costs(0, 127), tables.random_pool(0, 8)
    shared = StageTables(costs, TRAINING)
    for stages in (2, 3, 8):
        yield {
            "question": "one best cut, 128 cut points",
            "case": f"{stages} stages",
            "seconds": fastest(lambda n=stages: best_cut(costs, pool[:n], TRAINING, tables=shared)),
        }
    large = tables.random_costs(0, 2499)
    yield {
        "question": "coarsen 2,500 cut points",
        "case": "to 256",
        "seconds": fastest(lambda: coarsen(large, 256)),
    }
    coarse, roomy = coarsen(large, 256), tables.random_pool(0, 3, memory_gb=(64.0, 128.0))
    cut = best_cut(coarse.costs, roomy, TRAINING)
    assert cut is not None
    yield {
        "question": "refine on 2,500 cut points",
        "case": "3 stages",
        "seconds": fastest(lambda: refine(large, coarse, roomy, TRAINING, cut)),
    }


def fastest(call: Callable[[], object], repeats: int = 30) -> float:
    def once() -> float:
        started = time.perf_counter()
        call()
        return time.perf_counter() - started

    return min(once() for _ in range(repeats))


def print_table(rows: Sequence[Row]) -> None:
    columns = ["question", "case", "pools", "min", "mean", "clusters", "idle", "seconds"]
    cells = [columns] + [[shown(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[k]) for line in cells) for k in range(len(columns))]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))


def shown(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) and math.isfinite(value) else str(value)


def measure(quick: bool) -> Iterator[Row]:
    sizes, seeds = ((4, 6), 10) if quick else ((3, 5, 6, 7, 8), 40)
    yield from against_brute_force(sizes, seeds, exact_up_to=PlanOptions().exact_up_to)
    yield from against_brute_force(sizes, seeds, exact_up_to=0)
    yield from against_equal_cuts(seeds)
    yield from cutting_time()
    yield from planning_time((64,) if quick else (64, 1000), 2 if quick else 3)


def main() -> None:
    parser = argparse.ArgumentParser(description="Quality and time of planning.")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller pools")
    arguments = parser.parse_args()
    rows = list(measure(arguments.quick))
    print_table(rows)
    if arguments.json:
        machine = f"{platform.machine()}, Python {platform.python_version()}"
        arguments.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    if not arguments.quick:
        real_models.report(big=True)


if __name__ == "__main__":
    main()
