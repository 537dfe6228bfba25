"""Do two tensors lie over the same memory? Exactly, as far as that is affordable.

Two that do are trained as one by the model and as two by its stages.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from ravnest.errors import CaptureError

_MOST_ELEMENTS = 20_000_000
"""Interleaved tensors are compared byte by byte up to this size; larger ones are refused."""


def refuse_shared_memory(
    registered: Mapping[str, torch.Tensor], constants: Mapping[str, torch.Tensor] | None = None
) -> None:
    """`registered` tensors must be apart from each other and from the `constants`."""
    extents = sorted(
        (*_extent(tensor), name, tensor, name in registered)
        for name, tensor in {**(constants or {}), **registered}.items()
        if tensor.numel() and not tensor.is_meta and tensor.layout is torch.strided
    )
    open_ends: list[tuple[int, str, torch.Tensor, bool]] = []
    for start, end, name, tensor, trained in extents:
        open_ends = [entry for entry in open_ends if entry[0] > start]
        for _, other, candidate, other_trained in open_ends:
            matters = (trained or other_trained) and tensor is not candidate
            if matters and _overlap(candidate, tensor):
                raise CaptureError(
                    f"{other!r} and {name!r} share memory without being the same tensor. Tie them "
                    "by assigning the parameter itself (b.weight = a.weight, not .data), or copy "
                    "one."
                )
        open_ends.append((end, name, tensor, trained))


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte, and first byte behind the last element."""
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """For tensors whose extents overlap."""
    if _is_dense(one) and _is_dense(other):
        return True
    if max(one.numel(), other.numel()) > _MOST_ELEMENTS:
        return True
    return bool(np.intersect1d(_bytes(one), _bytes(other)).size)


def _is_dense(tensor: torch.Tensor) -> bool:
    start, end = _extent(tensor)
    return end - start <= tensor.numel() * tensor.element_size()


def _bytes(tensor: torch.Tensor) -> npt.NDArray[np.int64]:
    """Address of every byte that belongs to an element."""
    found = np.array([tensor.data_ptr()], dtype=np.int64)
    width = tensor.element_size()
    steps = [
        (size, stride * width) for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    ]
    for size, step in (*steps, (width, 1)):
        found = (found[:, None] + np.arange(size, dtype=np.int64) * step).ravel()
    return found
