"""Forward and backward of one stage for one micro-batch.

Values come in by number and go out by number; where they come from and go to is not known here.
Between the two passes a `Pass` holds what the backward needs: the activations themselves, or only
the inputs if the plan says that this stage computes its activations again, or if its device has
turned out to be too small to keep them.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from ravnest.errors import no_values_in_errors
from ravnest.provider.compute.randomness import StageRandomness
from ravnest.provider.compute.replay import Replay, Replays
from ravnest.provider.compute.versions import WeightVersions
from ravnest.provider.scaling import LossScale
from ravnest.stage import structure
from ravnest.stage.graph import Mode
from ravnest.stage.module import StageModule

Values = dict[int, Any]
_MODES: tuple[Mode, ...] = ("train", "eval")


@dataclass(slots=True)
class Pass:
    """A micro-batch between forward and backward."""

    version: int
    inputs: Values
    """By number. Values that neither autograd nor the next stage needs any more are None."""
    outputs: Values | None
    """None once they are on their way."""
    roots: "dict[int, Root] | None" = None
    """Where their gradients will enter; None if the outputs are to be computed again."""
    input_gradients: Values = field(default_factory=dict)
    """Filled by the backward."""
    loss: torch.Tensor | None = None
    loss_scale: float = 1.0
    """Its gradients are so many times too large."""
    replay: Replay | None = None
    """How to compute the outputs again."""
    again: Callable[[], Values] | None = None
    """The inputs anew, from a copy that is not on the device; None if there is no other copy."""
    collected: set[int] = field(default_factory=set)
    """Parameters whose gradients a backward that then failed has added."""


@dataclass(frozen=True, slots=True)
class Root:
    """A place of autograd's graph, without the value that was computed there."""

    edge: Any
    device: torch.device
    dtype: torch.dtype

    @classmethod
    def of(cls, value: torch.Tensor) -> "Root":
        edge = get_gradient_edge(value) if _EDGES_SUFFICE else value
        return cls(edge, value.device, value.dtype)


class _Entrance(torch.autograd.Function):
    """Where an input enters autograd's graph, and its gradient leaves it.

    A leaf that requires a gradient would keep its memory until then. Behind this the input is kept
    only if some operator's backward needs it.
    """

    @staticmethod
    def forward(
        ctx: Any, gate: torch.Tensor, value: torch.Tensor, number: int, found: Values
    ) -> torch.Tensor:
        ctx.number, ctx.found = number, found
        ctx.mark_dirty(value)  # the same tensor, not a view of it, which could not be written to
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, None, None, None]:
        (ctx.found[ctx.number],) = gradients
        return None, None, None, None


def _backward_takes_edges() -> bool:
    """Older versions of torch want the values themselves."""
    leaf = torch.zeros((), requires_grad=True)
    try:
        torch.autograd.backward([get_gradient_edge(leaf)], [torch.ones(())])
    except (TypeError, RuntimeError, AttributeError):
        return False
    return leaf.grad is not None


_EDGES_SUFFICE = _backward_takes_edges()


@dataclass(frozen=True, slots=True)
class Precision:
    """Autocast for the whole stage; None computes as the model says."""

    autocast: torch.dtype | None = None
    loss_scale: float = 1.0
    """Gradients are so many times too large on their way, so that small ones survive half
    precision, and are divided again before they are used."""
    adapts: bool = False
    """That is only what it begins with: see scaling.py."""

    @property
    def may_overflow(self) -> bool:
        return self.autocast is torch.float16 or self.loss_scale != 1.0

    def scope(self, device: torch.device) -> contextlib.AbstractContextManager[object]:
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(device.type, dtype=self.autocast)


