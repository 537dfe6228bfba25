"""The sweep finds models that it can try, and tells what has come of each (`dev.py soak sweep`)."""

import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent / "parity"))
from sweep import Outcome, attempt, summary, sweep, transformers_models
from torchvision_shim import import_torchvision
from zoo_models.refused import Branch


def inputs(rows):
    return (torch.randn(rows, 4),), {}


def test_each_architecture_has_an_outcome():
    noted = []
    models = {
        "cut": lambda: (nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))), inputs),
        "refused": lambda: (Branch(), inputs),
        "unsuitable": lambda: (nn.Linear(5, 4), inputs),
    }
    found = sweep(models, noted.append)
    assert noted == found
    assert [outcome.kind for outcome in found] == list(models)
    assert "1 of 2 cut (50.0%); 1 unsuitable" in summary(found)
    assert "refused (1): cannot be cut: Could not guard" in summary(found)


def test_an_architecture_of_transformers_is_made_small_by_rule():
    import_torchvision()
    kind, detail = attempt(transformers_models()["hf:phi"])
    assert (kind, detail[:8]) == ("cut", "3 stages")


def test_what_is_wrong_is_said_by_name():
    found = [Outcome("hf:a", "wrong", "it differs"), Outcome("hf:b", "cut", "3 stages")]
    assert "wrong: hf:a: it differs" in summary(found)
