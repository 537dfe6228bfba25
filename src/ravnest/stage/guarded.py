"""Operators that a package does not get as torch has them.

Uninitialised memory may hold what other parts of the program left there: it is handed out as zeros.
No `out=` kernel runs: its result is computed aside and copied, so that it cannot lie over an
operand. No operator writes to an operand without telling autograd. And a few kernels trust the
values or shapes of their tensors so far that wrong ones make them read or write outside, leave a
part of the result unwritten or trap (found by tests/stage/fuzzing.py on the CPU); those are checked
before the call. A guard of a kernel that indexes states the ranks of all operands and how their
shapes follow from each other, also where torch checks some of it: a kernel that looks at sizes of
one rank loops over the elements of another. Bounds of plain numbers are in argument_rules.py.
Kernels of that kind which no captured model needs are not on the allow-list.

No text of an error holds a number that an operator was given: a size may be made from a value.

A guard takes the operator and gives the function that is called in its place. Guards belong to
all overloads of a name, also to those that only the owner of a machine has allowed.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import is_fake

from ravnest.errors import InputError, PackageError

_aten = torch.ops.aten


Function = Callable[..., Any]


def guarded(operator: OpOverload) -> Function:
    """The operator itself, or what stands in its place."""
    if any(argument.is_out for argument in operator._schema.arguments):
        return _computed_aside(operator)
    guard = _GUARDS.get(operator._schema.name.removeprefix("aten::"))
    return operator if guard is None else guard(operator)


def _has_values(tensor: torch.Tensor) -> bool:
    return not (tensor.is_meta or is_fake(tensor))


def _must(fits: bool, what: str) -> None:
    """The operands of a call, by their shapes."""
    if not fits:
        raise PackageError(f"{what} on operands whose shapes do not fit each other")


def _zeroed(operator: OpOverload) -> Function:
    def zeroed(*args: Any, **kwargs: Any) -> Any:
        return operator(*args, **kwargs).zero_()

    return zeroed


def _computed_aside(operator: OpOverload) -> Function:
    """An `out=` overload, whose result has to have the shape and type of what it is written to."""
    wanted = [(a.name, str(a.real_type)) for a in operator._schema.arguments if not a.is_out]
    packet = operator.overloadpacket
    functional: OpOverload | None = None
    for overload in packet.overloads():
        found: OpOverload = getattr(packet, overload)
        if [(a.name, str(a.real_type)) for a in found._schema.arguments] == wanted:
            functional = found
    if functional is None or len(operator._schema.returns) != 1:
        raise PackageError(f"operator {operator} has no form without an output buffer")
    compute = guarded(functional)

    def aside(*args: Any, out: torch.Tensor, **kwargs: Any) -> Any:
        result = compute(*args, **kwargs)
        if result.shape != out.shape or result.dtype != out.dtype:
            raise PackageError(f"operator {operator} writes to a tensor of another shape or type")
        return out.copy_(result)

    return aside


def _divided(operator: OpOverload) -> Function:
    """Integer division, but for the one quotient that does not fit: the processor traps on it."""

    def divided(self: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
        number = other if isinstance(other, torch.Tensor | float) else 1
        common = torch.result_type(self, number)
        if not (common.is_floating_point or common.is_complex) and common.is_signed:
            # The kernel computes in the common type, to which a single number is cut.
            least = torch.iinfo(common).min
            if _has_integer(other, common, -1) and _has_integer(self, common, least):
                raise PackageError(f"operator {operator} divides the least integer by -1")
        return operator(self, other, *args, **kwargs)

    return divided


def _has_integer(value: Any, dtype: torch.dtype, wanted: int) -> bool:
    """Whether a number, or an element of a tensor, is this one in that type."""
    if not isinstance(value, torch.Tensor):
        value = torch.tensor(value) if isinstance(value, int) else torch.empty(0)
    return _has_values(value) and bool((value.to(dtype) == wanted).any())


def _recurrent(gates: int, operator: OpOverload) -> Function:
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
            raise PackageError("the weights of a recurrent layer do not fit its settings")
        if any(state.shape[:2] != (num_layers * directions, rows) for state in states):
            raise PackageError("the states of a recurrent layer do not fit its input")
        return operator(
            input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first
        )

    return recurrent


def _own_rows(
    weight: torch.Tensor, indices: torch.Tensor, sparse: bool
) -> tuple[torch.Tensor, bool]:
    """A gradient of single rows shares memory with its indices, and no kernel looks at them again.
    So it is made for a trained tensor itself, whose gradient no operator sees, and of indices that
    none can write to; behind an operator the gradient is dense."""
    own = sparse and weight.is_leaf
    return (indices.clone() if own else indices), own


def _embedding(operator: OpOverload) -> Function:
    def embedding(
        weight: torch.Tensor,
        indices: torch.Tensor,
        padding_idx: int = -1,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Any:
        indices, sparse = _own_rows(weight, indices, sparse)
        return operator(weight, indices, padding_idx, scale_grad_by_freq, sparse)

    return embedding


def _gather(operator: OpOverload) -> Function:
    """Its gradient is dense: a sparse one can share memory with the index."""

    def gather(
        self: torch.Tensor, dim: int, index: torch.Tensor, *, sparse_grad: bool = False
    ) -> Any:
        return operator(self, dim, index)

    return gather


def _embedding_bag(operator: OpOverload) -> Function:
    """Bags that follow each other in a plain list of indices, which are all inside the table."""

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
        indices, sparse = _own_rows(weight, indices, sparse)
        plain = (weight.dim(), indices.dim(), offsets.dim()) == (2, 1, 1)
        scaled = per_sample_weights
        _must(plain and (scaled is None or scaled.shape == indices.shape), "embedding_bag")
        if _has_values(offsets):
            ordered = bool((offsets.diff() >= 0).all())
            if offsets.numel() <= include_last_offset or not ordered:
                raise PackageError("an embedding_bag has no bags or has them out of order")
            if not _is_inside(offsets, indices.numel() + 1):
                raise PackageError("a bag of an embedding_bag lies outside of its indices")
            if include_last_offset and int(offsets[-1]) != indices.numel():
                raise PackageError("an embedding_bag has indices behind its last bag")
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


def _as_strided(operator: OpOverload) -> Function:
    """Only elements between the first and the last of the tensor itself: what lies around it, or
    in the gaps of a slice, need never have been written."""

    def as_strided(
        self: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: Any = None
    ) -> Any:
        start = self.storage_offset() if storage_offset is None else storage_offset
        if len(size) != len(stride) or any(number < 0 for number in (*size, *stride, start)):
            raise PackageError("as_strided with sizes and strides that are no such")
        last = start + sum((n - 1) * step for n, step in zip(size, stride, strict=True) if n)
        first = self.storage_offset()
        dense = _aten.is_non_overlapping_and_dense.default(self)
        if 0 not in size and not (dense and first <= start and last < first + self.numel()):
            raise PackageError(
                "as_strided reaches outside of its tensor, or that tensor is a slice with gaps: "
                "call .contiguous() before it"
            )
        return operator(self, size, stride, storage_offset)

    return as_strided


def _repeated(operator: OpOverload) -> Function:
    """Repeats that are not negative and whose sum, which the kernel allocates by, does not wrap."""
    at = [argument.name for argument in operator._schema.arguments].index("repeats")

    def repeated(*args: Any, **kwargs: Any) -> Any:
        repeats = args[at] if len(args) > at else kwargs["repeats"]
        plain = not isinstance(repeats, torch.Tensor) or repeats.dim() <= 1
        _must(plain, "repeat_interleave")
        if isinstance(repeats, torch.Tensor) and _has_values(repeats) and repeats.numel():
            # A single number holds for every element.
            elements = (args[0] if args else kwargs["self"]).numel() if at else 1
            times = elements if repeats.numel() == 1 else 1
            total = repeats.sum(dtype=torch.float64).item() * times
            if bool((repeats < 0).any()) or total >= 2**40:
                raise PackageError("repeat_interleave with a number of repeats out of bounds")
            stated = kwargs.get("output_size")
            if stated is not None and stated != total and repeats.numel() > 1:
                raise PackageError("repeat_interleave with an output_size that is not the sum")
        return operator(*args, **kwargs)

    return repeated


def _grid_sampler(operator: OpOverload) -> Function:
    """NaN stands for -1, as torch documents it; its kernels read outside the image instead."""

    def grid_sampler(
        input: torch.Tensor, grid: torch.Tensor, interpolation_mode: int, padding_mode: int,
        align_corners: bool,
    ) -> Any:  # fmt: skip
        rank = input.dim()
        fits = rank in (4, 5) and grid.shape == (input.shape[0], *grid.shape[1:-1], rank - 2)
        _must(fits and grid.dim() == rank, "grid_sampler")
        if padding_mode != 0:
            grid = grid.nan_to_num(nan=-1.0, posinf=1e9, neginf=-1e9).clamp(-1e9, 1e9)
        return operator(input, grid, interpolation_mode, padding_mode, align_corners)

    return grid_sampler


def _batch_norm(operator: OpOverload) -> Function:
    """The kernel writes to the running statistics and does not tell autograd, which would let a
    backward use what they share memory with, such as indices, as if it had not changed."""

    def batch_norm(
        input: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        training: bool,
        *rest: Any,
        **more: Any,
    ) -> Any:
        kept = (running_mean, running_var)
        vectors = [tensor for tensor in (weight, bias, *kept) if tensor is not None]
        channels = input.shape[1:2]
        fits = input.dim() >= 2 and all(tensor.shape == channels for tensor in vectors)
        _must(fits, "batch_norm")
        given = [t.clone() if training and t is not None else t for t in kept]
        result = operator(input, weight, bias, *given, training, *rest, **more)
        for tensor, written in zip(kept, given, strict=True):
            if training and tensor is not None and written is not None:
                tensor.copy_(written)
        return result

    return batch_norm


def _attention(operator: OpOverload) -> Function:
    def attention(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **more: Any
    ) -> Any:
        fits = min(query.dim(), key.dim(), value.dim()) >= 2 and key.shape[-2] == value.shape[-2]
        empty = 0 in (*key.shape[:-2], *value.shape[:-2])
        _must(fits and not empty and query.shape[-1] == key.shape[-1], "attention")
        return operator(query, key, value, *rest, **more)

    return attention


def _weight_norm(operator: OpOverload) -> Function:
    def weight_norm(v: torch.Tensor, g: torch.Tensor, dim: int = 0) -> Any:
        norms = 1 if dim < 0 else v.shape[dim] if dim < v.dim() else 0
        _must(v.numel() > 0 and g.numel() == norms, "_weight_norm")
        return operator(v, g, dim)

    return weight_norm


def _max_pool(dims: int, operator: OpOverload) -> Function:
    """A window that neither overflows nor steps over the whole input without touching it."""

    def max_pool(
        self: torch.Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> Any:
        _must(self.dim() in (dims + 1, dims + 2), f"max_pool{dims}d")
        step = max(*dilation, 1)
        if max(*kernel_size, *stride, *padding, 1) * step >= 2**31:
            raise PackageError("a pooling window is too large")
        if step > 1 and step > min(self.shape[-dims:]):
            raise PackageError("a pooling window steps over all of its input")
        return operator(self, kernel_size, stride, padding, dilation, ceil_mode)

    return max_pool


def _binary_cross_entropy(operator: OpOverload) -> Function:
    """The kernel writes as many losses as there are targets, into memory for all of the input."""

    def binary_cross_entropy(
        self: torch.Tensor, target: torch.Tensor, *rest: Any, **more: Any
    ) -> Any:
        _must(self.shape == target.shape, "binary_cross_entropy")
        return operator(self, target, *rest, **more)

    return binary_cross_entropy


def _multi_margin_loss(operator: OpOverload) -> Function:
    """The kernel writes nothing at all for a batch without rows."""

    def multi_margin_loss(self: torch.Tensor, target: torch.Tensor, *rest: Any, **more: Any) -> Any:
        fits = self.dim() in (1, 2) and self.numel() > 0 and target.dim() <= 1
        rows = 1 if self.dim() == 1 else self.shape[0]
        _must(fits and target.numel() == rows, "multi_margin_loss")
        return operator(self, target, *rest, **more)

    return multi_margin_loss


def _histc(operator: OpOverload) -> Function:
    """The kernel trusts the quotient that gives a value its place: with bounds so far away, or so
    close to each other, that it is no number, the place lies outside of the result."""

    def histc(self: torch.Tensor, bins: int = 100, min: Any = 0, max: Any = 0) -> Any:
        if not _has_values(self):
            return operator(self, bins, min, max)
        if min == max and self.numel():
            min, max = self.min().item(), self.max().item()
        if min == max:
            min, max = min - 1, max + 1
        ends = torch.tensor([min, max], dtype=torch.float64).to(self.dtype)
        width = ends[1] - ends[0]
        if not (width > 0 and bool(torch.isfinite(width * bins))):
            raise PackageError("histc over a range that is empty or too large")
        return operator(self, bins, min, max)

    return histc


def _ctc_loss(operator: OpOverload) -> Function:
    """The kernel reads as many labels as are announced and takes each for the number of a class.
    `log_probs` are (frames, rows, classes); labels have a line for each row, or are in one line
    behind each other."""

    def ctc_loss(
        log_probs: torch.Tensor,
        targets: torch.Tensor,
        input_lengths: Any,
        target_lengths: Any,
        blank: int = 0,
        *rest: Any,
        **more: Any,
    ) -> Any:
        _must(log_probs.dim() in (2, 3) and targets.dim() in (1, 2), "ctc_loss")
        frames, rows, classes = log_probs.shape[0], log_probs.shape[1:-1], log_probs.shape[-1]
        ends, counts = torch.as_tensor(input_lengths), torch.as_tensor(target_lengths)
        whole = not any(x.is_floating_point() or x.is_complex() for x in (targets, ends, counts))
        fits = targets.dim() == 1 or targets.shape[:1] == (rows or (1,))
        fits &= ends.shape in (rows, rows or (1,)) and counts.shape in (rows, rows or (1,))
        _must(whole and fits and log_probs.numel() > 0, "ctc_loss")
        if _has_values(targets) and _has_values(ends) and _has_values(counts):
            most = targets.shape[-1]
            inside = _is_inside(ends, frames + 1) and _is_inside(counts, most + 1)
            if targets.dim() == 1:
                read, inside = targets, inside and int(counts.sum()) == most
            else:
                places = torch.arange(most, device=targets.device)
                read = targets[places < counts.to(targets.device).reshape(-1, 1)]
            if not (inside and 0 <= blank < classes and _is_inside(read, classes)):
                raise PackageError("ctc_loss of labels or lengths that are out of bounds")
        return operator(log_probs, targets, input_lengths, target_lengths, blank, *rest, **more)

    return ctc_loss


def _asserted(operator: OpOverload) -> Function:
    """Raised where it is asked: a device that finds out later takes the whole process down."""

    def asserted(self: torch.Tensor) -> None:
        if _has_values(self) and not bool(self.all()):
            raise InputError(
                "a batch leads to values for which the model has another way than the one it was "
                "planned on (infinite or NaN, or such as it refuses)"
            )

    return asserted


_EMPTIES = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty")
_GUARDS: dict[str, Callable[[OpOverload], Function]] = {
    **dict.fromkeys((*_EMPTIES, "new_empty_strided"), _zeroed),
    **{
        f"{name}{suffix}": _divided
        for name in ("div", "divide", "floor_divide", "remainder", "fmod")
        for suffix in ("", "_")
    },
    **{
        f"max_pool{dims}d{suffix}": partial(_max_pool, dims)
        for dims in (1, 2, 3)
        for suffix in ("", "_with_indices")
    },
    "lstm": partial(_recurrent, 4),
    "gru": partial(_recurrent, 3),
    "rnn_tanh": partial(_recurrent, 1),
    "rnn_relu": partial(_recurrent, 1),
    "embedding": _embedding,
    "embedding_bag": _embedding_bag,
    "gather": _gather,
    "as_strided": _as_strided,
    "repeat_interleave": _repeated,
    "grid_sampler": _grid_sampler,
    "scaled_dot_product_attention": _attention,
    "_weight_norm": _weight_norm,
    "batch_norm": _batch_norm,
    "binary_cross_entropy": _binary_cross_entropy,
    "multi_margin_loss": _multi_margin_loss,
    "histc": _histc,
    "ctc_loss": _ctc_loss,
    "_assert_async": _asserted,
}
"""By the operator's name, without its overload."""
