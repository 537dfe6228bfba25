"""What a stage gives to its rings and takes from them: the compute thread's side of averaging.

Counts what has been learnt since the last round of each ring, says when a round is due, keeps
values when one is called, and applies what comes of it when nobody uses the weights it changes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from ravnest.provider.averaging.vectors import Layout, Vectors
from ravnest.stage.module import StageModule


@dataclass(frozen=True, slots=True)
class Facts:
    """About a snapshot: known before the values are copied."""

    weight: float
    """Samples since the last round of these tensors."""
    samples: float
    updates: int
    moments: tuple[Layout, ...]
    """Of what the optimizer divides by, if that is averaged; one for each fragment."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Values as they were between two updates, fragment by fragment."""

    vectors: tuple[Vectors, ...]
    moments: tuple[Vectors, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a round has come to."""

    ring: int
    fragments: tuple[int, ...]
    parts: tuple[tuple[Layout, Vectors], ...]
    rest: tuple[Vectors, ...]
    """Of each part, what belongs to no parameter, as it was in the snapshot."""
    moments: tuple[tuple[Layout, Vectors], ...]
    """Of each fragment, or none at all."""
    still: bool
    """The values themselves; otherwise what is applied is a difference."""
    samples: float
    updates: int


_DIVISORS = frozenset({"exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum", "exp_inf"}) | {
    "row_var",
    "col_var",
    "variance",
}
"""Parts of an optimizer's state that its steps are divided by, as torch's own optimizers call them:
squares of gradients, and the like. They alone are averaged. What steps are made of (momentum, the
lengths of earlier steps) stays with its member, so that others make no step longer by it; and the
mean of steps is the same, since momentum is linear."""


_MOST_SQUARE = 1e15
"""Others lead squares no further: far beyond gradients of any use, and far from where sums of them
are too large to be sent."""


class Ears(Protocol):
    """Is told on the compute thread how this provider stands."""

    def due(self, ring: int) -> None: ...
    def waits(self) -> None: ...
    def ended(self) -> None: ...


@dataclass(frozen=True)
class Rules:
    """When a round is due."""

    every: int | None
    """Updates; None for once per epoch."""
    blocking: bool

    @property
    def meets_every(self) -> int | None:
        """Updates after which this cluster waits for the others."""
        return self.every if self.blocking else None


@dataclass
class _Ring:
    layouts: list[Layout]
    asked: bool = False
    owed: int = 0
    """Rounds, one for each fragment, that the end of an epoch asks for."""
    updates: int = 0
    """That had been made at the snapshot of the last round."""
    samples: list[float] = field(default_factory=list)
    """The same of samples, for each fragment."""
    met: float = 0.0
    """Samples at the last round of all that stood still. It counts once this one is released: until
    then it may have to be made again, and what this cluster has learnt is to weigh the same."""
    spare: dict[int, Vectors] = field(default_factory=dict)
    """Memory of earlier snapshots, for the next ones."""


class Share:
    """Belongs to the compute thread."""

    def __init__(
        self,
        stage: StageModule,
        parameters: Mapping[str, nn.Parameter],
        optimizer: Callable[[], torch.optim.Optimizer | None],
        rules: Rules,
        *,
        average_optim: bool = False,
    ) -> None:
        self.ears: Ears | None = None
        self._stage = stage
        self._parameters = parameters
        self._optimizer = optimizer
        self._rules = rules
        self._average_optim = average_optim
        self._rings: dict[int, _Ring] = {}
        self._news: list[Outcome] = []
        self._waiting: set[int] = set()
        self._ending: set[int] = set()
        self._when_met: list[Callable[[], None]] = []
        self._deferred: list[Callable[[], None]] = []
        self._updates = 0
        self._epoch_began = 0
        self._samples = 0.0
        self.rounds = 0
        """Applied so far."""

    def add_ring(self, ring: int, layouts: Sequence[Layout]) -> None:
        self._rings[ring] = _Ring(list(layouts), samples=[0.0] * len(layouts))

    # ---- what the stage does ----

    def trained(self, rows: int) -> None:
        self._samples += rows

    def updated(self, updates: int) -> None:
        """After an optimizer step; so many have been asked for by now, some of which may have been
        made as one."""
        before, self._updates = self._updates, updates
        every = self._rules.every
        if every is None or self.ears is None:
            return
        if self._rules.blocking:
            if before // every < updates // every:
                self._wait()
            return
        for number, ring in self._rings.items():
            # A ring of few tensors has fewer fragments than the settings want.
            period = max(1, every // len(ring.layouts))
            if not ring.asked and self._updates - ring.updates >= period:
                self._ask(number, ring)

    def epoch_ended(self) -> None:
        made, self._epoch_began = self._updates - self._epoch_began, self._updates
        if self._rules.every is not None or self.ears is None or not made:
            return
        if self._rules.blocking:
            self._wait()
            return
        for number, ring in self._rings.items():
            # Clusters end their epochs at different times; one of them is enough.
            if not ring.asked and 2 * (self._updates - ring.updates) >= made:
                ring.owed = len(ring.layouts)
                self._ask(number, ring)

    def _ask(self, number: int, ring: _Ring) -> None:
        assert self.ears is not None
        ring.asked = True
        self.ears.due(number)

    def _wait(self) -> None:
        assert self.ears is not None
        self._waiting = set(self._rings)
        if self._waiting:
            self.ears.waits()

    def end(self) -> None:
        """Training is finished."""
        if self._rings and self.ears is not None:
            self._ending = set(self._rings)
            self.ears.ended()

    def when_met(self, call: Callable[[], None]) -> None:
        """Do this once the last rounds of all rings are over; at once if they are."""
        self._when_met.append(call)
        self._look_whether_met()

    def _look_whether_met(self) -> None:
        if not self._ending:
            waiting, self._when_met = self._when_met, []
            for call in waiting:
                call()

    @property
    def stands_still(self) -> bool:
        """Nothing is to be computed until the next round."""
        return bool(self._waiting)

    @property
    def waits_for_others(self) -> bool:
        return bool(self._waiting or self._ending)

    # ---- what the rings ask ----

    def tensors(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        held = self._stage.tensors()
        return {name: self._parameters.get(name, held[name]) for name in names}

    def parameter_names(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name in self._parameters]

    def facts(self, ring: int, fragments: Sequence[int]) -> Facts:
        known = self._rings[ring]
        since = min(known.samples[number] for number in fragments)
        moments: list[Layout] = []
        if self._average_optim:
            names = [known.layouts[number].names for number in fragments]
            moments = [Layout.of(self._moments(some)) for some in names]
        return Facts(self._samples - since, self._samples, self._updates, tuple(moments))

    def snapshot(self, ring: int, fragments: Sequence[int]) -> Snapshot:
        """The present values; between two updates."""
        known = self._rings[ring]
        vectors, moments = [], []
        for number in fragments:
            layout = known.layouts[number]
            spare = known.spare.pop(number, None)
            vectors.append(layout.gather(self.tensors(layout.names), spare))
            if self._average_optim:
                state = self._moments(layout.names)
                moments.append(Layout.of(state).gather(state))
        return Snapshot(tuple(vectors), tuple(moments))

    def _moments(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """What the optimizer divides its steps by."""
        optimizer = self._optimizer()
        found: dict[str, torch.Tensor] = {}
        if optimizer is None:
            return found
        for name in self.parameter_names(names):
            parameter = self._parameters[name]
            state = optimizer.state.get(parameter, {})
            for kind in sorted(state, key=str):
                value = state[kind]
                is_values = isinstance(value, torch.Tensor) and value.is_floating_point()
                if kind in _DIVISORS and is_values:
                    found[f"{name}/{kind}"] = value
        return found

    def _kept(self, outcome: Outcome) -> dict[str, float]:
        """By parameter: of what steps are divided by, so much at least is left by a round, also
        where all stand still. What others say takes away no more of it than updates without
        gradients would have, or it could make steps as long as it likes."""
        optimizer = self._optimizer()
        assert optimizer is not None
        passed = outcome.updates - self._rings[outcome.ring].updates
        kept = {
            id(parameter): _decay(group) ** passed
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        return {name: kept.get(id(p), 1.0) for name, p in self._parameters.items()}

    # ---- what comes of rounds ----

    def averaged(self, outcome: Outcome) -> None:
        self._news.append(outcome)

    def when_up_to_date(self, call: Callable[[], None]) -> None:
        """Do this once all outcomes have been applied: a snapshot without the last one would bring
        what that one has changed a second time."""
        if self._news:
            self._deferred.append(call)
        else:
            call()

    @property
    def has_news(self) -> bool:
        return bool(self._news)

    def apply(self) -> None:
        """Nobody may be using the newest weights."""
        news, self._news = self._news, []
        for outcome in news:
            for (layout, vectors), before in zip(outcome.parts, outcome.rest, strict=True):
                tensors = self.tensors(layout.names)
                if outcome.still:
                    layout.write(vectors, tensors)
                else:
                    layout.apply(vectors, before, tensors)
            ring = self._rings[outcome.ring]
            for number, (layout, vectors) in zip(outcome.fragments, outcome.moments, strict=False):
                present = self._moments(ring.layouts[number].names)
                state = {name: present[name] for name in layout.names if name in present}
                kept = self._kept(outcome)
                least = {name: v * kept[name.rpartition("/")[0]] for name, v in state.items()}
                if Layout.of(state) == layout and outcome.still:
                    layout.write(vectors, state, _MOST_SQUARE)
                elif Layout.of(state) == layout:
                    layout.shift(vectors, state, _MOST_SQUARE)
                for name, value in least.items():
                    torch.maximum(state[name], value, out=state[name])
            for number, (_, vectors) in zip(outcome.fragments, outcome.parts, strict=True):
                if not outcome.still:
                    ring.samples[number] = max(ring.samples[number], outcome.samples)
                ring.spare[number] = vectors
            if outcome.still:
                ring.met = outcome.samples
            ring.updates, ring.asked = outcome.updates, False
            self.rounds += 1
            ring.owed = 0 if outcome.still else max(0, ring.owed - 1)
            if ring.owed:
                self._ask(outcome.ring, ring)
        deferred, self._deferred = self._deferred, []
        for call in deferred:
            call()

    def skipped(self, ring: int, *, is_refused: bool = False) -> None:
        """A round has come to nothing; ask again when the next update is made. One that was refused
        is missed: with a few more updates it might be another one."""
        known = self._rings[ring]
        known.asked = False
        if is_refused:
            known.updates = self._updates

    def released(self, ring: int, *, last: bool) -> None:
        """A ring has nothing more to wait for."""
        known = self._rings[ring]
        known.samples = [max(samples, known.met) for samples in known.samples]
        if last:
            self._ending.discard(ring)
            self._look_whether_met()
        else:
            self._waiting.discard(ring)


def _decay(group: Mapping[str, Any]) -> float:
    """What an update without a gradient leaves of squares, where that is known."""
    if "betas" in group:
        return float(group["betas"][1])
    # Centred ones have the square of a mean taken off them, which is this member's own.
    return 1.0 if group.get("centered") else float(group.get("alpha", 1.0))
