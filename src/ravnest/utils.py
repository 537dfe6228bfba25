"""Small things every Ravnest program needs: equal seeds before training, one model after it."""

import os
import random
from pathlib import Path

import numpy as np
import torch

from ravnest.errors import NodeError
from ravnest.planning.fusion import fuse_cluster


def set_seed(seed: int = 42) -> None:
    """Seed Python, NumPy and torch, so that all providers shuffle their data alike."""
    if type(seed) is not int or not 0 <= seed < 2**32:
        raise NodeError(f"seed is {seed!r}; expected a whole number from 0 to 2**32 - 1")
    os.environ["PYTHONHASHSEED"] = str(seed)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def model_fusion(
    cluster_id: int = 0, *, node_data: str | Path = "node_data", output: str | Path = "trained"
) -> Path:
    """Combine the trained stages of a cluster into `trained/trained_state_dict.pt`.

    The result loads into the original model with `model.load_state_dict(torch.load(path,
    weights_only=True))`; the same tensors are written as safetensors beside it. Works after a run
    with `Trainer(save=True)`; a stage that is missing or does not belong is a clear error.
    """
    return fuse_cluster(node_data, cluster_id, output)
