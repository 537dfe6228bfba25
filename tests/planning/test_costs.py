"""The planner's figures against reality: FLOPs, activations, weights, and the tables of them."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from zoo import ZOO

from ravnest.planning.costing.costs import CutCosts, TrainingMemory
from ravnest.planning.study import Study, study

EXACT = ["mlp", "digits_cnn", "unet", "tiny_gpt", "hf_bert", "hf_gpt2", "tv_resnet50", "hf_t5"]


@functools.cache
def studied(name: str, **options: Any) -> tuple[nn.Module, Any, Study]:
    """Made once for all tests, none of which changes it."""
    torch.manual_seed(0)
    model = ZOO[name].build()
    call = ZOO[name].inputs(4)
    return model, call, study(model, *call, **options)


def reality(model: nn.Module, call: Any, loss: Callable[[Any], torch.Tensor]) -> tuple[int, int]:
    """FLOPs of forward and backward, and bytes that autograd keeps, of the model as it is."""
    model = copy.deepcopy(model)
    own = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage()._cdata not in own:
            kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    args, kwargs = call
    with FlopCounterMode(display=False) as counter:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            output = model(*args, **kwargs)
        loss(output).backward()
    return counter.get_total_flops(), sum(t.untyped_storage().nbytes() for t in kept.values())


@pytest.mark.parametrize("name", EXACT)
def test_figures_equal_a_real_pass(name: str) -> None:
    model, call, study_ = studied(name)
    flops, kept = reality(model, call, ZOO[name].loss)
    costs = study_.costs
    assert costs.flops[-1] == flops
    assert costs.activation_bytes[0, -1] == pytest.approx(kept, rel=0.1)
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    assert costs.trainable_bytes[0, -1] == parameters


def test_a_real_pass_sees_what_fake_tensors_cannot() -> None:
    """The CPU's LSTM kernel keeps a workspace that only a real pass shows."""
    model, call, refined = studied("lstm", pass_data=True)
    _, kept = reality(model, call, ZOO["lstm"].loss)
    assert refined.costs.activation_bytes[0, -1] == pytest.approx(kept, rel=0.1)


def test_a_real_pass_leaves_the_model_alone() -> None:
    model = ZOO["digits_cnn"].build()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    study(model, *ZOO["digits_cnn"].inputs(4), pass_data=True)
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_tables_count_each_tensor_of_a_stage_once() -> None:
    """Against a direct count over the operators of many possible stages."""
    _, _, study_ = studied("tiny_gpt")
    costs, program = study_.costs, study_.train
    held = {
        name: entry.tensor.numel() * entry.tensor.element_size()
        for name, entry in program.held.items()
    }
    used = [set(op.held()) for op in program.ops]
    last = costs.cut_points - 1
    for p in range(0, last, 3):
        for q in {*range(p + 1, last, 7), last}:  # all lengths and both ends, but not all pairs
            start, stop = int(costs.operator[p]), int(costs.operator[q])
            inside = set().union(*used[start:stop])
            inside |= {name for name, home in study_.homes.items() if start <= home < stop}
            outside = set().union(*used[:start], *used[stop:])
            trainable = {name for name in inside if program.held[name].trainable}
            assert costs.weight_bytes[p, q] == sum(held[name] for name in inside)
            assert costs.trainable_bytes[p, q] == sum(held[name] for name in trainable)
            assert costs.tied_bytes[p, q] == sum(held[name] for name in trainable & outside)


def test_traffic_of_the_tables_is_that_of_the_stages() -> None:
    """What a cut is said to cost is what its two stages really exchange."""
    for name in ("unet", "hf_bert", "digits_cnn", "many_inputs"):
        _, _, study_ = studied(name)
        costs = study_.costs
        for p in range(1, costs.cut_points - 1):
            _, second = study_.stages([int(costs.operator[p])])
            numbers = [wire.value for wire in second.train.receives]
            assert sum(study_.facts.bytes[n] for n in numbers) == costs.forward_bytes[p]
            backward = [wire.value for wire in second.train.receives if wire.grad]
            assert sum(study_.facts.bytes[n] for n in backward) == costs.backward_bytes[p]


def test_memory_adds_up_and_grows_towards_the_root() -> None:
    _, _, study_ = studied("tiny_gpt")
    costs, training = study_.costs, TrainingMemory()
    middle = costs.cut_points // 2
    first = costs.memory(0, middle, 0, 3, training)
    same_but_last = costs.memory(0, middle, 2, 3, training)
    assert first.total == sum(msgspec.structs.asdict(first).values())
    assert first.activations == 3 * same_but_last.activations
    # An older version, and how far the weights have been put ahead.
    assert (first.versions, same_but_last.versions) == (2 * first.gradients, 0)
    stateless = costs.memory(0, middle, 0, 3, TrainingMemory(optimizer_factor=0.0))
    assert stateless.versions == first.gradients, "no momentum, nothing to look ahead by"
    assert first.optimizer == 2 * first.gradients
    matrix = costs.memory_at(..., 0, 3, training)
    assert matrix[0, middle] == pytest.approx(first.total)


def test_computing_activations_again_keeps_what_the_stage_was_given() -> None:
    _, ((batch,), _), study_ = studied("tiny_gpt")
    costs, training = study_.costs, TrainingMemory()
    third = costs.cut_points // 3
    for p, q, stage, given in ((0, third, 0, batch.nbytes), (third, 2 * third, 1, None)):
        kept = costs.memory(p, q, stage, 3, training)
        again = costs.memory(p, q, stage, 3, training, recompute=True)
        held = 3 - stage
        entering = costs.forward_bytes[p] if given is None else given
        assert again.activations == pytest.approx(kept.activations / held + entering * held, abs=1)
        assert again.total - again.activations == kept.total - kept.activations
        frugal = costs.memory_at((p, q), stage, 3, training, recompute=True)
        assert frugal == pytest.approx(again.total, abs=2)
    extra = costs.compute_seconds(0, third, 50, recompute=True) / costs.compute_seconds(
        0, third, 50
    )
    assert 1.2 < extra < 1.6


def test_seventy_billion_parameters_are_planned_without_their_memory() -> None:
    with torch.device("meta"):
        layers = [nn.Linear(32_768, 32_768, bias=False) for _ in range(66)]
        model = nn.Sequential(*layers)
        batch = torch.empty(8, 32_768)
    study_ = study(model, (batch,))
    assert sum(p.numel() for p in model.parameters()) > 70e9
    assert study_.costs.weight_bytes[0, -1] == 66 * 32_768**2 * 4
    assert study_.costs.flops[-1] == pytest.approx(3 * 2 * 66 * 8 * 32_768**2, rel=0.01)


def test_tables_are_monotone() -> None:
    """A longer stage never holds less."""
    _, _, study_ = studied("tv_resnet50")
    costs: CutCosts = study_.costs
    for table in (costs.weight_bytes, costs.activation_bytes, costs.working_bytes):
        upper = np.triu_indices(costs.cut_points, 1)
        grown = np.diff(table, axis=1)[: costs.cut_points, :]
        assert (grown[np.triu(np.ones_like(grown, dtype=bool), 1)] >= 0).all()
        assert (table[upper] >= 0).all()
