"""Questions that a model asks about values, and that a capture answers without having any."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ravnest.errors import CaptureError
from ravnest.planning.capture import exporting
from ravnest.planning.study import study

BATCH = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))


def refused(model: nn.Module, *words: str) -> None:
    with pytest.raises(CaptureError) as caught:
        study(model, (BATCH,))
    for word in words:
        assert word in str(caught.value)


# ---- being told of a compiler -------------------------------------------------------------------


class FailsEitherWay(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if torch.compiler.is_compiling():
            return self.last(h.view(-1, 7)) + x
        return self.last(h if h.sum() > 0 else h.tanh()) + x


def test_both_ways_to_fail_are_named() -> None:
    refused(FailsEitherWay(), "h.view(-1, 7)", "As it runs for its users", "if h.sum() > 0")


def test_torch_itself_is_always_told_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)

    def asked(name: str) -> Any:
        return eval("torch.compiler.is_compiling()", {"torch": torch, "__name__": name})

    with exporting._is_told(False):
        assert [asked(name) for name in ("torch", "torch.nn", "torchvision")] == [True, True, False]
