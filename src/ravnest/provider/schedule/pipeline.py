"""The order of work on one stage of an asynchronous pipeline.

A stage is told what has become possible (`ForwardReady`, `BackwardReady`, …) and asked what to do
next. It answers with the first of these that applies:

    1. Update     every gradient of an update is there, and a weight version is free for the result
    2. Backward   gradients of a micro-batch have arrived: finish old work first
    3. Forward    the next micro-batch in line, if not too many are in flight and all updates are
                  done that must be: those before it in a synchronous schedule, those before the
                  last meeting of clusters that wait for each other
       Evaluate   the same for a micro-batch without a backward
       Obey       a command in line, once nothing is in flight
    4. nothing    wait for the next event

Weights. A forward uses the newest version, its backward the same one. An update while micro-batches
are in flight makes a new version and leaves them the old one. At most `max_versions` are alive at
once: with two, an update waits until nobody uses the older one, and gradients that arrive in the
meantime are taken along (coalesced). A batch in at least S-1 micro-batches never has to wait:

    stage 0 of 3, two micro-batches a batch, in flight ≤ 3, F and B as  batch.part[version]

    F0.0[0] F0.1[0] F1.0[0] B0.0 F1.1[0] B0.1 U→1 F2.0[1] B1.0 F2.1[1] B1.1 U→2 F3.0[2] …

So a micro-batch is forwarded with weights that lack at most one update, and of each batch only as
many lack one as the stage keeps in flight, less one. On the last stage no weights are old.
"""

from collections import deque
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Which part of which batch."""

    batch: int
    part: int


# ---- events ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ForwardReady:
    """The inputs of a micro-batch are here; they must come in order."""

    key: Key
    update: int
    """The optimizer step that this micro-batch contributes to, counted over the run."""
    closes_update: bool
    weight: float = 1.0
    """Share of its batch that it makes up."""
    trains: bool = True


@dataclass(frozen=True, slots=True)
class BackwardReady:
    key: Key


@dataclass(frozen=True, slots=True)
class CommandReady:
    """Something to be done in line with the micro-batches, when all before it are finished."""

    name: str
    number: int = 0
    ends_update: bool = False
    """An update that has begun is made first, with the batches there are."""
    token: str = ""


@dataclass(frozen=True, slots=True)
class UpdateAllowed:
    """What other stages contribute to this update is here (their share of the gradient norm)."""

    update: int


Event = ForwardReady | BackwardReady | CommandReady | UpdateAllowed


# ---- instructions ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Forward:
    key: Key
    version: int


@dataclass(frozen=True, slots=True)
class Backward:
    key: Key
    version: int
    staleness: int
    """Updates that the weights of its forward lacked."""
    frees_version: bool
    """Nobody needs this version any more."""


@dataclass(frozen=True, slots=True)
class Evaluate:
    key: Key


@dataclass(frozen=True, slots=True)
class Update:
    """Apply the gradients of `batches` batches; the result is version `version`.

    Not a whole number if an update had to wait, and parts of the next batch have come meanwhile.
    """

    update: int
    version: int
    batches: float
    in_place: bool
    """The old version is in nobody's use and may be overwritten."""
    lag: float = 0.0
    """Steps that this stage has made since the forwards of these gradients, in the mean."""


@dataclass(frozen=True, slots=True)
class Obey:
    command: CommandReady


Instruction = Forward | Backward | Evaluate | Update | Obey


# ---- the stage -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rules:
    """What distinguishes one schedule from another."""

    is_last: bool
    schedule: Literal["async", "sync"] = "async"
    max_versions: int = 2
    waits_for_permission: bool = False
    """Synchronous updates need an `UpdateAllowed`."""
    synchronous_updates: int = 0
    """So many at the beginning are made as in a synchronous schedule, whatever the schedule is."""
    meets_every: int | None = None
    """After so many updates clusters wait for each other. Nothing is in flight then: what later
    stages will only finish after the meeting must not keep this one from getting there."""

    def __post_init__(self) -> None:
        if self.max_versions < 2:
            raise ValueError(f"max_versions is {self.max_versions}; a pipeline needs at least 2")

    def is_synchronous(self, update: int) -> bool:
        return self.schedule == "sync" or update < self.synchronous_updates


@dataclass(slots=True)
class _InFlight:
    """A micro-batch between its forward and its backward."""

    version: int
    staleness: int
    update: int
    closes_update: bool
    weight: float


@dataclass(slots=True)
class _Gradients:
    """What has been accumulated and not applied."""

    update: int = 0
    batches: float = 0.0
    lag: float = 0.0
    """Of all micro-batches together, each by its share of its batch."""
    complete: bool = False
    """The last micro-batch of an update is in."""


