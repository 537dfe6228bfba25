"""Several clusters in virtual time: real stages and real rings, without threads or sockets.

Every cluster is a `VirtualPipeline`; every provider has a `RingPlace` in each of its rings, as its
averager would have. Messages between members take a link's delay and their size over its bandwidth,
in order. What a ring wants of the compute thread is done when that has finished what it is doing.
"""

import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "staleness"))

from virtual import Clock, Stage, Traffic, VirtualPipeline, copied

from ravnest.planning.search.rings import form_rings
from ravnest.planning.study import study
from ravnest.provider.assembly import StageSettings
from ravnest.provider.averaging.fragments import fragments_of
from ravnest.provider.averaging.ring import RingPlace, Surroundings
from ravnest.provider.averaging.settings import Averaging
from ravnest.provider.averaging.share import Outcome, Share
from ravnest.provider.compression import Packing
from ravnest.provider.document import RingDocument, RingMember
from ravnest.wire.encoding import Parcel
from ravnest.wire.messages import RingMessage

NEVER = 1e12
"""Nobody is lost here, so nothing is given up."""


@dataclass(frozen=True)
class Links:
    """Between providers, each with one to each other; in virtual seconds."""

    delay: float = 0.0
    bytes_per_s: float = float("inf")


@dataclass(frozen=True)
class Cluster:
    """How one of them trains."""

    stages: int
    settings: StageSettings
    parts: int = 1
    unit: float = 1.0
    """See `VirtualPipeline`."""
    delay: float = 0.0
    """Of the links between its stages."""


@dataclass
class _RingLink:
    """From one provider to another."""

    clock: Clock
    links: Links
    deliver: Callable[[Parcel], None]
    free_at: float = 0.0
    traffic: Traffic = field(default_factory=Traffic)

    def send(self, parcel: Parcel) -> None:
        size = self.traffic.add(parcel)
        arriving = copied(parcel)
        self.free_at = max(self.free_at, self.clock()) + size / self.links.bytes_per_s
        self.clock.at(self.free_at + self.links.delay, lambda: self.deliver(arriving))


class _Member:
    """A provider, seen from its rings: what `Averager` is in a process of its own."""

    def __init__(
        self, name: str, stage: Stage, world: "VirtualClusters", averaging: Averaging, codec: str
    ) -> None:
        assert stage.runner.share is not None
        self.name = name
        self._stage = stage
        self._share: Share = stage.runner.share
        self._share.ears = self
        self._world = world
        self._averaging = averaging
        self._packing = Packing(codec or None)
        self.places: dict[int, RingPlace] = {}
        self._around = Surroundings(
            send=lambda node, parcel: world.link(name, node).send(parcel),
            take_snapshot=self._take_snapshot,
            apply=self._apply,
            skipped=lambda ring, is_refused: self._when_free(
                lambda: self._share.skipped(ring, is_refused=is_refused)
            ),
            released=lambda ring, last: self._when_free(
                lambda: self._share.released(ring, last=last)
            ),
            cut_off=lambda: None,
            codec_for=lambda node: self._packing.codec_for(None),
        )

    def join(self, ring: RingDocument) -> None:
        share, averaging = self._share, self._averaging
        tensors = share.tensors(ring.names)
        parameters = set(share.parameter_names(ring.names))
        fragments = fragments_of(tensors, parameters, averaging)
        share.add_ring(ring.id, [fragment.layout for fragment in fragments])
        self.places[ring.id] = RingPlace(
            ring, fragments, self._around, round_s=NEVER, wait_s=NEVER, clock=self._world.clock
        )

    def heard(self, source: str, parcel: Parcel) -> None:
        assert isinstance(parcel.message, RingMessage)
        self.places[parcel.message.ring].heard(source, parcel)

    # ---- told by the share ----

    def due(self, ring: int) -> None:
        self._world.clock.after(0.0, self.places[ring].due)

    def waits(self) -> None:
        for place in self.places.values():
            self._world.clock.after(0.0, place.waits)

    def ended(self) -> None:
        for place in self.places.values():
            self._world.clock.after(0.0, place.ended)

    # ---- asked by the rings ----

    def _when_free(self, act: Callable[[], None]) -> None:
        """Between two passes of the stage, as what lies in its inbox."""
        clock = self._world.clock
        clock.at(max(clock(), self._stage.free_at), act)

    def _take_snapshot(self, ring: int, number: int, fragments: tuple[int, ...]) -> None:
        place = self.places[ring]

        def take() -> None:
            place.snapshot_begun(number, self._share.facts(ring, fragments))
            place.snapshot_taken(number, self._share.snapshot(ring, fragments))

        self._when_free(lambda: self._share.when_up_to_date(take))

    def _apply(self, outcome: Outcome) -> None:
        self._when_free(lambda: self._stage.runner.averaged(outcome))


