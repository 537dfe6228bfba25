"""Is a stage, loaded from its package, as fast as the model it was cut from?

    python3 dev.py bench stage

Forward and backward of the whole model as one stage, and as two stages one after the other, over
the eager module; all in one run, alternating, so that noise disturbs both alike. Below 1.0 the
stage is faster. `--compile` adds a stage compiled by torch.compile.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from models import CASES, Case

from ravnest.planning.study import Study, study
from ravnest.stage.local import LocalPipeline
from ravnest.stage.package import load_package, write_package


def pipeline(studied: Study, cuts: list[int], *, compiled: bool = False) -> LocalPipeline:
    modules = []
    with tempfile.TemporaryDirectory() as folder:
        for graph in studied.stages(cuts):
            path = Path(folder) / str(graph.stage)
            weights = {spec.name: studied.held[spec.name].tensor for spec in graph.tensors}
            write_package(path, graph, weights, plan_id="bench", cluster=0)
            module = load_package(path).module()
            if compiled:
                module.compile()
            modules.append(module)
    return LocalPipeline(modules)


def middle_cut(studied: Study) -> list[int]:
    costs = studied.costs
    inner = range(1, costs.cut_points - 1)
    half = min(inner, key=lambda p: abs(costs.compute_s[p] - costs.compute_s[-1] / 2))
    return [int(costs.operator[half])]


def contenders(case: Case, *, compiled: bool) -> dict[str, Callable[[], None]]:
    """One forward and backward, in several ways, on equal weights and data."""
    torch.manual_seed(0)
    model = case.build().train()
    batch = case.batch()
    studied = study(model, (batch,))

    def eager() -> None:
        model.zero_grad(set_to_none=True)
        model(batch).sum().backward()

    def one_stage(module: torch.nn.Module) -> Callable[[], None]:
        def run() -> None:
            module.zero_grad(set_to_none=True)
            module(batch)[0].sum().backward()

        return run

    def in_stages(stages: LocalPipeline) -> Callable[[], None]:
        def run() -> None:
            for stage in stages.stages:
                stage.zero_grad(set_to_none=True)
            stages.step(((batch,), {}), torch.sum)

        return run

    ways = {
        "eager": eager,
        "one stage": one_stage(pipeline(studied, []).stages[0]),
        "two stages": in_stages(pipeline(studied, middle_cut(studied))),
    }
    if compiled:
        ways["one stage, compiled"] = one_stage(pipeline(studied, [], compiled=True).stages[0])
    return ways


def measure(ways: dict[str, Callable[[], None]], rounds: int, seconds: float) -> dict[str, float]:
    """Median over rounds of each way's time divided by eager's in the same round."""
    repeats = {}
    for name, run in ways.items():
        run()
        start = time.perf_counter()
        run()
        repeats[name] = max(1, int(seconds / (time.perf_counter() - start)))
    ratios: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        times = {}
        for name, run in ways.items():
            start = time.perf_counter()
            for _ in range(repeats[name]):
                run()
            times[name] = (time.perf_counter() - start) / repeats[name]
        for name in ways:
            ratios[name].append(times[name] / times["eager"])
    return {name: statistics.median(values) for name, values in ratios.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--compile", action="store_true", help="also measure torch.compile")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.2, help="per way and round")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    for case in CASES:
        ways = contenders(case, compiled=options.compile)
        results[case.name] = measure(ways, options.rounds, options.seconds)
        figures = "  ".join(f"{name} {ratio:.2f}" for name, ratio in results[case.name].items())
        print(f"{case.name:38s} {figures}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