class StageSchedule:
    """The state of one stage, and the decision what it does next."""

    def __init__(self, rules: Rules, limit: int) -> None:
        self.rules = rules
        self.limit = limit
        """Micro-batches that may be between forward and backward."""
        self._line: deque[ForwardReady | CommandReady] = deque()
        self._backwards: deque[Key] = deque()
        self._in_flight: dict[Key, _InFlight] = {}
        self._users: dict[int, int] = {0: 0}
        self._version = 0
        self._updates_done = 0
        self._gradients = _Gradients()
        self._allowed = -1
        self._last_key: Key | None = None

    # ---- what others may ask ----

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def queued(self) -> int:
        return len(self._line)

    @property
    def batches_accumulated(self) -> float:
        """Whose gradients are waiting to be applied; parts count by their share."""
        return self._gradients.batches

    @property
    def awaits(self) -> Literal["input", "gradients", "permission"]:
        """What would let this stage go on, while there is nothing to do."""
        if self._gradients.complete and not self._is_allowed(self._gradients.update):
            return "permission"
        return "gradients" if self._line or len(self._in_flight) >= self.limit else "input"

    @property
    def newest_is_unused(self) -> bool:
        """No micro-batch in flight was computed with the newest weights."""
        return self._users[self._version] == 0

    # ---- events in ----

    def handle(self, event: Event) -> None:
        match event:
            case ForwardReady():
                if self._last_key is not None and event.key <= self._last_key:
                    raise ValueError(f"{event.key} comes after {self._last_key}")
                self._last_key = event.key
                self._line.append(event)
            case CommandReady():
                self._line.append(event)
            case BackwardReady(key):
                if key not in self._in_flight or key in self._backwards:
                    raise ValueError(f"gradients of {key}, which is not in flight")
                self._backwards.append(key)
            case UpdateAllowed(update):
                self._allowed = max(self._allowed, update)

    # ---- instructions out ----

    def next(self) -> Instruction | None:
        """What to do now; the caller does it before it asks again."""
        return self._next_update() or self._next_backward() or self._next_in_line()

    def _next_update(self) -> Update | None:
        gradients = self._gradients
        if not gradients.complete:
            return None
        if not self._is_allowed(gradients.update):
            return None
        in_place = self._users[self._version] == 0
        if not in_place and len(self._users) >= self.rules.max_versions:
            return None
        return self._update(in_place=in_place)

    def _is_allowed(self, update: int) -> bool:
        must_wait = self.rules.waits_for_permission and self.rules.is_synchronous(update)
        return not must_wait or self._allowed >= update

    def _update(self, *, in_place: bool) -> Update:
        gradients = self._gradients
        if in_place:
            del self._users[self._version]
        self._version += 1
        self._users[self._version] = 0
        self._updates_done = gradients.update + 1
        self._gradients = _Gradients()
        whole = round(gradients.batches)  # the shares of a batch add up to one, but for rounding
        exact = abs(gradients.batches - whole) < 1e-6
        batches = float(whole) if exact else gradients.batches
        lag = gradients.lag / gradients.batches
        return Update(gradients.update, self._version, batches, in_place, lag)

    def _next_backward(self) -> Backward | None:
        if not self._backwards:
            return None
        key = self._backwards.popleft()
        item = self._in_flight.pop(key)
        self._users[item.version] -= 1
        freed = self._users[item.version] == 0 and item.version != self._version
        if freed:
            del self._users[item.version]
        gradients = self._gradients
        if item.closes_update or not gradients.complete:
            gradients.update = item.update  # else a part of the next one, taken along
        gradients.complete = gradients.complete or item.closes_update
        gradients.batches += item.weight
        gradients.lag += item.weight * (self._version - item.version)
        return Backward(key, item.version, item.staleness, freed)

    def _next_in_line(self) -> Instruction | None:
        if not self._line:
            return None
        first = self._line[0]
        if isinstance(first, CommandReady):
            return self._obey(first)
        if not first.trains:
            self._line.popleft()
            return Evaluate(first.key)
        if len(self._in_flight) >= self.limit:
            return None
        if self._lies_ahead(first.update):
            return None
        self._line.popleft()
        staleness = max(0, first.update - self._updates_done)
        self._in_flight[first.key] = _InFlight(
            self._version, staleness, first.update, first.closes_update, first.weight
        )
        self._users[self._version] += 1
        if self.rules.is_last:
            self._backwards.append(first.key)  # the loss is there as soon as the outputs are
        return Forward(first.key, self._version)

    def _lies_ahead(self, update: int) -> bool:
        """Other updates have to be made before anything is computed for this one."""
        every = self.rules.meets_every
        if self.rules.is_synchronous(self._updates_done):
            every = 1
        return every is not None and update // every > self._updates_done // every

    def _obey(self, command: CommandReady) -> Instruction | None:
        """Nothing is in flight when a command is carried out, and no complete update is left."""
        if self._in_flight or self._backwards or self._gradients.complete:
            return None
        if self._gradients.batches and command.ends_update:
            if not self._is_allowed(self._gradients.update):
                return None
            return self._update(in_place=self._users[self._version] == 0)
        self._line.popleft()
        return Obey(command)
