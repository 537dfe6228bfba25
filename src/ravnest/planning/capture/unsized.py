"""Results whose shapes torch's captures do not know, for no reason that a model could help.

The kernel behind `ctc_loss` keeps a table for its backward whose size depends on the lengths of the
labels, so torch declines to say how large it is. The loss itself has a plain shape, and the table
never shows in a graph, which holds `ctc_loss` as one operator.
"""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch._subclasses import fake_impls


def _ctc_loss(
    mode: Any, operator: Any, log_probs: torch.Tensor, targets: torch.Tensor, *rest: Any, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = log_probs.shape[1:-1]
    table = (*rows, log_probs.shape[0], 2 * targets.shape[-1] + 1)
    return log_probs.new_empty(rows), log_probs.new_empty(table)


@contextlib.contextmanager
def sizes_known() -> Iterator[None]:
    kernel = torch.ops.aten._ctc_loss
    known = dict.fromkeys((kernel.Tensor, kernel.default), _ctc_loss)
    with mock.patch.dict(fake_impls.op_implementations_dict, known):
        yield
