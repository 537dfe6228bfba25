"""Operators that a trace names below the ones that users call, as those that a stage may use.

`torch.jit.trace` writes `_convolution` for `conv2d`, and `upsample_nearest2d` with a size and with
scales for `interpolate`. Kernels at that level trust their arguments, so they are not on the
allow-list; the operators above them compute the same.
"""

import math
from typing import Any

import torch

from ravnest.planning.torchscript.numbers import Function


def _convolution(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    *flags_of_the_machine: bool,
) -> torch.Tensor:
    """What `torch.jit.trace` writes for every convolution, as the operator a stage may use."""
    if transposed:
        transpose: Any = _CONVOLUTIONS[weight.dim()][1]
        options = (output_padding, groups, dilation)
        made: torch.Tensor = transpose(input, weight, bias, stride, padding, *options)
        return made
    return _plain_convolution(input, weight, bias, stride, padding, dilation, groups)


def _plain_convolution(input: torch.Tensor, weight: torch.Tensor, *rest: Any) -> torch.Tensor:
    convolve: Any = _CONVOLUTIONS[weight.dim()][0]
    made: torch.Tensor = convolve(input, weight, *rest)
    return made


_CONVOLUTIONS = {
    3: (torch.conv1d, torch.conv_transpose1d),
    4: (torch.conv2d, torch.conv_transpose2d),
    5: (torch.conv3d, torch.conv_transpose3d),
}
"""By the dimensions of the weight."""


def _resize(name: str) -> Function:
    """A stage gives either the size or the scales, which therefore cannot contradict each other."""
    operator = getattr(torch.ops.aten, name).vec

    def resize(input: torch.Tensor, size: list[int], *rest: Any) -> Any:
        align_corners = [option for option in rest if isinstance(option, bool)]
        scales = [scale for scale in rest if not isinstance(scale, bool)]
        if all(scale is None for scale in scales):
            return operator(input, size, *align_corners, None)
        sizes = zip(input.shape[2:], scales, strict=True)
        if None in scales or size != [math.floor(old * scale) for old, scale in sizes]:
            raise RuntimeError(f"{name} to {size} does not fit its scales {scales}")
        return operator(input, None, *align_corners, scales)

    return resize


TRACED: dict[str, Function] = {
    "aten::_convolution": _convolution,
    "aten::_convolution_mode": _plain_convolution,
    **{
        f"aten::{name}.": _resize(name)
        for name in (
            *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
            *(f"_upsample_nearest_exact{dims}d" for dims in (1, 2, 3)),
            *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"),
            *("upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
        )
    },
}
"""By kind, or by kind and overload; the overload of these is the empty one."""
