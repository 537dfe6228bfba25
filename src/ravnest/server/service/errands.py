"""Carries out what the state has decided: words to agents, processes that plan and fuse."""

import asyncio
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from ravnest.api.jobs import JobSpec
from ravnest.errors import JobError
from ravnest.removing import remove_whole
from ravnest.server.folders import FUSED, Folders, blob_key, owner_key
from ravnest.server.planjob.outcome import NODE_DATA, PlanOrder, PlanOutcome
from ravnest.server.room import SPARE_BYTES, is_for_lack_of_room
from ravnest.server.service.connections import Connections
from ravnest.server.service.core import Core
from ravnest.server.service.files import Files
from ravnest.server.service.partitions import take_over
from ravnest.server.service.runfiles import RunFiles
from ravnest.server.service.specs import read_spec
from ravnest.server.service.work import Workshop
from ravnest.server.state.effects import (
    Close,
    Discard,
    DropPlan,
    Fuse,
    Hand,
    MakePlan,
    Order,
    Send,
)
from ravnest.server.state.events import Fused, FusingFailed, NotHanded, PlanFailed, PlanMade
from ravnest.server.state.records import Part

logger = logging.getLogger("ravnest.server")


class Errands:
    def __init__(
        self,
        core: Core,
        folders: Folders,
        files: Files,
        run_files: RunFiles,
        connections: Connections,
        workshop: Workshop,
    ) -> None:
        self._core = core
        self._folders = folders
        self._files = files
        self._run_files = run_files
        self._connections = connections
        self._workshop = workshop
        self._tasks: set[asyncio.Task[None]] = set()
        self._handing: set[str] = set()
        """Parts whose assignments are being read."""
        self._clearing = asyncio.Lock()
        """For a plan: of two that were wanted soon after each other, the first may be at it."""

    def perform(self, order: Order) -> None:
        match order:
            case Send():
                self._connections.post(order.provider, order.message)
            case Hand():
                self._hand(order)
            case Close():
                connection = self._connections.get(order.provider)
                if connection is not None:
                    connection.close(order.reason, final=order.final)
            case MakePlan():
                self._soon(self._plan_or_say_why_not(order))
            case DropPlan():
                self._workshop.cancel(f"plan {order.job}")
            case Fuse():
                self._fuse(order)
            case Discard():
                self._discard(order.job)
            case _:
                raise AssertionError(f"{type(order).__name__} is the core's to carry out")

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("an errand failed", exc_info=error)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- assignments

    def _hand(self, order: Hand) -> None:
        part = self._core.world.parts.get(order.part)
        # If it is being read for an earlier connection of this agent, it goes to the newest.
        if part is not None and part.is_open and part.id not in self._handing:
            self._handing.add(part.id)
            self._soon(self._read_and_post(part))

    async def _read_and_post(self, part: Part) -> None:
        try:
            text = await self._run_files.written_assignment(part)
        except Exception as error:
            logger.exception("the assignment %s cannot be handed out", part.id)
            self._core.happen(NotHanded(part=part.id, reason=str(error)))
            return
        finally:
            self._handing.discard(part.id)
        # What is said of a part before it is assigned is only ever that it is not wanted any more.
        if part.is_open:
            self._connections.post_text(part.provider, text, about=part.id)

    # ---- planning

    async def _plan_or_say_why_not(self, order: MakePlan) -> None:
        try:
            await self._plan(order)
        except Exception as error:
            # Nothing may wait for ever for a plan that nobody makes.
            logger.exception("planning %s could not be begun", order.job)
            reason = f"planning could not be begun: {error}"
            outcome = PlanOutcome(
                error=reason,
                crashed=isinstance(error, OSError),
                full=is_for_lack_of_room(error),
            )
            self._planned(order, outcome)

    async def _plan(self, order: MakePlan) -> None:
        self._run_files.forget(order.job, order.run)
        folder = self._folders.run(order.job, order.run)
        spec = await self._spec(order.job)
        async with self._clearing:
            # A plan of this job that was dropped may be writing still.
            await self._workshop.ended(f"plan {order.job}")
            if not self._is_wanted(order):
                return
            if spec is None:
                raise JobError(f"{order.job} is not in the store")
            kept = self._runs_to_keep(order)
            await self._files.off_loop(self._folders.remove_runs_except, order.job, kept)
            await self._count(order.job)
        fused = self._folders.result(order.job) / FUSED["safetensors"]
        world = self._core.world
        job = world.jobs.get(order.job)  # None: it was deleted meanwhile, and is not wanted
        owner = "" if job is None else owner_key(job.owner_role, job.owner_name)
        if job is not None and job.owner_role != "operator":
            self._files.must_be_within_share(owner)
        task = PlanOrder(
            task="plan",
            spec=spec,
            job=order.job,
            model=str(self._folders.job(order.job) / "model"),
            run=order.run,
            pool=order.pool,
            names={provider.id: world.called(provider.id) for provider in order.pool},
            weights=str(fused) if order.fused_run else "",
            epochs_done=order.epochs_done,
            reserve_bytes=self._files.quota.reserve_bytes,
        )

        async def done(outcome: PlanOutcome) -> None:
            self._planned(order, outcome)
            self._soon(self._count(order.job))

        def blob(sha256: str) -> Path:
            return self._folders.blob(blob_key(owner, sha256))

        def then(outcome: PlanOutcome) -> None:
            take_over(folder, task, outcome, blob, SPARE_BYTES + self._files.quota.reserve_bytes)

        # It may have been dropped, or the job deleted, while its files were seen to.
        if self._is_wanted(order):
            self._workshop.start(f"plan {order.job}", folder, task, done, then)

    async def _count(self, job: str) -> None:
        await self._files.off_loop(self._files.count_job, job)

    def _is_wanted(self, order: MakePlan) -> bool:
        world = self._core.world
        return (world.planning, world.attempt) == (order.job, order.attempt)

    def _runs_to_keep(self, order: MakePlan) -> set[int]:
        """The one whose weights are fused, and one that waits to be; the others are lost."""
        run = self._core.world.runs.get(order.job)
        if run is None or run.fuses is None:
            return {order.fused_run}
        return {order.fused_run, run.number}

    async def _spec(self, job: str) -> JobSpec | None:
        body = await self._core.read(lambda db: db.record("spec", job))
        return None if body is None else await self._files.off_loop(read_spec, body)

    def _planned(self, order: MakePlan, outcome: PlanOutcome) -> None:
        if outcome.facts is not None and not outcome.error:
            event = PlanMade(job=order.job, attempt=order.attempt, plan=outcome.facts)
            self._core.happen(event)
            return
        reason = outcome.error or "planning left no plan behind"
        self._core.happen(
            PlanFailed(
                job=order.job,
                attempt=order.attempt,
                reason=reason,
                hopeless=not outcome.unfit and not outcome.crashed,
                crashed=outcome.crashed,
                full=outcome.full,
            )
        )

    # ---- fusing

    def _fuse(self, order: Fuse) -> None:
        run = self._folders.run(order.job, order.run)
        folder = run / "fusing"
        job = self._core.world.jobs.get(order.job)
        task = PlanOrder(
            task="fuse",
            owner=job.owner_name if job is not None else "",
            job=order.job,
            run=order.run,
            cluster=order.cluster,
            model=str(run / NODE_DATA),
            results=str(run / "results"),
            output=str(self._folders.result(order.job)),
        )

        async def done(outcome: PlanOutcome) -> None:
            if outcome.error:
                self._core.happen(
                    FusingFailed(
                        job=order.job,
                        run=order.run,
                        reason=outcome.error,
                        crashed=outcome.crashed,
                        full=outcome.full,
                        refused=outcome.validation is not None,
                        stage=outcome.stage,
                    )
                )
            else:
                await self._core.happen(
                    Fused(
                        job=order.job,
                        run=order.run,
                        bytes=outcome.result_bytes,
                        validation=outcome.validation,
                    )
                )
                # Not before it is on record that something newer is there.
                self._soon(self._remove_runs_before(order))
            self._soon(self._count(order.job))

        self._workshop.start(f"fuse {order.job}", folder, task, done)

    async def _remove_runs_before(self, order: Fuse) -> None:
        await self._files.off_loop(self._folders.remove_runs_before, order.job, order.run)
        await self._count(order.job)

    # ---- the end of a job

    def _discard(self, job: str) -> None:
        self._workshop.cancel(f"plan {job}")
        self._workshop.cancel(f"fuse {job}")
        self._run_files.forget(job)
        self._soon(self._remove(job))

    async def _remove(self, job: str) -> None:
        # Whatever still works in the folder would make it anew.
        await self._workshop.ended(f"plan {job}", f"fuse {job}")
        folder = self._folders.job(job)
        await self._files.off_loop(remove_whole, folder)
        await self._count(job)
