"""What a run of a model yields, and whether two runs yield the same."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

_TOLERANCE = {
    torch.float64: 1e-8,
    torch.float32: 1e-4,
    torch.bfloat16: 5e-2,
    torch.float16: 1e-2,
    torch.complex64: 1e-4,
    torch.complex128: 1e-8,
}
_GRADIENT_SLACK = 10.0
"""Gradients are summed in another order across stages; deep networks amplify the last bit."""


@dataclass
class Outcome:
    outputs: list[torch.Tensor]
    gradients: dict[str, torch.Tensor | None]
    buffers: dict[str, torch.Tensor]


def difference_of(expected: Outcome, found: Outcome) -> str | None:
    """What differs most obviously, in words; None if nothing does."""
    if len(expected.outputs) != len(found.outputs):
        return f"{len(found.outputs)} output tensors instead of {len(expected.outputs)}"
    for number, (one, other) in enumerate(zip(expected.outputs, found.outputs, strict=True)):
        if _kind(one) != _kind(other):
            return f"output {number} is {_kind(other)}, not {_kind(one)}"
        if (error := _error(one, other)) is not None:
            return f"output {number} differs by {error:.1e}"
    return _named_difference(
        "gradient", _GRADIENT_SLACK, expected.gradients, found.gradients
    ) or _named_difference("buffer", 1.0, expected.buffers, found.buffers)


def _named_difference(
    what: str,
    slack: float,
    expected: Mapping[str, torch.Tensor | None],
    found: Mapping[str, torch.Tensor | None],
) -> str | None:
    scale = max([_magnitude(tensor) for tensor in expected.values()], default=0.0)
    for name, one in expected.items():
        other = found.get(name)
        if one is None and other is None:
            continue
        if one is not None and other is not None and _kind(one) != _kind(other):
            return (
                f"the {what} {name!r} is {_kind(other)}, but the model makes it {_kind(one)} when "
                "it runs: it must be of one type and shape from the beginning"
            )
        reference = one if one is not None else other
        assert reference is not None
        zero = torch.zeros_like(reference)  # no gradient and a gradient of zero are the same
        error = _error(zero if one is None else one, zero if other is None else other, scale, slack)
        if error is not None:
            return f"the {what} of {name!r} differs by {error:.1e}"
    return None


def _magnitude(tensor: torch.Tensor | None) -> float:
    if tensor is None or tensor.numel() == 0:
        return 0.0
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 0.0
    return float(_dense(tensor).abs().nan_to_num(0.0, 0.0, 0.0).max())


def _kind(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype}{list(tensor.shape)}"


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """In a form that torch can compare: not sparse, and of a type it can compute with."""
    dense = tensor.detach().to_dense()
    return dense.float() if dense.is_floating_point() and dense.dtype not in _TOLERANCE else dense


def _error(
    expected: torch.Tensor, found: torch.Tensor, scale: float = 0.0, slack: float = 1.0
) -> float | None:
    """Largest relative difference if it is too large. Gradients that cancel to almost nothing are
    measured against the scale of the other gradients."""
    dtype = expected.dtype
    expected, found = _dense(expected), _dense(found)
    if not (expected.is_floating_point() or expected.is_complex()):
        return None if torch.equal(expected, found) else float("inf")
    tolerance = slack * (_TOLERANCE.get(dtype) or torch.finfo(dtype).eps)
    size = max(_magnitude(expected), 1e-3 * scale, 1e-12)
    if torch.allclose(expected, found, rtol=0, atol=tolerance * size, equal_nan=True):
        return None
    return float((expected - found).abs().nan_to_num(float("inf")).max()) / size
