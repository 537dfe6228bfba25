"""Train a pipeline in virtual time: the real stages and schedules, without threads or sockets.

Every stage is a `StageRunner` as a provider has it. What it computes is computed at once; how long
that takes, and how long messages travel, is counted on a clock of our own. So a pipeline of any
depth over any links can be trained on one core, and the order of events is the same every time.
"""

import heapq
import itertools
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ravnest.planning.study import study
from ravnest.provider.assembly import StageSettings, build_runner
from ravnest.provider.batches import part_bounds
from ravnest.provider.runner import StageRunner
from ravnest.stage.local import bind_inputs
from ravnest.stage.package import load_package, write_package
from ravnest.wire import messages
from ravnest.wire.encoding import Parcel

FORWARD, BACKWARD = 1.0, 2.0
"""Virtual seconds of a stage for a whole batch."""


@dataclass
class Stage:
    runner: StageRunner
    free_at: float = 0.0
    busy: float = 0.0


class _Silent:
    """An observer that only keeps the losses of finished batches."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.forwards = 0

    def forwarded(self, of: messages.MicroBatch) -> None:
        self.forwards += 1

    def batch_done(self, of: messages.MicroBatch, loss: float | None) -> None:
        if loss is not None:
            self.losses.append(loss)

    def updated(self, update: int) -> None: ...
    def obeyed(self, order: str, number: int) -> None: ...
    def replied(self, reply: messages.Reply) -> None: ...
    def result(self, message: messages.Result, tensors: tuple[torch.Tensor, ...]) -> None: ...


@dataclass
class _Wire:
    """Delivers to a neighbour after `delay`, in order."""

    pipeline: "VirtualPipeline"
    target: int
    delay: float

    def send(self, parcel: Parcel) -> None:
        # A link copies; a stage that is handed a tensor may rely on nobody writing to it.
        copied = Parcel(parcel.message, tuple(t.detach().clone() for t in parcel.tensors))
        runner = self.pipeline.stages[self.target].runner
        self.pipeline.after(self.delay, lambda: runner.arrived(copied))


class VirtualPipeline:
    """All stages of one cluster and the clock they share."""

    def __init__(
        self,
        model: nn.Module,
        example: torch.Tensor,
        stages: int,
        settings: Callable[[int], StageSettings],
        *,
        parts: int = 1,
        delay: float = 0.0,
    ) -> None:
        self.now = 0.0
        self.parts = parts
        self.observer = _Silent()
        self._numbers = itertools.count()
        self._spent = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._batch = 0
        studied = study(model, (example,))
        graphs = studied.stages(balanced_cuts(studied, stages))
        weights = {name: held.tensor for name, held in studied.held.items()}
        self.stages: list[Stage] = []
        with tempfile.TemporaryDirectory() as folder:
            for k, graph in enumerate(graphs):
                path = Path(folder) / str(k)
                write_package(path, graph, weights, plan_id="p", cluster=0)
                package = load_package(path)
                observer = self.observer if k == 0 else _Silent()
                runner = build_runner(
                    package, package.module(), settings(k), observer, clock=self._clock
                )
                self._take_time(runner)
                self.stages.append(Stage(runner))
                if k == 0:
                    self._graph = package.graph
        for k, stage in enumerate(self.stages):
            stage.runner.next = _Wire(self, k + 1, delay) if k + 1 < stages else None
            stage.runner.previous = _Wire(self, k - 1, delay) if k else None

    # ---- the clock ----

    def _clock(self) -> float:
        return self.now + self._spent

    def _take_time(self, runner: StageRunner) -> None:
        """Passes take virtual time: a share of a whole batch's."""
        passes = runner._passes
        for name, seconds in (("forward", FORWARD), ("backward", BACKWARD)):
            setattr(passes, name, self._timed(getattr(passes, name), seconds))

    def _timed(self, compute: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            self._spent += seconds / self.parts
            return compute(*args)

        return timed

    def after(self, delay: float, act: Callable[[], None]) -> None:
        self._at(self._clock() + delay, act)

    def _run(self) -> None:
        """Until nothing can happen any more."""
        events = self._events
        while True:
            for number, stage in enumerate(self.stages):
                if stage.free_at <= self.now:
                    self._start(number, stage)
            if not events:
                return
            self.now = events[0][0]
            while events and events[0][0] <= self.now:
                heapq.heappop(events)[2]()

    def _start(self, number: int, stage: Stage) -> None:
        """Let a stage do what it can at this moment; it is busy for as long as that takes."""
        while stage.free_at <= self.now and stage.runner.work():
            stage.busy += self._spent
            stage.free_at = self._clock()
            if self._spent:
                self._at(stage.free_at, lambda: None)
            self._spent = 0.0

    def _at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), act))

    # ---- training ----

    def train(self, batches: Iterable[torch.Tensor]) -> list[float]:
        """Feed batches as a Root does, a few ahead; the loss of each."""
        source = iter(batches)
        first = self.stages[0].runner
        before = len(self.observer.losses)
        more = True
        while more:
            while first.schedule.queued < 4 * self.parts:
                batch = next(source, None)
                if batch is None:
                    more = False
                    break
                self._submit(first, batch)
            self._run_until_hungry(first)
        self._run()
        return self.observer.losses[before:]

    def _run_until_hungry(self, first: StageRunner) -> None:
        events = self._events
        while first.schedule.queued >= 2 * self.parts:
            for number, stage in enumerate(self.stages):
                if stage.free_at <= self.now:
                    self._start(number, stage)
            if not events:
                return
            self.now = events[0][0]
            while events and events[0][0] <= self.now:
                heapq.heappop(events)[2]()

    def _submit(self, first: StageRunner, batch: torch.Tensor) -> None:
        values = dict(bind_inputs(self._graph.arguments, (batch,), {}))
        rows = batch.shape[0]
        for part, (start, stop) in enumerate(part_bounds(rows, self.parts)):
            of = messages.MicroBatch(
                batch=self._batch,
                part=part,
                parts=self.parts,
                rows=stop - start,
                batch_rows=rows,
                update=self._batch,
                closes_update=part + 1 == self.parts,
            )
            message = messages.Forward(of=of, task="train", carried=(), proof=())
            first.submit(message, {n: v[start:stop] for n, v in values.items()})
        self._batch += 1

    def state(self) -> dict[str, torch.Tensor]:
        """Every tensor of the model, from the stage that owns it."""
        found = {}
        for stage in self.stages:
            module = stage.runner._passes.stage
            tensors = module.tensors()
            found.update(
                {s.name: tensors[s.name].detach() for s in module.graph.tensors if s.owner}
            )
        return found

    @property
    def utilisation(self) -> list[float]:
        return [stage.busy / max(self.now, 1e-9) for stage in self.stages]

    @property
    def staleness(self) -> list[float]:
        return [
            stage.runner.meter.staleness / max(stage.runner.meter.backwards, 1)
            for stage in self.stages
        ]

    @property
    def updates(self) -> list[int]:
        return [stage.runner.meter.updates for stage in self.stages]


def balanced_cuts(studied: Any, stages: int) -> Sequence[int]:
    """Cuts that share the work as evenly as the model allows."""
    costs = studied.costs
    work = costs.compute_s
    total = float(work[-1])
    found: list[int] = []
    last = 0
    for k in range(1, stages):
        rest = range(last + 1, costs.cut_points - (stages - k))
        best = min(rest, key=lambda p: abs(float(work[p]) - total * k / stages))
        found.append(int(costs.operator[best]))
        last = best
    return found
