"""The sweep finds models that it can try, and tells what has come of each (`dev.py soak sweep`)."""

import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent / "parity"))
import sweep as sweeping
from sweep import Outcome, attempt, summary, sweep, transformers_models
from sweep_settings import BY_HAND
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


@pytest.mark.parametrize("name", ["perceiver", "vision-encoder-decoder"])
def test_what_no_rule_fits_has_settings_by_hand(name):
    import_torchvision()
    assert name in BY_HAND
    model, make = transformers_models()[f"hf:{name}"]()
    sweeping._check_suitable(model, make)


def test_settings_by_hand_belong_to_architectures():
    import_torchvision()
    assert {f"hf:{name}" for name in BY_HAND} <= transformers_models().keys()


def test_a_model_that_is_not_cut_in_time_is_refused_and_one_that_does_not_run_is_not(monkeypatch):
    monkeypatch.setattr(sweeping, "MODEL_S", 1)
    build = lambda: (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), inputs)  # noqa: E731
    monkeypatch.setattr(sweeping, "_cut", lambda *_: time.sleep(5))
    assert attempt(build) == ("refused", "TimeUpError: it took more than 1 s")
    monkeypatch.setattr(sweeping, "_check_suitable", lambda *_: time.sleep(5))
    assert attempt(build)[0] == "unsuitable"


def test_what_is_wrong_is_said_by_name():
    found = [Outcome("hf:a", "wrong", "it differs"), Outcome("hf:b", "cut", "3 stages")]
    assert "wrong: hf:a: it differs" in summary(found)
