"""Compare the stages, as loaded from their files, with the model they came from.

Cutting rests on torch's capture being right about code nobody here has seen. So before a plan is
handed out, the stages and the model run side by side on the example inputs, at three batch sizes
where the model allows it, and outputs, gradients and buffers must agree. A difference is an error,
never a silent wrong result. A few rows show it as well as many.
"""

import contextlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ravnest.errors import CaptureError
from ravnest.planning.capture.borrowing import (
    switched_to,
    unchanged,
    values_restored,
)
from ravnest.planning.capture.call import Call
from ravnest.planning.study import Study
from ravnest.stage import structure
from ravnest.stage.graph import Mode
from ravnest.stage.local import LocalPipeline
from ravnest.stage.module import StageModule

_SEED = 2024
_ROWS = 4
_TOLERANCE = {
    torch.float64: 1e-8,
    torch.float32: 1e-4,
    torch.bfloat16: 5e-2,
    torch.float16: 1e-2,
    torch.complex64: 1e-4,
    torch.complex128: 1e-8,
}
_GRADIENT_SLACK = 10.0
"""Gradients are summed in another order across stages; deep networks amplify the last bit."""


class OneRowError(CaptureError):
    """The stages are right for several rows and wrong for a single one."""


@dataclass
class _Outcome:
    outputs: list[torch.Tensor]
    gradients: dict[str, torch.Tensor | None]
    buffers: dict[str, torch.Tensor]


