"""All parts of a running server, put together, started and ended."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ravnest.api.views import JobView, PlanView, ProviderView, RunView, ServerView
from ravnest.release import VERSION
from ravnest.removing import remove_whole
from ravnest.server.access import Access, TokenRecord
from ravnest.server.authority import Authority
from ravnest.server.folders import Folders, owner_key
from ravnest.server.metrics import Metrics
from ravnest.server.relay import Relay
from ravnest.server.service.calls import Desk
from ravnest.server.service.connections import Connections
from ravnest.server.service.control import ControlChannel
from ravnest.server.service.core import Core
from ravnest.server.service.curves import Curves
from ravnest.server.service.errands import Errands
from ravnest.server.service.files import Files, Quota
from ravnest.server.service.forgetting import Forgetting
from ravnest.server.service.gate import Dashboard, Gate
from ravnest.server.service.intake import Intake
from ravnest.server.service.keeping import Keeping, note_hashes
from ravnest.server.service.numbers import Numbers
from ravnest.server.service.ratelimit import UploadSpeed
from ravnest.server.service.reading import read_all
from ravnest.server.service.reports import Reports
from ravnest.server.service.runfiles import RunFiles
from ravnest.server.service.stream import Sight, Stream
from ravnest.server.service.views import event_view, job_view, offered_by, provider_view, run_view
from ravnest.server.service.work import WorkLimits, Workshop
from ravnest.server.state.events import Started
from ravnest.server.state.records import Job
from ravnest.server.state.world import Settings, World
from ravnest.server.store import Store

logger = logging.getLogger("ravnest.server")


@dataclass(frozen=True)
class Options:
    """What the owner of a server decides."""

    folder: Path
    name: str = "ravnest"
    names: tuple[str, ...] = ("localhost",)
    """By which others reach it; in its certificate."""
    dashboard: Dashboard = "local"
    most_upload_bytes: int = 64 << 30
    quota: Quota = field(default_factory=Quota)
    most_providers: int = 10_000
    most_providers_each: int = 1000
    """Of one token, unless it was made for a number of them."""
    most_jobs: int = 1000
    owner_jobs: int = 50
    """Of one owner, that have not ended."""
    settings: Settings = field(default_factory=Settings)
    work: WorkLimits = field(default_factory=WorkLimits)
    require_sandbox: bool = False
    """Without one, the server does not start."""
    upload_speed: UploadSpeed = field(default_factory=UploadSpeed)
    behind_proxy: bool = False
    """All callers have the address of the proxy, which limits them by their own."""


class Service:
    """Made inside the event loop that will run it."""

    def __init__(
        self,
        options: Options,
        store: Store,
        authority: Authority,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.options = options
        self.no_sandbox = ""
        """Why models are looked at without a sandbox, if they are."""
        self.authority = authority
        self.clock = clock
        self.folders = Folders(options.folder)
        self.started_at = clock()
        records = read_all(store)
        events, points = store.ask(lambda db: db.last_numbers()).result()
        self.world = World.rebuilt(records, options.settings, events, self.started_at)
        self.core = Core(self.world, store, clock=clock)
        self.core.number_points_from(points)
        self.curves = Curves(self.core)
        tokens = [msgspec.json.decode(body, type=TokenRecord) for body in records["token"]]
        self.access = Access(authority.fingerprint, tokens, self._credential_digest)
        self.gate = Gate(
            self.access,
            open_dashboard=options.dashboard == "open",
            per_address=not options.behind_proxy,
            clock=clock,
        )
        self.metrics = Metrics(self.world)
        self.desk = Desk(self.gate, self.metrics.count_call, options.upload_speed)
        self.connections = Connections()
        self.files = Files(
            self.folders,
            most_bytes=options.most_upload_bytes,
            quota=options.quota,
            owner_of=self._owner_of,
        )
        self.keeping = Keeping(self.core, self.files, clock)
        self._forgetting = Forgetting(self.access, self.core, self.keeping, clock)
        self.run_files = RunFiles(self.folders, self.files, self.world)
        self.workshop = Workshop(options.work, options.folder)
        self.intake = Intake(
            self.core,
            self.folders,
            self.files,
            self.keeping,
            self.workshop,
            most_jobs=options.most_jobs,
            owner_jobs=options.owner_jobs,
        )
        self.errands = Errands(
            self.core, self.folders, self.files, self.run_files, self.connections, self.workshop
        )
        self.stream = Stream(Sight(self.server_view, self._provider, self.job_view, self.run_view))
        self.reports = Reports(
            self.core,
            self.run_files,
            records["progress"],
            seen=self.job_view,
            changed=self.stream.job_changed,
            hang_up=self.connections.hang_up,
        )
        self.relay = Relay(self.world, self.desk, self.connections, count=self.metrics.relayed.inc)
        self.control = ControlChannel(
            self.core,
            self.desk,
            self.connections,
            reported=self.reports.reported,
            ended=self.reports.ended,
            gone=self.reports.falls_silent,
            count=self.metrics.count_message,
        )
        self.core.perform = self.errands.perform
        numbers = Numbers(self.folders.last_provider, self.world)
        self.core.watchers += [self.stream, self.relay, numbers]
        self.metrics.relays.set_function(lambda: self.relay.links)
        self.metrics.gauge(
            "ravnest_connections", "Agents that are connected", lambda: len(self.connections)
        )
        self.metrics.watch_jobs(self.stream.jobs)
        self.metrics.gauge("ravnest_looking", "Streams of events", lambda: self.stream.looking)
        self.metrics.gauge(
            "ravnest_blob_bytes", "Of files that are kept", lambda: self.files.held_bytes
        )
        self.version = VERSION

    def _credential_digest(self, provider: int) -> str | None:
        known = self.world.providers.get(provider)
        return known.digest if known is not None and not known.removed else None

    def _owner_of(self, job: str) -> str:
        known = self.world.jobs.get(job)
        return "" if known is None else owner_key(known.owner_role, known.owner_name)

    # ---- beginning and end

    async def start(self) -> None:
        await self.files.off_loop(self._tidy)
        last = await asyncio.wrap_future(self.core.store.ask(lambda db: db.events(100)))
        present = [p.id for p in self.world.providers.values() if not p.removed]
        self.stream.begin(present, self.world.jobs, map(event_view, last))
        self.core.happen(Started())
        self._forgetting.begin()

    def _tidy(self) -> None:
        """What a server before this one has left behind."""
        for folder in self.folders.jobs.iterdir():
            if (job := self.world.jobs.get(folder.name)) is not None:
                self._tidy_job(job)
            elif self.folders.holds_results(folder.name):
                # That nobody knows of it is no reason to lose what was trained.
                place = self.folders.set_aside(folder.name)
                logger.warning(
                    "job %s is not in the records; what was trained for it is in %s now",
                    *(folder.name, place),
                )
            else:
                remove_whole(folder)
        self.files.begin()
        note_hashes(self.core.store, self.world.jobs)

    def _tidy_job(self, job: Job) -> None:
        run, fused_run = self.world.runs.get(job.id), job.fused_run
        if run is not None and run.state == "fusing":
            fused_run = run.number  # it was being put in its place, and is made again
        place = self.folders.set_newer_aside(job.id, job.run, fused_run)
        if place is not None:
            logger.warning(
                "job %s was trained further than the records know, which are older (a backup?); "
                "what they do not know of is in %s now",
                *(job.id, place),
            )
        self.folders.remove_runs_before(job.id, job.fused_run)

    def begin_to_close(self) -> None:
        """Let go of everybody; requests that are being answered may end."""
        self._forgetting.close()
        self.core.store.hurry()
        self.intake.close()
        self.core.close()
        self.stream.close()
        self.reports.close()
        self.connections.close_all()

    async def close(self) -> None:
        self.begin_to_close()
        await self.workshop.close()
        await self.errands.close()
        self.files.close()
        await asyncio.get_running_loop().run_in_executor(None, self.core.store.close)

    # ---- what others see

    def server_view(self) -> ServerView:
        heard = [
            provider
            for provider in self.world.providers.values()
            if not provider.removed and self.world.heard_of(provider.id).connected
        ]
        return ServerView(
            name=self.options.name,
            version=self.version,
            started_at=self.started_at,
            now=self.clock(),
            providers=sum(not provider.removed for provider in self.world.providers.values()),
            heard=len(heard),
            memory_bytes=sum(map(offered_by, heard)),
            gflops=sum(each.figures.gflops for each in heard if each.figures),
            relayed_bytes=self.relay.bytes,
            relayed_bytes_per_s=self.relay.bytes_per_s(),
            no_sandbox=self.no_sandbox,
        )

    def _provider(self, id: int) -> ProviderView | None:
        known = self.world.providers.get(id)
        return None if known is None or known.removed else provider_view(self.world, id)

    def job_view(self, id: str) -> JobView | None:
        job = self.world.jobs.get(id)
        if job is None:
            self.reports.forget(id)
            return None
        known = self.reports.progress.get(id)
        return job_view(self.world, job, self.reports.live_run(id), known)

    def run_view(self, job: str, *, over: bool = False) -> RunView | None:
        run = self.world.runs.get(job)
        if run is None or (run.state == "over" and not over):
            return None
        outcome, live = self.run_files.outcome(job, run.number), self.reports.live_run(job)
        return run_view(self.world, run, live, outcome.rings if outcome else ())

    def plan_view(self, id: str) -> PlanView | None:
        job = self.world.jobs[id]
        number = job.plan.run if job.plan is not None else job.run
        outcome = self.run_files.outcome(id, number) if number else None
        return outcome.view if outcome is not None else None
