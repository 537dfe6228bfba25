"""Figures for Prometheus, in a registry of their own."""

from collections import Counter as Tally
from collections.abc import Callable, Iterator
from typing import get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ravnest.api.views import JobState, ProviderState
from ravnest.server.service.views import provider_view
from ravnest.server.state.world import World


class Metrics:
    def __init__(self, world: World) -> None:
        # In the whole process: of each counter a second series, of when it was first counted.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._calls = Counter(
            "ravnest_requests",
            "Requests by route and outcome (a status, or the reason of a refusal)",
            ["route", "outcome"],
            registry=self.registry,
        )
        self._messages = Counter(
            "ravnest_agent_messages", "Messages of agents", ["kind"], registry=self.registry
        )
        self.relayed = Counter(
            "ravnest_relayed_bytes", "Bytes relayed between providers", registry=self.registry
        )
        self.relays = Gauge("ravnest_relays", "Relayed links at present", registry=self.registry)
        self.registry.register(_State(world))

    def count_call(self, route: str, outcome: str) -> None:
        self._calls.labels(route, outcome).inc()

    def count_message(self, kind: str) -> None:
        self._messages.labels(kind).inc()

    def gauge(self, name: str, help: str, value: Callable[[], float]) -> None:
        Gauge(name, help, registry=self.registry).set_function(value)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _State(Collector):
    """Read off the state when somebody asks."""

    def __init__(self, world: World) -> None:
        self._world = world

    def collect(self) -> Iterator[Metric]:
        world = self._world
        views = [provider_view(world, p.id) for p in world.providers.values() if not p.removed]
        states = Tally(view.state for view in views)
        providers = GaugeMetricFamily("ravnest_providers", "Providers by state", labels=["state"])
        for state in get_args(ProviderState):
            providers.add_metric([state], states[state])
        yield providers
        jobs = GaugeMetricFamily("ravnest_jobs", "Jobs by state", labels=["state"])
        found = Tally(job.state for job in world.jobs.values())
        for state in get_args(JobState):
            jobs.add_metric([state], found[state])
        yield jobs
        heard = [view for view in views if view.state != "away"]
        memory = GaugeMetricFamily(
            "ravnest_pool_memory_bytes", "Memory for training, of connected providers"
        )
        memory.add_metric([], sum(view.memory_bytes for view in heard))
        yield memory
        speed = GaugeMetricFamily("ravnest_pool_gflops", "Speed of connected providers")
        speed.add_metric([], sum(view.gflops for view in heard))
        yield speed
