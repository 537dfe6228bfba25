"""What the clusters learn: the character GPT of the staleness benchmark, with half its layers, and
text of which every cluster has a shard and nobody the last tenth."""

import functools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "staleness"))

import chargpt

LAYERS = 4
_RUN = 4 * chargpt.LENGTH
"""Letters in a row that belong to the same shard."""


def make_model(seed: int = 0, layers: int = LAYERS) -> nn.Module:
    torch.manual_seed(seed)
    model = chargpt.CharGPT(_letters()[1])
    model.blocks = model.blocks[:layers]
    return model


@functools.cache
def _letters() -> tuple[torch.Tensor, int]:
    return chargpt.text()


def _learnt_from() -> int:
    return len(_letters()[0]) * 9 // 10


def _rows(starts: torch.Tensor, length: int) -> torch.Tensor:
    """Inputs, and the same one letter later: length + 1 letters."""
    letters, _ = _letters()
    return torch.stack([letters[s : s + length + 1] for s in starts.tolist()])


def shard(
    number: int, of: int, rows: int, seed: int = 1, length: int = chargpt.LENGTH
) -> Iterator[torch.Tensor]:
    """Batches without end; those of different shards have no row in common."""
    generator = torch.Generator().manual_seed(1000 * seed + number)
    runs = _learnt_from() // _RUN // of
    while True:
        run = torch.randint(0, runs, (rows,), generator=generator) * of + number
        within = torch.randint(0, _RUN - chargpt.LENGTH, (rows,), generator=generator)
        yield _rows(run * _RUN + within, length)


@functools.cache
def _held_out(rows: int, length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    last = len(_letters()[0]) - length - 1
    starts = torch.randint(_learnt_from(), last, (rows,), generator=generator)
    return _rows(starts, length)


@torch.no_grad()
def held_out_loss(
    model: nn.Module,
    state: Mapping[str, torch.Tensor] | None = None,
    *,
    rows: int = 128,
    length: int = chargpt.LENGTH,
) -> float:
    """Of the model, or of these tensors in its place."""
    judged = _held_out(rows, length)
    words = judged[:, :-1]
    scores = model(words) if state is None else torch.func.functional_call(model, state, (words,))
    return float(chargpt.loss_of(scores, judged[:, 1:]))
