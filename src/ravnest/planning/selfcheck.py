"""Compare the stages, as loaded from their files, with the model they came from.

Cutting rests on torch's capture being right about code nobody here has seen. So before a plan is
handed out, the stages and the model run side by side on the example inputs, at three batch sizes
where the model allows it, and outputs, gradients and buffers must agree. A difference is an error,
never a silent wrong result. A few rows show it as well as many.

The model is also asked twice in a row: if its second answer is another one, it remembers something
outside its parameters and buffers, which its stages cannot know.
"""

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from ravnest.errors import CaptureError
from ravnest.planning.capture.borrowing import (
    registered_restored,
    switched_to,
    unchanged,
    values_restored,
)
from ravnest.planning.capture.call import Call
from ravnest.planning.capture.program import ModuleCall
from ravnest.planning.capture.surroundings import as_in_training
from ravnest.planning.outcomes import Outcome, difference_of
from ravnest.planning.study import Study
from ravnest.stage import structure
from ravnest.stage.graph import Mode
from ravnest.stage.local import LocalPipeline
from ravnest.stage.module import StageModule

_SEED = 2024
_ROWS = 4
_LIKELY_CAUSES = (
    "Causes seen before: the forward uses the batch size as a plain number (float(len(x))), sets a "
    "random seed (torch.manual_seed), assigns to a tensor's .data, or depends on Python state that "
    "changes between calls. It should depend on its inputs, parameters and buffers only. If none "
    "of these is the case, it may be a fault of the capture: please report it."
)


class OneRowError(CaptureError):
    """The stages are right for several rows and wrong for a single one."""


class SelfCheck:
    """Holds what the model computes, so that the cuts of several clusters are compared with it."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self._expected: dict[tuple[int, Mode], Outcome | None] = {}
        # Modules that run as they are keep whatever they remember.
        self._asked_twice = any(isinstance(op.target, ModuleCall) for op in study.train.ops)

    @as_in_training()
    def __call__(self, stages: Sequence[StageModule]) -> None:
        """Raise `CaptureError` if the stages do not compute what the model computes."""
        pipeline = LocalPipeline(stages)
        modes: tuple[Mode, ...] = ("train", "eval")
        with _generators_restored():
            for call in _calls(self.study):
                for mode in modes:
                    self._compare(pipeline, call, mode)
            if not self._asked_twice:
                for mode in modes:
                    self._ask_twice(_calls(self.study)[0], mode)
                self._asked_twice = True

    def _compare(self, pipeline: LocalPipeline, call: Call, mode: Mode) -> None:
        expected = self._model_outcome(call, mode)
        if expected is None:
            return
        found = _run_stages(self.study, pipeline, call, mode)
        difference = difference_of(expected, found)
        if difference is None:
            return
        name = self.study.name
        if difference_of(expected, _run_model(self.study, call, mode)) is not None:
            raise CaptureError(
                f"{name} gives different results for equal inputs and equal torch seeds "
                f"({difference}), so its stages cannot be verified. Make its randomness depend "
                "on torch's generator only, or pass self_check=False."
            )
        if call.batch_size == 1:
            raise OneRowError(f"{name} does something else with a single row: {difference}")
        raise CaptureError(
            f"the cut stages of {name} do not compute what the model computes: "
            f"{difference} (in {mode} mode, batch of {call.batch_size}). {_LIKELY_CAUSES}"
        )

    def _ask_twice(self, call: Call, mode: Mode) -> None:
        expected = self._model_outcome(call, mode)
        assert expected is not None  # the example itself was compared before
        again = Outcome(_second_answer(self.study, call, mode), {}, {})
        difference = difference_of(Outcome(expected.outputs, {}, {}), again)
        if difference is not None:
            raise CaptureError(
                f"{self.study.name} answers the same question differently the second time: "
                f"{difference} (in {mode} mode). It remembers something outside its parameters and "
                "buffers (a counter, a flag, a tensor in a plain attribute), which its stages "
                "would not. Keep it in a buffer (register_buffer), or leave it out."
            )

    def _model_outcome(self, call: Call, mode: Mode) -> Outcome | None:
        """None if the model itself does not accept this batch size."""
        key = (call.batch_size, mode)
        if key not in self._expected:
            try:
                self._expected[key] = _run_model(self.study, call, mode)
            except Exception as error:
                if call.batch_size == _calls(self.study)[0].batch_size:
                    raise CaptureError(
                        f"{self.study.name} itself fails in {mode} mode on the example inputs "
                        f"({call.described()}): {error}"
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


def _run_model(study: Study, call: Call, mode: Mode) -> Outcome:
    model = study.model
    args, kwargs = call.rebuild([leaf.clone() for leaf in call.leaves])
    with values_restored(model), unchanged(model), switched_to(model, mode):
        _seed()
        if mode == "eval":
            with torch.no_grad():
                return Outcome(_leaves(model(*args, **kwargs)), {}, {})
        output = model(*args, **kwargs)
        names = [name for name, held in study.held.items() if held.trainable]
        loss = probe_loss(output)
        gradients: Sequence[torch.Tensor | None] = [None] * len(names)
        if loss.requires_grad:
            parameters = [study.held[name].tensor for name in names]
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        return Outcome(
            _leaves(output),
            dict(zip(names, gradients, strict=True)),
            {name: buffer.clone() for name, buffer in model.named_buffers()},
        )


def _second_answer(study: Study, call: Call, mode: Mode) -> list[torch.Tensor]:
    """What the model returns when it has just been called, with the same weights and seed."""
    model = study.model
    answer: list[torch.Tensor] = []
    with values_restored(model), unchanged(model), switched_to(model, mode):
        for _ in range(2):
            args, kwargs = call.rebuild([leaf.clone() for leaf in call.leaves])
            with registered_restored(model), torch.set_grad_enabled(mode == "train"):
                _seed()
                answer = _leaves(model(*args, **kwargs))
    return answer


def _run_stages(study: Study, pipeline: LocalPipeline, call: Call, mode: Mode) -> Outcome:
    args, kwargs = call.rebuild([leaf.clone() for leaf in call.leaves])
    pipeline.train(mode == "train")
    with contextlib.ExitStack() as stack:
        for stage in pipeline.stages:
            stack.enter_context(values_restored(stage))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        _seed()
        if mode == "eval":
            return Outcome(_leaves(pipeline(*args, **kwargs)), {}, {})
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
        return Outcome(
            _leaves(output),
            {name: tensor.grad for name, tensor in owned.items() if tensor.requires_grad},
            {name: owned[name].clone() for name in buffers},
        )


def _leaves(output: Any) -> list[torch.Tensor]:
    leaves: list[torch.Tensor] = []
    structure.flatten(output, leaves, "output")
    return [leaf.detach() for leaf in leaves]
