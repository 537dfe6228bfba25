"""Models of several kinds compute in stages on a device what they compute whole on it.

A stage names no device, and its tensors, constants and whatever its operators make are where it
runs: an operator that makes a tensor somewhere else is refused by the device.
"""

from pathlib import Path

import pytest
import torch
from devices import requires_toy
from harness import compare, even_cuts, load_stages, on_device
from zoo import ZOO

from ravnest.planning.study import study

requires_toy()
NAMES = [
    *("routed_experts", "bag_of_words", "depthwise_separable", "rotary_grouped", "dict_output"),
    *("vae", "no_grad_region", "moving_averages", "checkpointed", "in_place_writes"),
]
"""Without tied parameters, which the whole model would lose on its way to the device."""


@pytest.mark.parametrize("name", NAMES)
def test_stages_equal_the_model_on_a_device(name: str, tmp_path: Path) -> None:
    entry = ZOO[name]
    torch.manual_seed(0)
    model = entry.build()
    torch.manual_seed(1)
    args, kwargs = entry.inputs(4)
    studied = study(model, args, kwargs)
    pipeline = load_stages(studied, even_cuts(studied, 3), tmp_path, "toy")
    inputs = on_device(entry.inputs, "toy")
    errors = compare(model, pipeline, studied, inputs, entry.loss, (4, 4), "toy")
    assert errors.worst() <= 1e-5, errors
