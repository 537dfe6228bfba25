"""A short training run, played by the model and by its stages.

Calls follow each other as in training: other rows, other numbers of them, updates in between,
evaluation now and then. Whatever a model remembers from one call to the next, in a buffer or where
no stage can know of it, shows here and not in a single call.
"""

import contextlib
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ravnest.planning.capture.borrowing import switched_to, unchanged, values_restored
from ravnest.planning.capture.call import Call
from ravnest.planning.capture.tensors import held_tensors
from ravnest.planning.outcomes import Outcome
from ravnest.planning.study import Study
from ravnest.stage import structure
from ravnest.stage.graph import Mode
from ravnest.stage.local import LocalPipeline

_SEED = 2024
_STEP = 0.01
"""How far an update moves the weights, of the largest of them."""


@dataclass(frozen=True)
class Scene:
    """One call."""

    call: Call
    mode: Mode

    @property
    def rows(self) -> int:
        return self.call.batch_size


class SceneError(Exception):
    """The model does not take part in a scene."""

    def __init__(self, scene: Scene, why: str) -> None:
        super().__init__(why)
        self.scene = scene


def play_model(study: Study, scenes: Sequence[Scene]) -> list[Outcome]:
    """What the model itself yields, scene by scene; it is left as it was."""
    model = study.model
    found = []
    with (
        values_restored(model),
        unchanged(model),
        switched_to(model, "train") as switch,
        _generators_restored(),
    ):
        for number, scene in enumerate(scenes):
            switch(scene.mode)
            _seed(number)
            try:
                found.append(_model_plays(study, scene))
            except Exception as error:
                raise SceneError(scene, study.why(error)) from error
    return found


def _model_plays(study: Study, scene: Scene) -> Outcome:
    model = study.model
    args, kwargs = _arguments(scene.call)
    if scene.mode == "eval":
        with torch.no_grad():
            return Outcome(_leaves(model(*args, **kwargs)), {}, {})
    output = model(*args, **kwargs)
    outputs = _leaves(output)
    trained = {name: held.tensor for name, held in study.held.items() if held.trainable}
    loss = probe_loss(output)
    gradients: dict[str, torch.Tensor | None] = dict.fromkeys(trained)
    if loss.requires_grad:
        computed = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        gradients = dict(zip(trained, computed, strict=True))
    remade = study.train.remade | study.evaluation.remade
    kept = [(name, buffer) for name, buffer in model.named_buffers() if name not in remade]
    buffers = {name: buffer.clone() for name, buffer in kept}
    _update([(trained[name], gradient) for name, gradient in gradients.items()])
    return Outcome(outputs, gradients, buffers)


def play_stages(study: Study, pipeline: LocalPipeline, scenes: Sequence[Scene]) -> list[Outcome]:
    """The same scenes, played by the stages."""
    found = []
    with contextlib.ExitStack() as stack:
        for stage in pipeline.stages:
            stack.enter_context(values_restored(stage))
            stack.enter_context(unchanged(stage))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(_generators_restored())
        for number, scene in enumerate(scenes):
            pipeline.train(scene.mode == "train")
            _seed(number)
            found.append(_stages_play(study, pipeline, scene))
    return found


def _stages_play(study: Study, pipeline: LocalPipeline, scene: Scene) -> Outcome:
    args, kwargs = _arguments(scene.call)
    if scene.mode == "eval":
        return Outcome(_leaves(pipeline(*args, **kwargs)), {}, {})
    for stage in pipeline.stages:
        stage.zero_grad(set_to_none=True)
    _, output = pipeline.step((tuple(args), kwargs), probe_loss)
    outputs = _leaves(output)
    owned = {
        spec.name: stage.tensors()[spec.name]
        for stage in pipeline.stages
        for spec in stage.graph.tensors
        if spec.owner
    }
    names = held_tensors(study.model)
    buffers = {
        name: owned[names[name].name].detach().clone()
        for name, _ in study.model.named_buffers()
        if names[name].name in owned
    }
    gradients = {name: tensor.grad for name, tensor in owned.items() if tensor.requires_grad}
    everywhere = {id(t): t for stage in pipeline.stages for t in stage.tensors().values()}
    copies = [t for t in everywhere.values() if t.requires_grad]
    _update([(tensor, tensor.grad) for tensor in copies])
    return Outcome(outputs, gradients, buffers)


def _update(pairs: Iterable[tuple[torch.Tensor, torch.Tensor | None]]) -> None:
    """A step of plain gradient descent, of the same relative length for any model."""
    known = [(tensor, gradient) for tensor, gradient in pairs if gradient is not None]
    if not known:
        return
    steepest = max(_largest(gradient) for _, gradient in known)
    widest = max(_largest(tensor) for tensor, _ in known)
    if not (math.isfinite(steepest) and math.isfinite(widest)) or steepest == 0:
        return
    with torch.no_grad():
        for tensor, gradient in known:
            tensor.add_(gradient.to(tensor.dtype), alpha=-_STEP * widest / steepest)


def _largest(tensor: torch.Tensor) -> float:
    dense = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
    return float(dense.abs().max()) if dense.numel() else 0.0


def probe_loss(result: Any) -> torch.Tensor:
    """A scalar that depends on every element of every differentiable output, each differently."""
    leaves: list[torch.Tensor] = []
    structure.flatten(result, leaves, "output")
    total = torch.zeros((), dtype=torch.float64)
    for number, leaf in enumerate(leaves):
        if not leaf.requires_grad:
            continue
        if leaf.is_complex():
            leaf = torch.view_as_real(leaf)
        weights = torch.linspace(0.5, 1.5, leaf.numel(), dtype=torch.float64).reshape(leaf.shape)
        total = total + (leaf.to("cpu", torch.float64) * weights).mean() * (1 + 0.1 * number)
    return total


def _arguments(call: Call) -> tuple[list[Any], dict[str, Any]]:
    return call.rebuild([leaf.clone() for leaf in call.leaves])


def _leaves(output: Any) -> list[torch.Tensor]:
    """Copies: an output may be a buffer, which goes on changing."""
    leaves: list[torch.Tensor] = []
    structure.flatten(output, leaves, "output")
    return [leaf.detach().clone() for leaf in leaves]


def _seed(number: int) -> None:
    """Equal draws for both sides, also from generators that modules run as they are may use."""
    torch.manual_seed(_SEED + number)
    random.seed(_SEED + number)
    np.random.seed(_SEED + number)


@contextlib.contextmanager
def _generators_restored() -> Iterator[None]:
    state, numpy_state = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)
