"""Every architecture of the zoo computes in stages what it computes whole.

Outputs, all parameter gradients, evaluation, other batch sizes and the fused state_dict agree to
1e-5 after steps with momentum, dropout included, at 2, 3 and 5 stages.
"""

from pathlib import Path

import pytest
import torch
from harness import compare, even_cuts, in_float64, load_stages
from zoo import ILL_CONDITIONED, ZOO

from ravnest.planning.study import study

TOLERANCE = 1e-5


@pytest.mark.parametrize("name", list(ZOO))
def test_stages_equal_the_model(name: str, tmp_path: Path) -> None:
    entry = ZOO[name]
    torch.manual_seed(0)
    model = entry.build()
    inputs = entry.inputs
    if name in ILL_CONDITIONED:
        model, inputs = model.double(), in_float64(inputs)
    torch.manual_seed(1)
    args, kwargs = inputs(4)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    studied = study(model, args, kwargs)
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[key]), f"planning changed {key}"
    batch_sizes = (4, entry.other_batch) if studied.train.dynamic else (4, 4)
    tried = set()
    for stages in entry.stages:
        cuts = even_cuts(studied, stages)
        if len(cuts) in tried:
            continue
        tried.add(len(cuts))
        pipeline = load_stages(studied, cuts, tmp_path)
        errors = compare(model, pipeline, studied, inputs, entry.loss, batch_sizes)
        assert errors.worst() <= TOLERANCE, f"{stages} stages: {errors}"
    assert tried
