"""Every architecture of the zoo computes in stages what it computes whole.

Outputs, all parameter gradients, evaluation, other batch sizes and the fused state_dict agree to
1e-5 after steps with momentum, dropout included: at 2, 3 and 5 stages for the models written for
the zoo, at 5 for those of libraries, which differ in size rather than in kind. Models of many kinds
are planned from files as well, by a party who does not have their code: the plan is the one their
owner would have got, and the packages written from it train as the model itself does.

Capturing a model takes most of the time, so that all this is asked of one study.
`python3 dev.py soak tests` adds the heavy models and the other numbers of stages.
"""

from importlib import resources
from pathlib import Path

import msgspec
import pytest
import torch
from handed import assert_same, packages, pool
from harness import Inputs, compare, even_cuts, in_float64, load_stages
from soaking import SOAK
from torch import nn
from zoo import ILL_CONDITIONED, ZOO, ZooEntry

from ravnest.planning.handover import study_package, write_model
from ravnest.planning.planned import PlanRequest, plan_only
from ravnest.planning.study import Study, study
from ravnest.stage.operators import operator_name

TOLERANCE = 1e-5
_LIST = resources.files("ravnest.stage").joinpath("allowed_operators.txt").read_text()
ORIGINS = [line.split(" ", 1) for line in _LIST.splitlines()]
"""Each operator of the allow-list, and the model that has to emit it."""

NAMES = [name for name, entry in ZOO.items() if SOAK or not entry.heavy]
HANDED_OVER = {
    "mlp", "tied_autoencoder", "shared_ends", "routed_experts", "split_experts",
    "bag_of_words", "many_inputs",
    "unet", "dilated_pyramid", "depthwise_separable", "lstm", "bidirectional_lstm", "cell_loop",
    "tiny_gpt", "tiny_gpt_with_loss", "encoder_decoder", "shared_mask_attention", "rotary_grouped",
    "dict_output", "dataclass_output", "namedtuple_output", "nested_output", "nested_input",
    "python_arguments", "variable_keywords", "pass_through", "unused_and_frozen", "own_backward",
    "frozen_batch_norm", "pinned_batch_norm", "no_grad_region", "autocast_region",
    "moving_averages", "parametrised", "spectrally_normed", "checkpointed", "vae",
    "message_passing", "spatial_transformer", "fourier_mixer", "in_place_writes",
    "tv_googlenet", "timm_vit", "hf_gpt2", "hf_t5", "hf_mamba",
}  # fmt: skip


def operators_of(studied: Study) -> set[str]:
    programs = (studied.train, studied.evaluation)
    return {operator_name(op.target) for program in programs for op in program.ops}


def batch_sizes(studied: Study, entry: ZooEntry) -> tuple[int, int]:
    return (4, entry.other_batch) if studied.train.dynamic else (4, 4)


@pytest.mark.parametrize("name", NAMES)
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
    assert {op for op, origin in ORIGINS if origin == name} <= operators_of(studied)
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[key]), f"planning changed {key}"
    tried = set()
    own = entry.family == "handwritten"
    for stages in entry.stages if own or SOAK else entry.stages[-1:]:
        cuts = even_cuts(studied, stages)
        if len(cuts) in tried:
            continue
        tried.add(len(cuts))
        pipeline = load_stages(studied, cuts, tmp_path)
        sizes = batch_sizes(studied, entry)
        errors = compare(model, pipeline, studied, inputs, entry.loss, sizes)
        assert errors.worst() <= TOLERANCE, f"{stages} stages: {errors}"
    assert tried
    if name in HANDED_OVER:
        planned_from_files_it_trains_as_the_model_does(model, studied, entry, inputs, tmp_path)


def planned_from_files_it_trains_as_the_model_does(
    model: nn.Module, owners: Study, entry: ZooEntry, inputs: Inputs, folder: Path
) -> None:
    write_model(folder / "model", owners)
    taken = study_package(folder / "model")
    assert_same(owners, taken)
    request = PlanRequest(min_cluster_size=1)
    ours, theirs = (plan_only(studied, pool(), request) for studied in (owners, taken))
    assert theirs == msgspec.structs.replace(ours, warnings=theirs.warnings, plan_id=theirs.plan_id)
    if not set(theirs.warnings) - set(ours.warnings):
        assert theirs.plan_id == ours.plan_id
    _, pipeline = packages(taken, folder / "node_data")
    assert len(pipeline.stages) > 1
    errors = compare(model, pipeline, taken, inputs, entry.loss, batch_sizes(taken, entry))
    assert errors.worst() <= TOLERANCE, errors
