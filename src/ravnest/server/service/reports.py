"""What workers say while they train and when they end: shown, kept, and told to the state."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

import msgspec

from ravnest.api.control import Ended, Reported
from ravnest.api.limits import FileRef
from ravnest.api.views import JobView, NewPoint
from ravnest.api.work import Point as Said
from ravnest.api.work import WorkReport
from ravnest.server.changes import Point, Put
from ravnest.server.service.core import Core
from ravnest.server.service.live import LiveRun
from ravnest.server.service.moderation import Moderation
from ravnest.server.service.runfiles import RunFiles
from ravnest.server.service.views import Progress
from ravnest.server.state.events import Noted, PartEnded, WorkReported
from ravnest.server.state.parts import own_part
from ravnest.server.state.records import Part
from ravnest.server.state.words import counted

logger = logging.getLogger("ravnest.server")

_PROGRESS_S = 10.0


class Reports:
    """`seen` is how a job looks now, `changed` is told of new points of its curves; `hang_up` ends
    the connection of a provider, which comes back and says again what was not settled."""

    def __init__(
        self,
        core: Core,
        run_files: RunFiles,
        known: Iterable[bytes],
        *,
        seen: Callable[[str], JobView | None],
        changed: Callable[[str, Sequence[NewPoint]], None],
        hang_up: Callable[[int, str], None],
    ) -> None:
        self._core = core
        self._run_files = run_files
        self._seen = seen
        self._changed = changed
        self._hang_up = hang_up
        self._moderation = Moderation(self._too_much, core.clock)
        self._live: dict[str, LiveRun] = {}
        self._ending: dict[tuple[int, str], asyncio.Task[None]] = {}
        """Provider and assignment, while what it has brought back is looked at."""
        decoded = (msgspec.json.decode(record, type=Progress) for record in known)
        self.progress = {progress.job: progress for progress in decoded}
        """Job id → how far it was, for a server that has not heard of it since it began."""

    def live_run(self, job: str) -> LiveRun | None:
        """What the workers of its present run have said, if they have."""
        live, run = self._live.get(job), self._core.world.runs.get(job)
        return live if live is not None and run is not None and live.number == run.number else None

    def forget(self, job: str) -> None:
        self._live.pop(job, None)
        self.progress.pop(job, None)

    def reported(self, provider: int, message: Reported) -> None:
        world = self._core.world
        part = own_part(world, provider, message.assignment)
        if part is None or not part.is_open:
            return
        live = self.live_run(part.job)
        if live is None:
            self._forget_what_is_over()
            live = LiveRun.of(part.job, part.run, world.of_run[part.job])
            self._live[part.job] = live
        curves = world.jobs[part.job].curves
        report = self._moderation.moderated(provider, live, message.report, curves)
        self._core.happen(
            WorkReported(provider=provider, assignment=message.assignment, report=report)
        )
        self._pass_on_notes(part, report)
        kept = live.take(part, report)
        self._keep_points(part, kept)
        told = [(p.series, part.cluster, p.step, p.epoch, p.at, p.value) for p in kept]
        self._changed(part.job, told)
        self._keep_progress(part.job)

    def _forget_what_is_over(self) -> None:
        """Nobody asks for the last seconds of a run that ended before this one began, and they are
        most of what is kept of it."""
        for job, live in self._live.items():
            run = self._core.world.runs.get(job)
            if run is None or run.number != live.number or run.state == "over":
                live.spans.clear()

    def _pass_on_notes(self, part: Part, report: WorkReport) -> None:
        name = self._core.world.called(part.provider)
        for note in report.notes:
            self._warn(f"{name}: {note}", part.job, part.provider)

    def _keep_points(self, part: Part, points: Sequence[Said]) -> None:
        if points:
            self._core.keep(
                [
                    Point(
                        self._core.next_point(),
                        part.job,
                        point.series,
                        part.cluster,
                        point.step,
                        point.epoch,
                        point.at,
                        point.value,
                    )
                    for point in points
                ]
            )

    def _keep_progress(self, job: str) -> None:
        now, known = self._core.clock(), self.progress.get(job)
        # What is ahead of the clock was kept before that was put back.
        if known is not None and 0 <= now - known.at < _PROGRESS_S:
            return
        view = self._seen(job)
        assert view is not None
        self.progress[job] = progress = Progress.of(view, now)
        self._core.keep([Put("progress", job, msgspec.json.encode(progress))])

    def ended(self, provider: int, message: Ended) -> None:
        """What was brought back may have to be looked at, which takes minutes if it is much. Its
        provider is heard meanwhile, or its connection would be taken for a dead one; and it may
        say the same again on another."""
        key = provider, message.assignment
        if key not in self._ending:
            self._ending[key] = asyncio.create_task(self._end(provider, message))
            self._ending[key].add_done_callback(lambda task: self._has_ended(key, task))

    def _has_ended(self, key: tuple[int, str], task: "asyncio.Task[None]") -> None:
        del self._ending[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the end of %s could not be taken", key[1], exc_info=error)
            self._hang_up(key[0], "what it has brought back could not be looked at")

    def close(self) -> None:
        """Whoever was not told that all is settled says its end again."""
        for task in self._ending.values():
            task.cancel()

    async def _end(self, provider: int, message: Ended) -> None:
        world = self._core.world
        part = own_part(world, provider, message.assignment)
        results: tuple[FileRef, ...] = ()
        end = message.end
        if part is not None and part.is_open:
            curves = world.jobs[part.job].curves
            known = {name: value for name, value in end.metrics.items() if name in curves}
            end = msgspec.structs.replace(end, metrics=known) if curves else end
            results = await self._run_files.whole(part, message.results)
            if len(results) < len(message.results):
                name = world.called(provider)
                missing = counted(len(message.results) - len(results), "result")
                self._warn(f"not here, or not whole: {missing} of {name}", part.job, provider)
        self.falls_silent(provider)
        self._core.happen(
            PartEnded(provider=provider, assignment=message.assignment, end=end, results=results)
        )
        if part is not None:
            self._run_files.settled(part)
            self.progress.pop(part.job, None)
            if part.job in world.jobs:
                self._keep_progress(part.job)

    def falls_silent(self, provider: int) -> None:
        """It has ended, or gone: nothing that it says will have the rest told."""
        self._moderation.tell_rest(provider)

    def _too_much(self, provider: int, how: str) -> None:
        part = self._core.world.at_work.get(provider)
        text = f"{self._core.world.called(provider)} {how}"
        self._warn(text, part.job if part else None, provider)

    def _warn(self, text: str, job: str | None, provider: int) -> None:
        """For people; nothing follows from it."""
        self._core.happen(Noted(level="warning", text=text, job=job, provider=provider))
