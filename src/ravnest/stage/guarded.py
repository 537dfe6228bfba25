"""Operators that a package does not get as torch has them.

Uninitialised memory may hold what other parts of the program left there: it is handed out as zeros.
And a few kernels trust their arguments so far that wrong ones make them read or write outside their
tensors (found by fuzzing torch 2.13 on the CPU); those arguments are checked before the call.
Kernels of that kind which no captured model needs are not on the allow-list at all.

`as_strided` is bounded by the memory its tensor lies in, which can be more than the tensor: a stage
that uses it gets tensors that fill their memory (`with_own_storage`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ravnest.errors import PackageError

_aten = torch.ops.aten


def _empty(size: Sequence[int], *, memory_format: Any = None, **options: Any) -> torch.Tensor:
    return torch.zeros(size, **options)


def _empty_like(self: torch.Tensor, **options: Any) -> torch.Tensor:
    return torch.zeros_like(self, **options)


def _new_empty(self: torch.Tensor, size: Sequence[int], **options: Any) -> torch.Tensor:
    return self.new_zeros(size, **options)


def _recurrent(operator: Any, gates: int) -> Callable[..., Any]:
    """An LSTM, GRU or RNN whose states and weights have the sizes that follow from each other."""

    def recurrent(
        input: torch.Tensor,
        hx: Any,
        params: Sequence[torch.Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        directions = 2 if bidirectional else 1
        states = hx if isinstance(hx, list | tuple) else [hx]
        if any(tensor.dim() != 3 for tensor in (input, *states)):
            raise PackageError("the input or the states of a recurrent layer are not 3-dimensional")
        rows = input.shape[0 if batch_first else 1]
        out, hidden = states[0].shape[-1], states[-1].shape[-1]
        expected: list[tuple[int, ...]] = []
        for layer in range(num_layers):
            width = input.shape[-1] if layer == 0 else out * directions
            biases = [(gates * hidden,)] * 2 if has_biases else []
            # The kernel takes an LSTM whose two states differ in size for one with projections.
            projection = [(out, hidden)] if out != hidden else []
            one = [(gates * hidden, width), (gates * hidden, out), *biases, *projection]
            expected += one * directions
            if len(expected) > len(params):
                break
        if not expected or [tuple(tensor.shape) for tensor in params] != expected:
            raise PackageError(f"{len(params)} weights do not make {num_layers} recurrent layers")
        if any(state.shape[:2] != (num_layers * directions, rows) for state in states):
            raise PackageError("the states of a recurrent layer do not fit its input")
        return operator(
            input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first
        )

    return recurrent


def _embedding_bag(operator: Any) -> Callable[..., Any]:
    """Bags that follow each other in the list of indices, which are all inside the table."""

    def embedding_bag(
        weight: torch.Tensor,
        indices: torch.Tensor,
        offsets: torch.Tensor,
        scale_grad_by_freq: bool = False,
        mode: int = 0,
        sparse: bool = False,
        per_sample_weights: torch.Tensor | None = None,
        include_last_offset: bool = False,
        *rest: Any,
        **more: Any,
    ) -> Any:
        if not offsets.is_meta:
            ordered = bool((offsets.diff() >= 0).all())
            if offsets.numel() <= include_last_offset or offsets.dim() != 1 or not ordered:
                raise PackageError("an embedding_bag has no bags or has them out of order")
            if not _is_inside(offsets, indices.numel() + 1):
                raise PackageError("a bag of an embedding_bag lies outside of its indices")
            if not _is_inside(indices, weight.shape[0]):
                raise PackageError("an embedding_bag is asked for a row that does not exist")
        options = (scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset)
        return operator(weight, indices, offsets, *options, *rest, **more)

    return embedding_bag


def _is_inside(numbers: torch.Tensor, end: int) -> bool:
    return bool(((numbers >= 0) & (numbers < end)).all())


def reads_whole_storage(name: str) -> bool:
    """Whether the operator sees the memory around its tensor, not only the tensor."""
    return name.startswith("aten.as_strided")


def with_own_storage(value: Any) -> Any:
    """The tensor itself if it fills the memory it lies in, otherwise a copy that does."""
    if not isinstance(value, torch.Tensor):
        return value
    # An expanded tensor can be larger than its memory and still leave a part of it out.
    dense = _aten.is_non_overlapping_and_dense.default(value)
    if dense and value.untyped_storage().nbytes() == value.numel() * value.element_size():
        return value
    return value.clone()


def _as_strided(
    self: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: Any = None
) -> Any:
    """Bounds in Python's integers; the kernel's own check overflows with a large stride."""
    last = self.storage_offset() if storage_offset is None else storage_offset
    last += sum((extent - 1) * step for extent, step in zip(size, stride, strict=True) if extent)
    if last >= 2**56 or any(step < 0 for step in stride):
        raise PackageError(f"as_strided reaches outside of its tensor: {list(stride)}")
    return _aten.as_strided.default(self, size, stride, storage_offset)


def _repeat_interleave(repeats: torch.Tensor, **options: Any) -> Any:
    _check_repeats(repeats)
    return _aten.repeat_interleave.Tensor(repeats, **options)


def _repeat_rows(
    self: torch.Tensor, repeats: torch.Tensor, dim: int | None = None, **options: Any
) -> Any:
    _check_repeats(repeats)
    return _aten.repeat_interleave.self_Tensor(self, repeats, dim, **options)


def _check_repeats(repeats: torch.Tensor) -> None:
    if not repeats.is_meta and bool((repeats < 0).any()):
        raise PackageError("repeat_interleave is asked for a negative number of repeats")


def _grid_sampler(
    input: torch.Tensor,
    grid: torch.Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> Any:
    """NaN stands for -1, as torch documents it; its kernels read outside the image instead."""
    if padding_mode != 0:
        grid = grid.nan_to_num(nan=-1.0, posinf=1e9, neginf=-1e9).clamp(-1e9, 1e9)
    return _aten.grid_sampler.default(input, grid, interpolation_mode, padding_mode, align_corners)


def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **more: Any
) -> Any:
    if key.shape[-2] != value.shape[-2] or 0 in (*key.shape[:-2], *value.shape[:-2]):
        shapes = f"{list(key.shape)} and {list(value.shape)}"
        raise PackageError(f"attention over keys and values of shapes {shapes}")
    return _aten.scaled_dot_product_attention.default(query, key, value, *rest, **more)


def _weight_norm(v: torch.Tensor, g: torch.Tensor, dim: int = 0) -> Any:
    norms = v.shape[dim] if dim >= 0 else 1
    if v.numel() == 0 or g.numel() != norms:
        raise PackageError(f"{g.numel()} norms for a weight of shape {list(v.shape)}")
    return _aten._weight_norm.default(v, g, dim)


def _max_pool(operator: Any, dims: int) -> Callable[..., Any]:
    """A window that neither overflows nor steps over the whole input without touching it."""

    def max_pool(
        self: torch.Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> Any:
        step = max(*dilation, 1)
        if max(*kernel_size, *stride, *padding, 1) * step >= 2**31:
            raise PackageError(f"a pooling window of {list(kernel_size)} is too large")
        if step > 1 and step > min(self.shape[-dims:]):
            raise PackageError(f"a pooling window steps by {step} over {list(self.shape[-dims:])}")
        return operator(self, kernel_size, stride, padding, dilation, ceil_mode)

    return max_pool


GUARDED: dict[str, Callable[..., Any]] = {
    "aten.empty.memory_format": _empty,
    "aten.empty_like.default": _empty_like,
    "aten.new_empty.default": _new_empty,
    "aten.lstm.input": _recurrent(_aten.lstm.input, gates=4),
    "aten.gru.input": _recurrent(_aten.gru.input, gates=3),
    "aten.rnn_tanh.input": _recurrent(_aten.rnn_tanh.input, gates=1),
    "aten.rnn_relu.input": _recurrent(_aten.rnn_relu.input, gates=1),
    "aten.embedding_bag.default": _embedding_bag(_aten.embedding_bag.default),
    "aten.embedding_bag.padding_idx": _embedding_bag(_aten.embedding_bag.padding_idx),
    "aten.as_strided.default": _as_strided,
    "aten.repeat_interleave.Tensor": _repeat_interleave,
    "aten.repeat_interleave.self_Tensor": _repeat_rows,
    "aten.grid_sampler.default": _grid_sampler,
    "aten.scaled_dot_product_attention.default": _attention,
    "aten._weight_norm.default": _weight_norm,
    "aten.max_pool1d.default": _max_pool(_aten.max_pool1d.default, 1),
    "aten.max_pool1d_with_indices.default": _max_pool(_aten.max_pool1d_with_indices.default, 1),
    "aten.max_pool2d.default": _max_pool(_aten.max_pool2d.default, 2),
    "aten.max_pool2d_with_indices.default": _max_pool(_aten.max_pool2d_with_indices.default, 2),
    "aten.max_pool3d.default": _max_pool(_aten.max_pool3d.default, 3),
    "aten.max_pool3d_with_indices.default": _max_pool(_aten.max_pool3d_with_indices.default, 3),
}
