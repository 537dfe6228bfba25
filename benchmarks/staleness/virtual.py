"""Train a pipeline in virtual time: the real stages and schedules, without threads or sockets.

Every stage is a `StageRunner` as a provider has it. What it computes is computed at once; how long
that takes, and how long messages travel, is counted on a clock of our own. So a pipeline of any
depth over any links can be trained on one core, and the order of events is the same every time.
Pipelines that average with each other share a clock (see ../convergence/virtual_clusters.py).
"""

import heapq
import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ravnest.planning.study import Study, study
from ravnest.provider.assembly import StageSettings, build_runner
from ravnest.provider.batches import part_bounds
from ravnest.provider.runner import StageRunner
from ravnest.stage.local import bind_inputs
from ravnest.stage.package import load_package, write_package
from ravnest.wire import messages
from ravnest.wire.codecs import Packed
from ravnest.wire.encoding import Parcel, encode

FORWARD, BACKWARD = 1.0, 2.0
"""Virtual seconds of a stage for a whole batch."""
_FRAME_BYTES = 48
"""What a link puts before every message."""


class Clock:
    """Virtual time, and what is to happen when. Shared by all that influence each other."""

    def __init__(self) -> None:
        self.now = 0.0
        self.spent = 0.0
        """By the stage that computes at this moment."""
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._players: list[Callable[[], None]] = []

    def __call__(self) -> float:
        return self.now + self.spent

    def join(self, start: Callable[[], None]) -> None:
        """Have this called whenever something has happened: it starts what can be started."""
        self._players.append(start)

    def at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), act))

    def after(self, delay: float, act: Callable[[], None]) -> None:
        self.at(self() + delay, act)

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Until that is so, or nothing can happen any more."""
        events = self._events
        while not until():
            for start in self._players:
                start()
            if not events:
                return
            self.now = events[0][0]
            while events and events[0][0] <= self.now:
                heapq.heappop(events)[2]()


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
class Traffic:
    """What has been sent."""

    messages: int = 0
    tensors: int = 0
    """Bytes of tensors alone, in the form in which they travel."""
    total: int = 0
    """With the header of each message, and what a link puts before it."""

    def add(self, parcel: Parcel) -> int:
        """The size of this one, and count it."""
        size = encode(parcel, 1).size + _FRAME_BYTES
        self.messages += 1
        self.tensors += sum(tensor.nbytes for tensor in parcel.tensors)
        self.total += size
        return size

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(
            self.messages + other.messages,
            self.tensors + other.tensors,
            self.total + other.total,
        )


def copied(parcel: Parcel) -> Parcel:
    """A link copies; who is handed a tensor may rely on nobody else writing to it. What is packed
    is only read, and stays as it is."""
    tensors = (t if isinstance(t, Packed) else t.detach().clone() for t in parcel.tensors)
    return Parcel(parcel.message, tuple(tensors))


@dataclass
class _Wire:
    """Delivers to a neighbour after `delay`, in order."""

    clock: Clock
    runner: StageRunner
    delay: float
    traffic: Traffic = field(default_factory=Traffic)

    def send(self, parcel: Parcel) -> None:
        self.traffic.add(parcel)
        arriving = copied(parcel)
        self.clock.after(self.delay, lambda: self.runner.arrived(arriving))


class VirtualPipeline:
    """All stages of one cluster, on a clock that may be shared with others."""

    def __init__(
        self,
        model: nn.Module,
        example: torch.Tensor,
        stages: int,
        settings: Callable[[int], StageSettings],
        *,
        parts: int = 1,
        delay: float = 0.0,
        unit: float = 1.0,
        clock: Clock | None = None,
        studied: Study | None = None,
    ) -> None:
        """`unit` makes every pass take so many times FORWARD or BACKWARD; `studied` is what `study`
        makes of the model, if that is known."""
        self.clock = clock or Clock()
        self.parts = parts
        self.observer = _Silent()
        self._unit = unit
        self._batch = 0
        self._source: Iterator[torch.Tensor] = iter(())
        studied = studied or study(model, (example,))
        self.graphs = studied.stages(balanced_cuts(studied, stages))
        self.homes = list(studied.homes)
        """Names of all tensors, in the order of the model."""
        weights = {name: held.tensor for name, held in studied.held.items()}
        self.stages: list[Stage] = []
        with tempfile.TemporaryDirectory() as folder:
            for k, graph in enumerate(self.graphs):
                path = Path(folder) / str(k)
                write_package(path, graph, weights, plan_id="p", cluster=0)
                package = load_package(path)
                observer = self.observer if k == 0 else _Silent()
                runner = build_runner(
                    package, package.module(), settings(k), observer, clock=self.clock
                )
                self._take_time(runner)
                self.stages.append(Stage(runner))
                if k == 0:
                    self._graph = package.graph
        self.wires: list[_Wire] = []
        for before, after in itertools.pairwise(stage.runner for stage in self.stages):
            before.next, after.previous = self._wire(after, delay), self._wire(before, delay)
        self.clock.join(self._start)

    def _wire(self, target: StageRunner, delay: float) -> _Wire:
        self.wires.append(_Wire(self.clock, target, delay))
        return self.wires[-1]

    # ---- the clock ----

    def _take_time(self, runner: StageRunner) -> None:
        """Passes take virtual time: a share of a whole batch's."""
        passes = runner._passes
        for name, seconds in (("forward", FORWARD), ("backward", BACKWARD)):
            setattr(passes, name, self._timed(getattr(passes, name), seconds * self._unit))

    def _timed(self, compute: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            self.clock.spent += seconds / self.parts
            return compute(*args)

        return timed

    def _start(self) -> None:
        self._feed()
        for stage in self.stages:
            self._let_work(stage)

    def _let_work(self, stage: Stage) -> None:
        """Let a stage do what it can at this moment; it is busy for as long as that takes."""
        clock = self.clock
        while stage.free_at <= clock.now and stage.runner.work():
            stage.busy += clock.spent
            stage.free_at = clock()
            if clock.spent:
                clock.at(stage.free_at, lambda: None)
            clock.spent = 0.0

    # ---- training ----

    def train(self, batches: Iterable[torch.Tensor]) -> list[float]:
        """Feed batches as a Root does, a few ahead; the loss of each."""
        before = len(self.observer.losses)
        self.feed(batches)
        self.clock.run()
        return self.observer.losses[before:]

    def feed(self, batches: Iterable[torch.Tensor]) -> None:
        """Train on these while the clock runs."""
        self._source = iter(batches)

    def _feed(self) -> None:
        first = self.stages[0].runner
        if first.schedule.queued >= 2 * self.parts:
            return
        while first.schedule.queued < 4 * self.parts:
            batch = next(self._source, None)
            if batch is None:
                return
            self._submit(first, batch)

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

    def learnt(self) -> dict[str, torch.Tensor]:
        """The same, with weights where their optimizers left them and not ahead of that."""
        found = {name: tensor.clone() for name, tensor in self.state().items()}
        for stage in self.stages:
            updater = stage.runner._updater
            shifted = [part for part in updater._ahead._parts if part._is_shifted]
            ahead = {
                id(parameter): shift
                for part in shifted
                for parameter, shift in zip(part._parameters, part._shift, strict=True)
            }
            names = [s.name for s in stage.runner._graph.tensors if s.owner and s.trainable]
            for name, parameter in zip(names, updater._owned, strict=True):
                if id(parameter) in ahead:
                    found[name] -= ahead[id(parameter)]
        return found

    def run_to(self, steps: int) -> None:
        """Until so many batches have been trained on."""
        self.clock.run(lambda: len(self.observer.losses) >= steps)

    @property
    def traffic(self) -> Traffic:
        """Between the stages."""
        return sum((wire.traffic for wire in self.wires), Traffic())

    @property
    def utilisation(self) -> list[float]:
        return [stage.busy / max(self.clock.now, 1e-9) for stage in self.stages]

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
