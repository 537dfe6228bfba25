"""Run a model whole and in stages, side by side, and compare everything that training depends on.

The stages always go through their files: written as packages, read back, checked, loaded.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from access import same_access
from torch import nn

from ravnest.planning.fusion import assemble
from ravnest.planning.state import model_index
from ravnest.planning.study import Study
from ravnest.stage import structure
from ravnest.stage.local import LocalPipeline
from ravnest.stage.package import load_package, write_package

ACCESS_TOLERANCE = 1e-3
"""Enough to tell one tensor from another; how well they agree is measured leaf by leaf."""

Inputs = Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]]


def in_float64(inputs: Inputs) -> Inputs:
    """The same inputs with every floating tensor in double precision."""

    def make(rows: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return torch.utils._pytree.tree_map_only(
            torch.Tensor, lambda t: t.double() if t.is_floating_point() else t, inputs(rows)
        )

    return make


def even_cuts(study: Study, stages: int) -> list[int]:
    """Inner borders that share the compute about evenly; fewer if the model has fewer places."""
    costs = study.costs
    targets = costs.compute_s[-1] * np.arange(1, stages) / stages
    inner = np.arange(1, costs.cut_points - 1)
    chosen: list[int] = []
    for target in targets:
        free = [p for p in inner if not chosen or p > chosen[-1]]
        if free:
            chosen.append(min(free, key=lambda p: abs(costs.compute_s[p] - target)))
    return [int(costs.operator[p]) for p in chosen]


def on_device(inputs: Inputs, device: str) -> Inputs:
    """The same inputs there."""

    def make(rows: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to(device), inputs(rows))

    return make


def load_stages(
    study: Study, cuts: Sequence[int], folder: Path, device: str = "cpu"
) -> LocalPipeline:
    graphs = study.stages(cuts)
    held = study.held
    modules = []
    for graph in graphs:
        path = folder / f"stage_{graph.stage}_of_{graph.stages}"
        weights = {spec.name: held[spec.name].tensor for spec in graph.tensors}
        write_package(path, graph, weights, plan_id="test", cluster=0)
        modules.append(load_package(path).module(device, model=study.model))
    return LocalPipeline(modules)


def leaves_of(output: Any) -> list[torch.Tensor]:
    leaves: list[torch.Tensor] = []
    structure.flatten(output, leaves, "output")
    return [leaf.detach() for leaf in leaves]


def relative_error(expected: torch.Tensor, found: torch.Tensor, scale: float = 0.0) -> float:
    assert expected.shape == found.shape
    assert expected.dtype == found.dtype
    if expected.numel() == 0:
        return 0.0
    if not (expected.is_floating_point() or expected.is_complex()):
        return 0.0 if torch.equal(expected, found) else float("inf")
    same_nan = torch.equal(expected.isnan(), found.isnan())
    assert same_nan
    difference = (expected - found).abs().nan_to_num(0.0).max()
    size = max(float(expected.abs().nan_to_num(0.0).max()), scale, 1e-30)
    return float(difference) / size


@dataclass
class Errors:
    """Largest relative differences seen."""

    outputs: float = 0.0
    gradients: float = 0.0
    evaluation: float = 0.0
    state: float = 0.0

    def worst(self) -> float:
        return max(self.outputs, self.gradients, self.evaluation, self.state)


def compare(
    model: nn.Module,
    pipeline: LocalPipeline,
    study: Study,
    inputs: Inputs,
    loss: Callable[[Any], torch.Tensor],
    batch_sizes: Sequence[int],
    device: str = "cpu",
) -> Errors:
    """Train both for a few steps with momentum, then evaluate, then compare the fused state."""
    reference = copy.deepcopy(model).to(device)
    errors = Errors()
    optimizer = torch.optim.SGD(reference.parameters(), lr=1e-3, momentum=0.9)
    stage_optimizers = [
        torch.optim.SGD(stage.parameters(), lr=1e-3, momentum=0.9)
        for stage in pipeline.stages
        if list(stage.parameters())
    ]
    pipeline.train()
    for step, rows in enumerate(batch_sizes):
        torch.manual_seed(100 + step)
        args, kwargs = inputs(rows)
        torch.manual_seed(200 + step)
        optimizer.zero_grad()
        expected = reference(*args, **kwargs)
        loss(expected).backward()
        torch.manual_seed(100 + step)
        args, kwargs = inputs(rows)
        torch.manual_seed(200 + step)
        for stage_optimizer in stage_optimizers:
            stage_optimizer.zero_grad()
        _, found = pipeline.step((args, kwargs), loss)
        _compare_outputs(errors, "outputs", expected, found)
        _compare_gradients(errors, reference, pipeline)
        optimizer.step()
        for stage_optimizer in stage_optimizers:
            stage_optimizer.step()
    reference.train(False)
    pipeline.train(False)
    for rows in batch_sizes[-2:]:
        torch.manual_seed(300)
        args, kwargs = inputs(rows)
        torch.manual_seed(400)
        with torch.no_grad():
            expected = reference(*args, **kwargs)
        torch.manual_seed(400)
        _compare_outputs(errors, "evaluation", expected, pipeline(*args, **kwargs))
    _compare_state(errors, reference, pipeline, study)
    return errors


def _compare_outputs(errors: Errors, field: str, expected: Any, found: Any) -> None:
    for one, other in zip(leaves_of(expected), leaves_of(found), strict=True):
        setattr(errors, field, max(getattr(errors, field), relative_error(one, other)))
    for way, one, other in same_access(expected, found):
        error = relative_error(one, other)
        assert error <= ACCESS_TOLERANCE, f"output{way} is another tensor: {error:.1e}"


def _compare_gradients(errors: Errors, reference: nn.Module, pipeline: LocalPipeline) -> None:
    parameters = dict(reference.named_parameters(remove_duplicate=False))
    gradients = [p.grad for p in parameters.values() if p.grad is not None]
    scale = 1e-3 * max(float(gradient.abs().max()) for gradient in gradients if gradient.numel())
    seen = set()
    for stage in pipeline.stages:
        for name, tensor in stage.tensors().items():
            if name not in parameters:
                continue
            seen.add(name)
            expected, found = parameters[name].grad, tensor.grad
            if expected is None or found is None:
                given = expected if expected is not None else found
                assert given is None or float(given.abs().max()) == 0.0, f"gradient of {name}"
                continue
            errors.gradients = max(errors.gradients, relative_error(expected, found, scale))
    unique = {name for name, _ in reference.named_parameters()}
    assert unique <= seen, f"no stage holds {sorted(unique - seen)}"


def _compare_state(
    errors: Errors, reference: nn.Module, pipeline: LocalPipeline, study: Study
) -> None:
    owned = {
        spec.name: stage.tensors()[spec.name]
        for stage in pipeline.stages
        for spec in stage.graph.tensors
        if spec.owner
    }
    fused = assemble(
        model_index(study, "test"), {name: tensor.detach() for name, tensor in owned.items()}
    )
    expected = reference.state_dict()
    assert list(fused) == list(expected)
    # A bias in front of a normalisation has no gradient but rounding noise: measure such tensors
    # against the size of the model's other parameters.
    scale = 1e-3 * max(float(p.abs().max()) for p in reference.parameters() if p.numel())
    for key, tensor in expected.items():
        errors.state = max(errors.state, relative_error(tensor, fused[key], scale))
    reference.load_state_dict(fused, strict=True)
