"""Models that ``torch.export`` cannot capture, each with a reason and the start of its error.

Their control flow, or a computation outside torch, depends on the values of tensors. A splitter
has to refuse them and name the place; most have a remedy, which the reason states. An entry that
becomes capturable with a newer torch belongs in the zoo instead.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zoo_models.entry import Inputs, ZooEntry, floats, inputs, integers

_GUARD = "Could not guard on data-dependent expression"


class Branch(nn.Module):
    """Takes one of two layers, depending on the sign of a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) if x.sum() > 0 else self.second(x)


class Repeat(nn.Module):
    """Applies a layer as often as an input says."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        for _ in range(int(times.max())):
            x = torch.tanh(self.layer(x))
        return x


class NumpyDetour(nn.Module):
    """Computes a weight in numpy."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * torch.from_numpy(x.detach().numpy().mean(axis=0))


class PackedSequence(nn.Module):
    """Runs an LSTM over a packed sequence of unequal lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(4, 5, batch_first=True)
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )
        _, (hidden, _) = self.recurrent(packed)
        return self.head(hidden[-1])


def _ragged(batch: int) -> Inputs:
    """Six steps per row, and how many of them count; the first row is complete."""
    lengths = torch.randint(1, 7, (batch,))
    lengths[0] = 6
    return (torch.randn(batch, 6, 4), lengths), {}


REFUSED: tuple[tuple[ZooEntry, str], ...] = (
    (
        ZooEntry("data_dependent_branch", Branch, inputs(floats(4))),
        f"branches on a tensor's value; use torch.where: {_GUARD} Eq(u0, 1)",
    ),
    (
        ZooEntry("data_dependent_loop", Repeat, inputs(floats(4), integers(4, low=1))),
        "loops as often as a tensor says; fix the number of rounds: "
        "Could not extract specialized integer from data-dependent expression u0",
    ),
    (
        ZooEntry("numpy_detour", NumpyDetour, inputs(floats(4))),
        "computes outside torch; write it with torch operators: "
        ".numpy() is not supported for tensor subclasses.",
    ),
    (
        ZooEntry("packed_sequence", PackedSequence, _ragged),
        "packing sorts and cuts by the lengths' values; mask the padded output instead: "
        "zeros(): argument 'size' failed to unpack the object at pos 2",
    ),
)
