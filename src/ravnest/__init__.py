"""Ravnest trains one PyTorch model across many ordinary, unequal computers.

    from ravnest import Node, Trainer, clusterize, model_fusion, set_seed
    from ravnest import Session

Names are imported when they are first used, so that `ravnest --help` does not wait for torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ravnest.release import VERSION

if TYPE_CHECKING:
    from ravnest.errors import JobError, RavnestError, ServerError, TokenError
    from ravnest.node import Node
    from ravnest.operations.utils import clusterize
    from ravnest.provider.averaging.outer import Nesterov
    from ravnest.provider.averaging.settings import Averaging
    from ravnest.session import Job, JobRequest, Session
    from ravnest.trainer import Trainer
    from ravnest.utils import model_fusion, set_seed

__version__ = VERSION

_HOMES = {
    "Averaging": "ravnest.provider.averaging.settings",
    "Job": "ravnest.session",
    "JobError": "ravnest.errors",
    "JobRequest": "ravnest.session",
    "Nesterov": "ravnest.provider.averaging.outer",
    "Node": "ravnest.node",
    "RavnestError": "ravnest.errors",
    "ServerError": "ravnest.errors",
    "Session": "ravnest.session",
    "TokenError": "ravnest.errors",
    "Trainer": "ravnest.trainer",
    "clusterize": "ravnest.operations.utils",
    "model_fusion": "ravnest.utils",
    "set_seed": "ravnest.utils",
}

__all__ = [
    "Averaging",
    "Job",
    "JobError",
    "JobRequest",
    "Nesterov",
    "Node",
    "RavnestError",
    "ServerError",
    "Session",
    "TokenError",
    "Trainer",
    "__version__",
    "clusterize",
    "model_fusion",
    "set_seed",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'ravnest' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
