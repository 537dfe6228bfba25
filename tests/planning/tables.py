"""Synthetic models and pools for planning tests and benchmarks.

A table of random numbers would not do: the search relies on what real tables guarantee (a longer
stage never needs fewer weights, a shared weight counts once). So a fake model is drawn first,
as operators that use storages, and its tables are counted from it.

Knows nothing about the profiler; the two meet only in `CutCosts`.
"""

import importlib.util
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

from ravnest.plan import ProviderSpec
from ravnest.planning.costing.costs import REFERENCE_GFLOPS, CutCosts, Floats, TrainingMemory

GB = 1e9


@dataclass(frozen=True)
class Storage:
    """A block of memory and the operators (by position) that use it; the first one makes it."""

    size: int
    users: tuple[int, ...]


@dataclass(frozen=True)
class FakeModel:
    """Operators 0 … n-1 as three lists of storages and two vectors."""

    flops: Floats
    working: Floats
    weights: tuple[Storage, ...]
    frozen: tuple[Storage, ...]
    tensors: tuple[Storage, ...]


def distinct_bytes(storages: Iterable[Storage], operators: int) -> Floats:
    """[p, q]: total size of the storages with at least one user among operators p … q-1."""
    corners = np.zeros((operators + 2, operators + 2))
    for storage in storages:
        previous = -1
        for user in sorted(set(storage.users)):
            # `user` is the first one inside the interval: previous < p <= user < q.
            corners[previous + 1, user + 1] += storage.size
            corners[user + 1, user + 1] -= storage.size
            previous = user
    counted: Floats = corners.cumsum(axis=0).cumsum(axis=1)[: operators + 1, : operators + 1]
    return np.triu(counted)


def shared_bytes(storages: Iterable[Storage], operators: int) -> Floats:
    """[p, q]: total size of the storages used both inside and outside of operators p … q-1."""
    storages = list(storages)
    contained = np.zeros((operators + 1, operators + 1))
    for storage in storages:
        contained[: min(storage.users) + 1, max(storage.users) + 1 :] += storage.size
    return np.triu(distinct_bytes(storages, operators) - contained)


def crossing_bytes(tensors: Iterable[Storage], operators: int) -> Floats:
    """[p]: total size of the tensors made before operator p and used at or after it."""
    crossing = np.zeros(operators + 2)
    for tensor in tensors:
        crossing[min(tensor.users) + 1] += tensor.size
        crossing[max(tensor.users) + 1] -= tensor.size
    total: Floats = crossing.cumsum()[: operators + 1]
    return total


def largest(values: Floats) -> Floats:
    """[p, q]: the largest of values[p:q]."""
    table = np.zeros((len(values) + 1, len(values) + 1))
    for p in range(len(values)):
        table[p, p + 1 :] = np.maximum.accumulate(values[p:])
    return table


def prefix(values: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(values)])


def cut_costs(
    model: FakeModel, cuts: Sequence[int] | None = None, *, averaged: bool = False
) -> CutCosts:
    """The tables of a fake model; `cuts` lists the legal cut points, by default all of them.

    Unless weights are `averaged`, several clusters need no more memory than one.
    """
    n = len(model.flops)
    at = np.arange(n + 1) if cuts is None else np.array(sorted({0, n, *cuts}))
    block = np.ix_(at, at)
    trained = np.zeros(n)
    for weight in model.weights:
        trained[list(weight.users)] = 1
    flops = prefix(model.flops)
    crossing = crossing_bytes(model.tensors, n)
    trainable = distinct_bytes(model.weights, n)
    updated = np.zeros(n)
    for weight in model.weights:
        updated[min(weight.users)] += 1
    owned = [Storage(weight.size, (min(weight.users),)) for weight in model.weights]
    return CutCosts(
        operator=at.astype(np.int64),
        compute_s=(flops / (REFERENCE_GFLOPS * 1e9))[at],
        forward_s=(flops / 3 / (REFERENCE_GFLOPS * 1e9))[at],
        calls=3.0 * at,
        updates=prefix(updated)[at],
        flops=flops[at],
        forward_bytes=crossing[at],
        entering_bytes=crossing[at],
        backward_bytes=crossing[at],
        weight_bytes=(trainable + distinct_bytes(model.frozen, n))[block],
        trainable_bytes=trainable[block],
        activation_bytes=distinct_bytes(model.tensors, n)[block],
        working_bytes=largest(model.working)[block],
        updating_bytes=np.zeros_like(trainable)[block],
        averaged_bytes=distinct_bytes(owned if averaged else (), n)[block],
        tied_bytes=shared_bytes(model.weights, n)[block],
        parameter_operators=prefix(trained).astype(np.int64)[at],
    )