class SelfCheck:
    """Holds what the model computes, so that the cuts of several clusters are compared with it."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self._expected: dict[tuple[int, Mode], _Outcome | None] = {}

    def __call__(self, stages: Sequence[StageModule]) -> None:
        """Raise `CaptureError` if the stages do not compute what the model computes."""
        pipeline = LocalPipeline(stages)
        modes: tuple[Mode, ...] = ("train", "eval")
        with _generators_restored():
            for call in _calls(self.study):
                for mode in modes:
                    self._compare(pipeline, call, mode)

    def _compare(self, pipeline: LocalPipeline, call: Call, mode: Mode) -> None:
        expected = self._model_outcome(call, mode)
        if expected is None:
            return
        found = _run_stages(self.study, pipeline, call, mode)
        difference = _difference(expected, found)
        if difference is None:
            return
        name = self.study.name
        if _difference(expected, _run_model(self.study, call, mode)) is not None:
            raise CaptureError(
                f"{name} gives different results for equal inputs and equal torch seeds "
                f"({difference}), so its stages cannot be verified. Make its randomness depend "
                "on torch's generator only, or pass self_check=False."
            )
        if call.batch_size == 1:
            raise OneRowError(f"{name} does something else with a single row: {difference}")
        raise CaptureError(
            f"the cut stages of {name} do not compute what the model computes: "
            f"{difference} (in {mode} mode, batch of {call.batch_size}). The model's forward "
            "probably depends on Python state that changes between calls, or on the batch size as "
            "a plain number (float(len(x))); make it depend on its inputs, parameters and "
            "buffers only."
        )

    def _model_outcome(self, call: Call, mode: Mode) -> _Outcome | None:
        """None if the model itself does not accept this batch size."""
        key = (call.batch_size, mode)
        if key not in self._expected:
            try:
                self._expected[key] = _run_model(self.study, call, mode)
            except Exception as error:
                if call.batch_size == _calls(self.study)[0].batch_size:
                    raise CaptureError(
                        f"{self.study.name} itself fails in {mode} mode on the example inputs: "
                        f"{error}"
                    ) from error
                self._expected[key] = None
        return self._expected[key]


def _calls(study: Study) -> list[Call]:
    """A few rows of the example, one more, and a single one, where the plan allows it."""
    example, planned = study.call, study.train.batch_size
    if not (study.train.dynamic and study.evaluation.dynamic):
        return [example if example.batch_size == planned else example.resized(planned)]
    limits = [program.rows for program in (study.train, study.evaluation)]

    def allowed(rows: int) -> bool:
        return all(least <= rows and (most is None or rows <= most) for least, most in limits)

    few = next((rows for rows in range(min(planned, _ROWS), planned) if allowed(rows)), planned)
    sizes = [few, *(rows for rows in (few + 1, 1) if allowed(rows))]
    return [example if rows == example.batch_size else example.resized(rows) for rows in sizes]


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


def _seed() -> None:
    """Equal draws for both sides, also from generators that modules run as they are may use."""
    torch.manual_seed(_SEED)
    random.seed(_SEED)
    np.random.seed(_SEED)


@contextlib.contextmanager
def _generators_restored() -> Iterator[None]:
    state, numpy_state = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)


def _run_model(study: Study, call: Call, mode: Mode) -> _Outcome:
    model = study.model
    args, kwargs = call.rebuild([leaf.clone() for leaf in call.leaves])
    with values_restored(model), unchanged(model), switched_to(model, mode):
        _seed()
        if mode == "eval":
            with torch.no_grad():
                return _Outcome(_leaves(model(*args, **kwargs)), {}, {})
        output = model(*args, **kwargs)
        names = [name for name, held in study.held.items() if held.trainable]
        loss = probe_loss(output)
        gradients: Sequence[torch.Tensor | None] = [None] * len(names)
        if loss.requires_grad:
            parameters = [study.held[name].tensor for name in names]
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        return _Outcome(
            _leaves(output),
            dict(zip(names, gradients, strict=True)),
            {name: buffer.clone() for name, buffer in model.named_buffers()},
        )


def _run_stages(study: Study, pipeline: LocalPipeline, call: Call, mode: Mode) -> _Outcome:
    args, kwargs = call.rebuild([leaf.clone() for leaf in call.leaves])
    pipeline.train(mode == "train")
    with contextlib.ExitStack() as stack:
        for stage in pipeline.stages:
            stack.enter_context(values_restored(stage))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        _seed()
        if mode == "eval":
            return _Outcome(_leaves(pipeline(*args, **kwargs)), {}, {})
        for stage in pipeline.stages:
            stage.zero_grad(set_to_none=True)
        _, output = pipeline.step((tuple(args), kwargs), probe_loss)
        owned = {
            spec.name: stage.tensors()[spec.name]
            for stage in pipeline.stages
            for spec in stage.graph.tensors
            if spec.owner
        }
        buffers = [name for name, _ in study.model.named_buffers() if name in owned]
        return _Outcome(
            _leaves(output),
            {name: tensor.grad for name, tensor in owned.items() if tensor.requires_grad},
            {name: owned[name].clone() for name in buffers},
        )


def _leaves(output: Any) -> list[torch.Tensor]:
    leaves: list[torch.Tensor] = []
    structure.flatten(output, leaves, "output")
    return [leaf.detach() for leaf in leaves]


def _difference(expected: _Outcome, found: _Outcome) -> str | None:
    """What differs most obviously, in words; None if nothing does."""
    if len(expected.outputs) != len(found.outputs):
        return f"{len(found.outputs)} output tensors instead of {len(expected.outputs)}"
    for number, (one, other) in enumerate(zip(expected.outputs, found.outputs, strict=True)):
        if one.shape != other.shape or one.dtype != other.dtype:
            given, wanted = (f"{t.dtype}{list(t.shape)}" for t in (other, one))
            return f"output {number} is {given}, not {wanted}"
        if (error := _error(one, other)) is not None:
            return f"output {number} differs by {error:.1e}"
    return _named_difference(
        "gradient", _GRADIENT_SLACK, expected.gradients, found.gradients
    ) or _named_difference("buffer", 1.0, expected.buffers, found.buffers)


def _named_difference(
    what: str,
    slack: float,
    expected: Mapping[str, torch.Tensor | None],
    found: Mapping[str, torch.Tensor | None],
) -> str | None:
    scale = max([_magnitude(tensor) for tensor in expected.values()], default=0.0)
    for name, one in expected.items():
        other = found.get(name)
        if one is None and other is None:
            continue
        reference = one if one is not None else other
        assert reference is not None
        zero = torch.zeros_like(reference)  # no gradient and a gradient of zero are the same
        error = _error(zero if one is None else one, zero if other is None else other, scale, slack)
        if error is not None:
            return f"the {what} of {name!r} differs by {error:.1e}"
    return None


def _magnitude(tensor: torch.Tensor | None) -> float:
    if tensor is None or tensor.numel() == 0:
        return 0.0
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 0.0
    return float(_dense(tensor).abs().nan_to_num(0.0, 0.0, 0.0).max())


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()


def _error(
    expected: torch.Tensor, found: torch.Tensor, scale: float = 0.0, slack: float = 1.0
) -> float | None:
    """Largest relative difference if it is too large. Gradients that cancel to almost nothing are
    measured against the scale of the other gradients."""
    expected, found = _dense(expected), _dense(found)
    if not (expected.is_floating_point() or expected.is_complex()):
        return None if torch.equal(expected, found) else float("inf")
    tolerance = slack * _TOLERANCE.get(expected.dtype, 1e-4)
    size = max(_magnitude(expected), 1e-3 * scale, 1e-12)
    if torch.allclose(expected, found, rtol=0, atol=tolerance * size, equal_nan=True):
        return None
    return float((expected - found).abs().nan_to_num(float("inf")).max()) / size
