"""How long it takes to understand, plan and cut real models, and how exact the figures are.

    python3 dev.py bench planning            (all of it)
    python benchmarks/planning/real_models.py [--big]

Seconds depend on the machine, so each is also given as a multiple of one forward and backward pass
of the same model on the same machine. `--big` plans 70 B parameters on the meta device.
"""

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks" / "stage")]

from models import GPT  # noqa: E402
from torchvision_shim import import_torchvision  # noqa: E402

from ravnest import clusterize  # noqa: E402
from ravnest.planning.study import study  # noqa: E402

Case = tuple[str, Callable[[], nn.Module], Callable[[], torch.Tensor]]


def resnet50() -> nn.Module:
    model: nn.Module = import_torchvision().models.resnet50()
    return model


CASES: tuple[Case, ...] = (
    ("ResNet-50, batch of 8 at 96x96", resnet50, lambda: torch.rand(8, 3, 96, 96)),
    ("GPT, 12 layers of 256, batch of 8x128", GPT, lambda: torch.randint(0, 512, (8, 128))),
)


def pool(providers: int) -> dict[str, Any]:
    figures = [(16, 1000, 200), (8, 1000, 100), (4, 500, 50), (4, 500, 50)]
    return {
        str(number): {
            "IP": f"127.0.0.1:{8080 + number}",
            "benchmarks": dict(
                zip(("ram", "bandwidth", "gflops"), figures[number % len(figures)], strict=True)
            ),
        }
        for number in range(providers)
    }


def one_pass(model: nn.Module, batch: torch.Tensor) -> float:
    """Seconds of forward and backward, the second time."""
    seconds = 0.0
    for _ in range(2):
        start = time.perf_counter()
        model(batch).sum().backward()
        seconds = time.perf_counter() - start
    model.zero_grad(set_to_none=True)
    return seconds


def cut(build: Callable[[], nn.Module], batch: torch.Tensor) -> dict[str, float]:
    """Seconds for the study alone, for everything without and with the self-check."""
    model = build()
    unit = one_pass(model, batch)
    start = time.perf_counter()
    study(model, (batch,))
    results = {"study": time.perf_counter() - start}
    for label, check in (("clusterize, no check", False), ("clusterize", True)):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "node_configs.json").write_text(json.dumps(pool(4)))
            start = time.perf_counter()
            clusterize(model, (batch,), node_data=folder, quiet=True, self_check=check)
            results[label] = time.perf_counter() - start
    return results | {"one pass": unit}


def seventy_billion() -> dict[str, float]:
    """A Llama-like model of 70 B parameters, planned for 64 machines without its weights."""
    import_torchvision()
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32_000,
        hidden_size=8192,
        intermediate_size=28_672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        use_cache=False,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
        tokens = torch.zeros(2, 512, dtype=torch.long)
    machines = {
        str(number): {
            "IP": f"127.0.0.1:{8080 + number}",
            "benchmarks": {"ram": 64 if number % 2 else 32, "bandwidth": 1000, "gflops": 20_000},
        }
        for number in range(64)
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "node_configs.json").write_text(json.dumps(machines))
        start = time.perf_counter()
        plan = clusterize(model, example_kwargs={"input_ids": tokens}, node_data=folder, quiet=True)
        seconds = time.perf_counter() - start
    return {
        "parameters (G)": plan.model.parameters / 1e9,
        "seconds": seconds,
        "peak memory (GB)": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "clusters": len(plan.clusters),
        "providers used": sum(len(cluster.stages) for cluster in plan.clusters),
    }


def report(*, big: bool) -> None:
    torch.set_num_threads(1)
    for name, build, batch in CASES:
        torch.manual_seed(0)
        results = cut(build, batch())
        unit = results["one pass"]
        figures = "  ".join(
            f"{label} {seconds:.1f} s ({seconds / unit:.0f} passes)"
            for label, seconds in results.items()
            if label != "one pass"
        )
        print(f"{name}: {figures}", flush=True)
    if big:
        figures = "  ".join(f"{label} {value:.1f}" for label, value in seventy_billion().items())
        print(f"70 B on the meta device: {figures}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--big", action="store_true", help="also plan 70 B parameters")
    report(big=parser.parse_args().big)
