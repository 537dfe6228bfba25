"""Figures for Prometheus, in a registry of their own."""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator
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

from ravnest.api.views import ENDED_JOBS, JobState, JobView, ProviderState
from ravnest.server.service.views import provider_view
from ravnest.server.state.world import World

MOST_JOBS = 100
"""With series of their own: those that have not ended, the newest first, then those that have."""


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

    def watch_jobs(self, jobs: Callable[[], Iterable[JobView]]) -> None:
        self.registry.register(_Jobs(jobs))

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
            "ravnest_pool_memory_bytes", "Memory offered by connected providers"
        )
        memory.add_metric([], sum(view.worker_limit_bytes for view in heard))
        yield memory
        speed = GaugeMetricFamily("ravnest_pool_gflops", "Speed of connected providers")
        speed.add_metric([], sum(view.gflops for view in heard))
        yield speed


class _Jobs(Collector):
    """Of each job where it stands, by its id."""

    def __init__(self, jobs: Callable[[], Iterable[JobView]]) -> None:
        self._jobs = jobs

    def collect(self) -> Iterator[Metric]:
        ordered = sorted(self._jobs(), key=lambda job: (job.state in ENDED_JOBS, -job.submitted_at))
        shown = ordered[:MOST_JOBS]
        states = GaugeMetricFamily(
            "ravnest_job_state",
            "1 for the state that a job is in",
            labels=["job", "name", "owner", "state"],
        )
        for job in shown:
            states.add_metric([job.id, job.name, job.owner, job.state], 1)
        yield states
        for name, help, figure in _FIGURES:
            family = GaugeMetricFamily(f"ravnest_job_{name}", help, labels=["job"])
            for job in shown:
                if (value := figure(job)) is not None:
                    family.add_metric([job.id], value)
            yield family


_FIGURES: tuple[tuple[str, str, Callable[[JobView], float | None]], ...] = (
    ("epoch", "Epochs so far, with a fraction", lambda job: job.epoch),
    ("epochs", "Epochs in all", lambda job: job.epochs),
    ("step", "Batches so far, of the first cluster", lambda job: job.step),
    ("loss", "The last training loss", lambda job: job.loss),
    (
        "samples_per_second",
        "Rows trained each second, by all clusters",
        lambda job: job.samples_per_second,
    ),
    (
        "batches_per_second",
        "Batches trained each second, by all clusters",
        lambda job: job.samples_per_second / job.batch_size if job.batch_size else None,
    ),
)