def random_model(
    rng: np.random.Generator, operators: int, *, weight_gb: float = 1.0, skips: float = 0.1
) -> FakeModel:
    """Uneven on purpose: most operators are cheap, a few are heavy, some tensors skip ahead."""
    n = operators
    flops = rng.lognormal(0.0, 1.0, n) * 2e11 / n
    sizes = rng.lognormal(0.0, 1.5, n) * (rng.random(n) < 0.6)
    sizes *= weight_gb * GB / max(sizes.sum(), 1e-9)
    tensors = []
    for i in range(n - 1):
        reach = int(rng.integers(2, max(3, min(n // 4, 16)))) if rng.random() < skips else 1
        users = (i, min(n - 1, i + reach))
        tensors.append(Storage(int(rng.lognormal(0.0, 0.8) * 2e6), users))
    weights = [Storage(int(size), (i,)) for i, size in enumerate(sizes) if size >= 1]
    if n > 4 and rng.random() < 0.3:
        weights.append(Storage(int(0.05 * weight_gb * GB), (0, n - 1)))
    frozen = [Storage(int(rng.integers(1, 10**6)), (int(rng.integers(n)),)) for _ in range(n // 8)]
    return FakeModel(
        flops=flops,
        working=rng.random(n) * 4e6,
        weights=tuple(weights),
        frozen=tuple(frozen),
        tensors=tuple(tensors),
    )


def chain_model(operators: int, *, weight_bytes: int, tensor_bytes: int, flops: float) -> FakeModel:
    """Equal operators in a row: every figure of a plan can be worked out by hand."""
    n = operators
    return FakeModel(
        flops=np.full(n, flops),
        working=np.zeros(n),
        weights=tuple(Storage(weight_bytes, (i,)) for i in range(n)),
        frozen=(),
        tensors=tuple(Storage(tensor_bytes, (i, i + 1)) for i in range(n - 1)),
    )


def random_costs(
    seed: int, operators: int, *, weight_gb: float = 1.0, averaged: bool = False
) -> CutCosts:
    model = random_model(np.random.default_rng(seed), operators, weight_gb=weight_gb)
    return cut_costs(model, averaged=averaged)


def whole_model_bytes(costs: CutCosts, training: TrainingMemory | None = None) -> float:
    """What one provider needs to train the model alone."""
    return float(costs.memory_at(..., 0, 1, training or TrainingMemory())[0, -1])


def provider(
    id: int, *, memory_gb: float = 16.0, mbps: float = 100.0, gflops: float = REFERENCE_GFLOPS
) -> ProviderSpec:
    return ProviderSpec(
        id=id,
        address=f"10.0.{id // 256}.{id % 256}:8080",
        memory_bytes=int(memory_gb * GB),
        bandwidth_mbps=mbps,
        gflops=gflops,
    )


def random_pool(
    seed: int, size: int, *, memory_gb: tuple[float, float] = (2.0, 32.0)
) -> list[ProviderSpec]:
    """Wildly unequal: speed within 1:64, links within 1:100, memory within the given range."""
    rng = np.random.default_rng(seed)

    def spread(low: float, high: float) -> Floats:
        drawn: Floats = np.exp(rng.uniform(np.log(low), np.log(high), size))
        return drawn

    figures = zip(spread(*memory_gb), spread(10, 1000), spread(10, 640), strict=True)
    return [
        provider(i, memory_gb=float(m), mbps=float(b), gflops=float(g))
        for i, (m, b, g) in enumerate(figures)
    ]


def brute_force() -> ModuleType:
    """The benchmarks' yardstick, which is not on the path of the tests."""
    path = Path(__file__).parents[2] / "benchmarks" / "planning" / "brute_force.py"
    spec = importlib.util.spec_from_file_location("brute_force", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