class StagePasses:
    """Runs the passes of one stage over its weight versions."""

    def __init__(
        self,
        stage: StageModule,
        versions: WeightVersions,
        *,
        precision: Precision | None = None,
        recompute: bool = False,
        recovers: bool = False,
        randomness: StageRandomness | None = None,
    ) -> None:
        """With `recovers`, a pass that has failed can be tried again, and activations can be given
        up between its forward and its backward. On the last stage there is nothing in between."""
        self.stage = stage
        self._numbers = contextlib.nullcontext if randomness is None else randomness.drawn
        self.versions = versions
        self.recovers = recovers and not stage.graph.is_last
        self._recompute = recompute and not stage.graph.is_last
        self._replays = Replays(stage) if self._recompute or self.recovers else None
        self._trials = Replays(stage, "eval") if self.recovers else None
        self._is_short = False
        self._precision = precision or Precision()
        self.scale = LossScale(self._precision.loss_scale, adapts=self._precision.adapts)
        """Of the loss, on the last stage."""
        graph = stage.graph
        self._wires = {
            mode: graph.inputs if graph.is_first else graph.mode(mode).receives for mode in _MODES
        }
        self._gate = torch.zeros((), requires_grad=True)

    # ---- training ----

    def forward(
        self,
        values: Mapping[int, Any],
        version: int,
        again: Callable[[], Values] | None = None,
    ) -> Pass:
        """With gradients, in train mode; the outputs are in the pass. Values are on the device,
        `again` brings them there once more."""
        self.stage.train()
        item = Pass(version, self._given(values, "train"), None)
        with self._numbers():
            if self._replays is None:
                item.outputs = self._run(self._entered(item))
                return item
            item.again = again if self.recovers else None
            with self._replays.recording(item.inputs) as (given, item.replay):
                if self._recompute:
                    with torch.no_grad():
                        item.outputs = self._run(given)
                else:
                    item.inputs = given
                    item.outputs = self._run(self._entered(item))
        return item

    def forget_values(self, item: Pass) -> None:
        """Once the outputs are on their way nobody needs them here, unless autograd does."""
        if not self._recompute:
            item.roots = self._roots(item)
        if not self._recompute or (self._is_short and item.again is not None):
            item.inputs = dict.fromkeys(item.inputs)
        item.outputs = None

    def save_memory(self, items: Iterable[Pass]) -> None:
        """The device has too little: activations are computed again from now on, also those that
        these passes have kept so far."""
        self._recompute = self._is_short = True
        for item in items:
            if item.replay is not None and item.again is not None:
                item.outputs = item.roots = None
                item.inputs = dict.fromkeys(item.inputs)

    def with_loss(self, item: Pass, loss: Callable[[Any], torch.Tensor]) -> None:
        """On the last stage: the model's output, and the loss of it."""
        with self._precision.scope(self.stage.device):
            item.loss = loss(self.result(item))
        item.loss_scale = self.scale.value
        self.forget_values(item)

    def result(self, item: Pass) -> Any:
        assert item.outputs is not None
        graph = self.stage.graph.mode(self.stage.mode)
        values = {**item.inputs, **item.outputs}
        return structure.rebuild(graph.result, values.__getitem__)

    def backward(self, item: Pass, gradients: Mapping[int, torch.Tensor]) -> Values:
        """Add to the parameters' gradients; returns those of the inputs that ask for one."""
        if item.outputs is None and item.roots is None:
            item.outputs = self._again(item)
        roots = self._roots(item) if item.roots is None else item.roots
        item.outputs = item.roots = None
        edges, seeds = [], []
        if item.loss is not None and item.loss.requires_grad:
            edges.append(item.loss)
            seeds.append(torch.full_like(item.loss, item.loss_scale))
        for number, gradient in gradients.items():
            if number in roots:
                edges.append(roots[number].edge)
                seeds.append(gradient.to(roots[number].device, roots[number].dtype))
        if edges:
            with (
                self.versions.collect_gradients(item.version, item.collected) as collecting,
                no_values_in_errors("the backward pass of the stage failed", *seeds),
            ):
                rest = [*collecting.missing, self._gate] if item.collected else None
                torch.autograd.backward(edges, seeds, inputs=rest)
        return {
            number: gradient.clone() if self.versions.holds(gradient) else gradient
            for number, gradient in item.input_gradients.items()
        }

    def _roots(self, item: Pass) -> dict[int, Root]:
        """Values that were made here and can be differentiated; others are only handed on."""
        assert item.outputs is not None
        return {
            number: Root.of(value)
            for number, value in item.outputs.items()
            if number not in item.inputs and isinstance(value, torch.Tensor) and value.requires_grad
        }

    def _again(self, item: Pass) -> Values:
        """The forward once more, with the weights, numbers and buffers of the first time."""
        self.stage.train()
        assert self._replays is not None
        assert item.replay is not None
        if item.again is not None and all(value is None for value in item.inputs.values()):
            item.inputs = self._given(item.again(), "train")
        item.inputs = self._replays.apart(item.inputs)  # this, too, can fail and be done again
        with self.versions.used(item.version):
            return self._replays.run_again(item.replay, lambda: self._run(self._entered(item)))

    # ---- evaluation ----

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[None]:
        self.stage.eval()
        with torch.no_grad(), self._numbers():
            yield

    def evaluate(self, values: Mapping[int, Any]) -> tuple[Values, Any]:
        """Without gradients, in eval mode, with the newest weights; on the last stage also the
        model's output."""
        given = self._given(values, "eval")
        with self._evaluating(), self._trial(given) as inputs:
            outputs = self._run(inputs)
            graph = self.stage.graph
            if not graph.is_last:
                return outputs, None
            known = {**inputs, **outputs}
            return outputs, structure.rebuild(graph.eval.result, known.__getitem__)

    @contextlib.contextmanager
    def _trial(self, given: Values) -> Iterator[Values]:
        """Around an evaluation, which leaves no trace if it fails and can be tried again."""
        if self._trials is None:
            yield given
            return
        with self._trials.recording(given) as (inputs, _):
            yield inputs

    def _given(self, values: Mapping[int, Any], mode: Mode) -> Values:
        """In the order in which the stage takes them."""
        return {wire.value: values[wire.value] for wire in self._wires[mode]}

    def _entered(self, item: Pass) -> Values:
        """The inputs as autograd's graph begins with them."""
        for wire in self._wires["train"]:
            value = item.inputs[wire.value]
            if wire.grad and isinstance(value, torch.Tensor):
                item.inputs[wire.value] = _Entrance.apply(  # type: ignore[no-untyped-call]
                    self._gate, value, wire.value, item.input_gradients
                )
        return item.inputs

    def _run(self, inputs: Values) -> Values:
        with self._precision.scope(self.stage.device):
            results = self.stage(*inputs.values())
        return dict(zip(self.stage.returns(self.stage.mode), results, strict=True))
