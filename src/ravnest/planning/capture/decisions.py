"""Questions about data that common models ask and that have only one answer.

A capture works without data, so it must give up where a model asks for some. Two such questions are
everywhere and can be answered all the same:

- Layer dropping is written as `if torch.rand([]) < self.layerdrop: skip`. A draw from [0, 1) is
  never below 0 and always below 1; so with a probability of 0, the default of many models, the
  branch is known. The draw itself stays in the graph and moves the generator on as in the model.
- `nn.Transformer` looks whether a mask happens to be causal, to pick a faster kernel. The mask is
  applied either way, so the answer "not known to be" is always right.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.modules.transformer as torch_transformer
from torch.overrides import TorchFunctionMode

from ravnest.errors import CaptureError
from ravnest.planning.capture.sources import user_frame

_BELOW = {torch.Tensor.__lt__, torch.Tensor.lt, torch.lt, torch.less, torch.Tensor.less}
_NOT_BELOW = {
    torch.Tensor.__ge__,
    torch.Tensor.ge,
    torch.ge,
    torch.greater_equal,
    torch.Tensor.greater_equal,
}


class DecidedDraws(TorchFunctionMode):
    """While active, `torch.rand([]) < p` is a plain bool for p <= 0 and for p >= 1."""

    def __init__(self) -> None:
        super().__init__()
        self._draws: list[torch.Tensor] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in (torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook):
            raise CaptureError(
                f"the model registers a hook on a tensor {user_frame()}. A captured graph would "
                "lose it and train on other gradients. Express it as a custom operator with its "
                "own backward (torch.library.custom_op and register_autograd)."
            )
        if func in _BELOW or func in _NOT_BELOW:
            answer = self._decide(*args[:2]) if len(args) == 2 else None
            if answer is not None:
                return answer if func in _BELOW else not answer
        result = func(*args, **(kwargs or {}))
        if func is torch.rand and isinstance(result, torch.Tensor) and result.dim() == 0:
            self._draws.append(result)
        return result

    def _decide(self, draw: Any, probability: Any) -> bool | None:
        if not isinstance(probability, int | float) or not any(draw is d for d in self._draws):
            return None
        if probability <= 0:
            return False
        return True if probability >= 1 else None


@contextlib.contextmanager
def decided() -> Iterator[None]:
    """Answer both questions for the code inside."""
    original = torch_transformer._detect_is_causal_mask

    def as_told(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
        return is_causal is True

    torch_transformer._detect_is_causal_mask = as_told
    try:
        with DecidedDraws():
            yield
    finally:
        torch_transformer._detect_is_causal_mask = original
