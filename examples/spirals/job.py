"""Points on three spiral arms, and a network that learns which arm each is on.

ravnest submit job.py       on a computer that knows a server
"""

import torch
from torch import nn


def job():
    torch.manual_seed(1)
    arms = torch.randint(3, (3000,))
    distances = torch.rand(3000, 1)
    angles = 2 * torch.pi * (1.5 * distances + arms[:, None] / 3)
    points = distances * torch.cat([angles.cos(), angles.sin()], 1)
    model = nn.Sequential(
        nn.Linear(2, 128),
        nn.ReLU(),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Linear(128, 3),
    )
    return {
        "name": "spirals",
        "model": model,
        "example_args": (points[:64],),  # a sample batch
        "data": (points, arms),
        "validation": 0.2,  # a fifth of the rows
        "loss": "cross_entropy",
        "optimizer": "adamw",
        "optimizer_params": {"lr": 3e-3},
        "schedule": "cosine",  # down to nothing, epoch by epoch
        "metrics": ["accuracy"],
        "epochs": 20,
        "batch_size": 64,
    }
