"""Hooks on the backward pass of modules: code that a captured graph would lose.

Hooks on the forward pass are no trouble: whatever they compute is captured with the rest.
"""

from collections.abc import Mapping
from typing import Any

import torch.nn.modules.module as torch_module
from torch import nn

from ravnest.errors import CaptureError

_FORWARD = ("_forward_hooks", "_forward_pre_hooks")
_BACKWARD = ("_backward_hooks", "_backward_pre_hooks")


def has_hooks(module: nn.Module) -> bool:
    """Does calling this module do more than its forward says?"""
    return any(getattr(module, registry, None) for registry in (*_FORWARD, *_BACKWARD))


def has_global_hooks() -> bool:
    return any(_global(registry) for registry in (*_FORWARD, *_BACKWARD))


def refuse_backward_hooks(model: nn.Module) -> None:
    for path, module in model.named_modules():
        for registry in _BACKWARD:
            for hook in getattr(module, registry, {}).values():
                where = f"module {path!r}" if path else type(model).__name__
                raise _refusal(f"{where} has a backward hook ({_name(hook)})")
    for registry in _BACKWARD:
        for hook in _global(registry).values():
            raise _refusal(f"a backward hook is set for all modules ({_name(hook)})")


def _refusal(what: str) -> CaptureError:
    return CaptureError(
        f"{what}. A captured graph would lose it and train on other gradients. Remove it before "
        "planning (handle.remove()), or express it as a custom operator with its own backward "
        "(torch.library.custom_op and register_autograd)."
    )


def _global(registry: str) -> Mapping[int, Any]:
    hooks: Mapping[int, Any] = getattr(torch_module, f"_global{registry}", {})
    return hooks


def _name(hook: Any) -> str:
    code = getattr(hook, "__code__", None)
    name = getattr(hook, "__qualname__", type(hook).__name__)
    return f"{name}, {code.co_filename}:{code.co_firstlineno}" if code else name
