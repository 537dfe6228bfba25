"""Whatever reads the model's output reads the pipeline's: by index, by key and by attribute."""

from collections import UserDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from access import same_access
from harness import compare, even_cuts, load_stages
from torch import Tensor, nn
from transformers.utils import ModelOutput
from zoo_models.entry import output_loss

from ravnest.planning.study import study
from ravnest.stage import structure

A, B = torch.tensor([1.0]), torch.tensor([2.0])


class Counted(NamedTuple):
    count: Tensor
    index: Tensor


@dataclass
class Valued(ModelOutput):
    logits: Tensor | None = None
    loss: Tensor | None = None
    values: Tensor | None = None
    get: Tensor | None = None


class Batch(UserDict):  # shows its items as attributes, like the one of transformers
    def __getattr__(self, name: str) -> Any:
        if name != "data" and name in self.data:
            return self.data[name]
        raise AttributeError(name)


class Reshaped(nn.Module):
    def __init__(self, make: Any) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4))
        self.make = make

    def forward(self, x: Tensor) -> Any:
        return self.make(self.layers(x))


OUTPUTS = {
    "named tuple": lambda y: Counted(y, 2 * y),
    "torch.max": lambda y: torch.max(y, 1),
    "nested": lambda y: {"top": [torch.topk(y, 2), None], "all": (y.sort(1), 3)},
    "library": lambda y: Valued(logits=y, values=2 * y, get=3 * y),
    "mapping": lambda y: Batch({"values": y, "none": None, "logits": 2 * y}),
}


@pytest.mark.parametrize("make", OUTPUTS.values(), ids=list(OUTPUTS))
def test_access_that_works_on_the_models_output_works_on_the_pipelines(
    make: Any, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = Reshaped(make)

    def inputs(rows: int) -> Any:
        return (torch.randn(rows, 4),), {}

    studied = study(model, *inputs(4))
    pipeline = load_stages(studied, even_cuts(studied, 2), tmp_path)

    errors = compare(model, pipeline, studied, inputs, _loss, (4, 3))
    assert errors.worst() <= 1e-5


def _loss(output: Any) -> Tensor:
    leaves: list[Tensor] = []
    structure.flatten(output, leaves, "output")
    return output_loss(leaves)


# ---- the comparison is able to fail ----------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (Counted(A, B), (A, B)),
        (torch.max(torch.ones(1, 2), 1), tuple(torch.max(torch.ones(1, 2), 1))),
        (Valued(logits=A, values=B), {"logits": A, "values": B}),
        (Valued(logits=A), Counted(A, B)),
        (Batch({"values": A}), Valued(logits=None, values=A)),
        ({"a": A, "b": B}, {"b": B, "a": A}),
        ((A, B), [A, B]),
        ([A], [A, B]),
        ([A, 1], [A, 2]),
        ([A, None], [A, B]),
    ],
    ids=range(10),
)
def test_access_that_does_not_work_is_found(expected: Any, found: Any) -> None:
    with pytest.raises((AssertionError, AttributeError, KeyError, TypeError)):
        list(same_access(expected, found))


def test_every_way_is_tried() -> None:
    output = Valued(logits=A, values=B)
    ways = {way for way, _, _ in same_access(output, output)}
    assert ways == {
        *("['logits']", "['values']", "[0]", "[-2]", "[1]", "[-1]", ".logits", ".values"),
    }
