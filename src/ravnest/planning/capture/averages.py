"""BatchNorm that averages over all batches it has seen (`momentum=None`).

torch divides by the number of batches as a plain number, which a graph would keep for ever. While a
model is captured, the same average is computed by operators on the buffer that counts.
"""

import contextlib
from collections.abc import Iterator
from unittest import mock

import torch
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

_FORWARD = _BatchNorm.forward


@contextlib.contextmanager
def averages_written_out() -> Iterator[None]:
    with mock.patch.object(_BatchNorm, "forward", _forward):
        yield


def _forward(self: _BatchNorm, input: torch.Tensor) -> torch.Tensor:
    mean, variance, count = self.running_mean, self.running_var, self.num_batches_tracked
    counts = self.momentum is None and self.training and self.track_running_stats
    if not counts or mean is None or variance is None or count is None:
        return _FORWARD(self, input)
    self._check_input_dim(input)
    with torch.no_grad():
        count.add_(1)
        share = count.to(mean.dtype).reciprocal()
        of_all = [axis for axis in range(input.dim()) if axis != 1]
        found = torch.var_mean(input.to(mean.dtype), of_all)
        for average, now in zip((variance, mean), found, strict=True):
            average.add_((now - average) * share)
    return functional.batch_norm(input, None, None, self.weight, self.bias, True, 0.0, self.eps)
