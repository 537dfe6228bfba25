"""Hand-written networks whose point is the structure of their inputs and outputs."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo_models.entry import Inputs, ZooEntry, constant, floats, inputs

_WIDTH = 24


def _trunk(inside: int = 12) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inside, _WIDTH),
        nn.GELU(),
        nn.LayerNorm(_WIDTH),
        nn.Linear(_WIDTH, _WIDTH),
        nn.ReLU(inplace=True),
    )


class DictOutput(nn.Module):
    """Nested dict out, a keyword-only input, buffers persistent and not."""

    scale: Tensor
    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.trunk = _trunk()
        self.classify = nn.Sequential(nn.Linear(_WIDTH, 16), nn.ReLU(), nn.Linear(16, 3))
        self.regress = nn.Sequential(nn.Linear(_WIDTH, 16), nn.Tanh(), nn.Linear(16, 1))
        self.register_buffer("scale", torch.tensor(2.0))
        self.register_buffer("mask", torch.linspace(0.5, 1.5, _WIDTH), persistent=False)

    def forward(self, x: Tensor, *, bias: Tensor | None = None) -> dict[str, Any]:
        hidden = self.trunk(x) * self.mask
        if bias is not None:
            hidden = hidden + bias
        value = self.regress(hidden) * self.scale
        return {"class": self.classify(hidden), "regression": {"value": value, "hidden": hidden}}


@dataclasses.dataclass
class Detection:
    """A plain dataclass that nobody registered as a pytree."""

    boxes: Tensor
    scores: Tensor
    source: str = "zoo"


class DataclassOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = _trunk()
        self.boxes, self.scores = nn.Linear(_WIDTH, 4), nn.Linear(_WIDTH, 2)
        self.refine = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Detection:
        hidden = self.trunk(x)
        return Detection(self.refine(self.boxes(hidden)), self.scores(hidden).softmax(-1))


class Moments(NamedTuple):
    mean: Tensor
    log_variance: Tensor


class NamedTupleOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = _trunk()
        self.mean, self.log_variance = nn.Linear(_WIDTH, 5), nn.Linear(_WIDTH, 5)
        self.last = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Moments:
        hidden = self.trunk(x)
        return Moments(self.last(self.mean(hidden)), self.log_variance(hidden))


class NestedOutput(nn.Module):
    """Tuples in lists in tuples, with a repeated tensor, an integer tensor, a number and None."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = _trunk()
        self.heads = nn.ModuleList(nn.Linear(_WIDTH, size) for size in (2, 3, 4))

    def forward(self, x: Tensor) -> tuple[Any, ...]:
        hidden = self.trunk(x)
        a, b, c = (head(hidden) for head in self.heads)
        return a, ([b, (c, c.argmax(-1))], None), 7, a


class NestedInput(nn.Module):
    """A dict and a tuple of tensors as single arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = _trunk(6), _trunk(5)
        self.head = nn.Linear(_WIDTH, 3)

    def forward(self, batch: dict[str, Tensor], pair: tuple[Tensor, Tensor]) -> Tensor:
        left = self.left(batch["left"]) * pair[0]
        return self.head(left + self.right(batch["right"]) * pair[1])


class PythonArguments(nn.Module):
    """Numbers, flags and strings among the keyword arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = _trunk()
        self.hidden = nn.Linear(_WIDTH, _WIDTH)
        self.head = nn.Linear(_WIDTH, 4)

    def forward(
        self, x: Tensor, temperature: float = 1.0, normalise: bool = False, mode: str = "mean"
    ) -> Tensor:
        hidden = self.trunk(x)
        if mode == "residual":
            hidden = hidden + self.hidden(hidden)
        logits = self.head(hidden) / temperature
        return logits.log_softmax(-1) if normalise else logits


class VariableKeywords(nn.Module):
    """Inputs that arrive through ``**extra``, a tensor and a flag."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = _trunk()
        self.bias = nn.Linear(3, _WIDTH)
        self.head = nn.Linear(_WIDTH, 4)

    def forward(self, x: Tensor, **extra: Any) -> Tensor:
        hidden = self.trunk(x)
        if extra.get("conditioned"):
            hidden = hidden + self.bias(extra["condition"])
        return self.head(hidden)


class PassThrough(nn.Module):
    """Outputs that are an input, a parameter and a buffer, beside a computed one."""

    offset: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.trunk = _trunk()
        self.temperature = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("offset", torch.arange(3.0))
        self.head = nn.Linear(_WIDTH, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.head(self.trunk(x)) * self.temperature + self.offset
        return {"y": y, "x": x, "temperature": self.temperature, "offset": self.offset}


def _nested_inputs(batch: int) -> Inputs:
    sides = {"left": torch.randn(batch, 6), "right": torch.randn(batch, 5)}
    return (sides,), {"pair": (torch.randn(batch, _WIDTH), torch.randn(batch, 1))}


_ROWS = inputs(floats(12))

ENTRIES = (
    ZooEntry("dict_output", DictOutput, inputs(floats(12), bias=floats(_WIDTH))),
    ZooEntry("dataclass_output", DataclassOutput, _ROWS),
    ZooEntry("namedtuple_output", NamedTupleOutput, _ROWS),
    ZooEntry("nested_output", NestedOutput, _ROWS),
    ZooEntry("nested_input", NestedInput, _nested_inputs),
    ZooEntry(
        "python_arguments",
        PythonArguments,
        inputs(
            floats(12),
            temperature=constant(0.7),
            normalise=constant(True),
            mode=constant("residual"),
        ),
    ),
    ZooEntry(
        "variable_keywords",
        VariableKeywords,
        inputs(floats(12), conditioned=constant(True), condition=floats(3)),
    ),
    ZooEntry("pass_through", PassThrough, _ROWS),
)