class VirtualClusters:
    """Clusters that train copies of one model, each on data of its own."""

    def __init__(
        self,
        model: nn.Module,
        example: torch.Tensor,
        clusters: Sequence[Cluster],
        *,
        averaging: Averaging | None = None,
        codec: str | None = None,
        links: Links | None = None,
    ) -> None:
        """`codec` is for the rings; edges have theirs in the settings of the stages."""
        self.clock = Clock()
        studied = study(model, (example,))
        self.pipelines = [
            VirtualPipeline(
                model,
                example,
                cluster.stages,
                lambda _, settings=cluster.settings: settings,
                parts=cluster.parts,
                delay=cluster.delay,
                unit=cluster.unit,
                clock=self.clock,
                studied=studied,
            )
            for cluster in clusters
        ]
        self._links = links or Links()
        self._link: dict[tuple[str, str], _RingLink] = {}
        self._members: dict[str, _Member] = {}
        if len(clusters) > 1:
            self._form_rings(averaging or Averaging(), codec or "")

    def _form_rings(self, averaging: Averaging, codec: str) -> None:
        numbers = itertools.count()
        owners: list[dict[str, int]] = []
        home: dict[int, int] = {}
        for c, pipeline in enumerate(self.pipelines):
            owned: dict[str, int] = {}
            for graph, stage in zip(pipeline.graphs, pipeline.stages, strict=True):
                number = next(numbers)
                home[number] = c
                name = f"node_{number}"
                self._members[name] = _Member(name, stage, self, averaging, codec)
                owned |= {spec.name: number for spec in graph.tensors if spec.owner}
            owners.append(owned)
        specs = {s.name: s for graph in self.pipelines[0].graphs for s in graph.tensors}
        names = [
            name
            for name in self.pipelines[0].homes
            if specs[name].trainable or specs[name].kind == "buffer"
        ]
        for ring in form_rings(names, owners):
            members = tuple(RingMember(f"node_{n}", "", home[n]) for n in ring.owners)
            for place, member in enumerate(members):
                document = RingDocument(ring.id, ring.names, members, place)
                self._members[member.node].join(document)

    def link(self, source: str, target: str) -> _RingLink:
        if (source, target) not in self._link:
            heard = self._members[target].heard
            self._link[source, target] = _RingLink(
                self.clock, self._links, lambda parcel: heard(source, parcel)
            )
        return self._link[source, target]

    # ---- training ----

    def feed(self, shards: Iterable[Iterable[torch.Tensor]]) -> None:
        for pipeline, shard in zip(self.pipelines, shards, strict=True):
            pipeline.feed(shard)

    def run_to(self, steps: int) -> None:
        """Until every cluster has trained on so many batches, or there is nothing left to do."""
        losses = [pipeline.observer.losses for pipeline in self.pipelines]
        self.clock.run(lambda: all(len(some) >= steps for some in losses))

    def mean_state(self) -> dict[str, torch.Tensor]:
        """The mean of all clusters' tensors at this moment, with weights where optimizers have left
        them, as they would be saved."""
        states = [pipeline.learnt() for pipeline in self.pipelines]
        return {
            name: torch.stack([state[name].double() for state in states]).mean(0).to(value.dtype)
            for name, value in states[0].items()
        }

    @property
    def ring_traffic(self) -> Traffic:
        return sum((link.traffic for link in self._link.values()), Traffic())

    @property
    def rounds(self) -> float:
        """That a stage has had, on average."""
        each = [s.runner.meter.rounds for p in self.pipelines for s in p.stages]
        return sum(each) / len(each)
