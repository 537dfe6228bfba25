"""Models of many kinds, planned from files by somebody who does not have their code.

The plan is the one their owner would have got, and the packages written from it train as the model
itself does: outputs, gradients, evaluation and the fused state_dict.
"""

from pathlib import Path

import msgspec
import pytest
import torch
from handed import assert_same, hand_over, packages, pool
from harness import compare, in_float64
from zoo import ILL_CONDITIONED, ZOO

from ravnest.planning.planned import PlanRequest, plan_only

TOLERANCE = 1e-5

KINDS = [
    "mlp", "tied_autoencoder", "shared_ends", "routed_experts", "bag_of_words", "many_inputs",
    "unet", "dilated_pyramid", "depthwise_separable", "lstm", "bidirectional_lstm", "cell_loop",
    "tiny_gpt", "tiny_gpt_with_loss", "encoder_decoder", "shared_mask_attention", "rotary_grouped",
    "dict_output", "dataclass_output", "namedtuple_output", "nested_output", "nested_input",
    "python_arguments", "variable_keywords", "pass_through", "unused_and_frozen",
    "frozen_batch_norm", "pinned_batch_norm", "no_grad_region", "autocast_region",
    "moving_averages", "parametrised", "spectrally_normed", "checkpointed", "vae",
    "message_passing", "spatial_transformer", "fourier_mixer", "in_place_writes",
    "tv_googlenet", "timm_vit", "hf_gpt2", "hf_t5", "hf_mamba",
]  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_a_model_planned_from_files_trains_as_the_model_does(name: str, tmp_path: Path) -> None:
    entry = ZOO[name]
    torch.manual_seed(0)
    model, inputs = entry.build(), entry.inputs
    if name in ILL_CONDITIONED:
        model, inputs = model.double(), in_float64(inputs)
    torch.manual_seed(1)
    args, kwargs = inputs(4)
    handed = hand_over(model, args, tmp_path / "model", kwargs)
    assert_same(handed.owners, handed.taken)
    request = PlanRequest(min_cluster_size=1)
    ours = plan_only(handed.owners, pool(), request)
    theirs = plan_only(handed.taken, pool(), request)
    assert theirs == msgspec.structs.replace(ours, warnings=theirs.warnings, plan_id=theirs.plan_id)
    if not set(theirs.warnings) - set(ours.warnings):
        assert theirs.plan_id == ours.plan_id
    _, pipeline = packages(handed.taken, tmp_path / "node_data")
    assert len(pipeline.stages) > 1
    sizes = (4, entry.other_batch) if handed.taken.train.dynamic else (4, 4)
    errors = compare(model, pipeline, handed.taken, inputs, entry.loss, sizes)
    assert errors.worst() <= TOLERANCE, errors
