"""Masks of transformers that a function of indices says element by element.

transformers maps such a function over all indices with `torch.vmap`, which no graph can hold. Given
the indices along four axes, the same function computes the whole mask by ordinary broadcasting, and
so transformers itself does with the masks that it knows.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from unittest import mock

import torch

_HOME, _MAP = "transformers.masking_utils", "_vmap_expansion_sdpa"
_INDEXING = "TransformGetItemToIndex"
"""Has the mapped function look up entries of tensors in a way of its own, which is not needed."""

_Mask = Callable[..., torch.Tensor]


@contextlib.contextmanager
def masks_broadcast() -> Iterator[None]:
    home = sys.modules.get(_HOME)
    if not (hasattr(home, _MAP) and hasattr(home, _INDEXING)):
        yield
        return
    with (
        mock.patch.object(home, _MAP, _broadcast),
        mock.patch.object(home, _INDEXING, contextlib.nullcontext),
    ):
        yield


def _broadcast(function: _Mask) -> _Mask:
    def whole(*indices: torch.Tensor) -> torch.Tensor:
        axes = [
            index.view([-1 if axis == at else 1 for axis in range(len(indices))])
            for at, index in enumerate(indices)
        ]
        return function(*axes).expand([index.shape[0] for index in indices])

    return whole
