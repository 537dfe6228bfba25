"""Jobs on their way in: their files looked for, their model checked, then recorded.

That takes a while. Meanwhile a submission counts as a job, its files stay, and the same submission
sent again, by a requester whose line broke, waits for what becomes of the first.
"""

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from ravnest.api.jobs import JobSpec
from ravnest.api.limits import FileRef
from ravnest.api.requests import SUBMISSION_KEY
from ravnest.api.views import ENDED_JOBS
from ravnest.errors import JobError
from ravnest.recipes.metrics import curve_names
from ravnest.removing import remove_whole
from ravnest.server.access import Caller
from ravnest.server.changes import Put
from ravnest.server.folders import Folders, blob_key, link_or_copy, owner_key
from ravnest.server.planjob.outcome import PlanOrder, PlanOutcome
from ravnest.server.service.core import Core
from ravnest.server.service.files import Files
from ravnest.server.service.keeping import Keeping
from ravnest.server.service.problems import Refusal
from ravnest.server.service.specs import HASHES, noted, write_spec
from ravnest.server.service.work import Workshop
from ravnest.server.state.events import Submitted
from ravnest.server.state.records import Job
from ravnest.server.state.words import counted
from ravnest.whole import make_folder, sync_files

_PARTS = 4
"""No owner has more of all jobs that the server keeps than one in so many."""
_NAMED = 50
"""Of files that are missing."""
MOST_AT_ONCE = 8
"""Submissions of one token that are on their way, those that are sent again included. They are
checked one by one, and each is in memory meanwhile."""


class Intake:
    def __init__(
        self,
        core: Core,
        folders: Folders,
        files: Files,
        keeping: Keeping,
        workshop: Workshop,
        *,
        most_jobs: int,
        owner_jobs: int,
    ) -> None:
        self._core = core
        self._folders = folders
        self._files = files
        self._keeping = keeping
        self._workshop = workshop
        self._most_jobs = most_jobs
        self._owner_jobs = owner_jobs
        self._coming: dict[str, tuple[str, str]] = {}
        """Ids of jobs that are being looked at, and role and name of their owner."""
        self._repeatable: dict[tuple[str, str], tuple[str, asyncio.Future[str]]] = {}
        """Token and key of a submission under way → its digest, and the job that comes of it."""
        self._at_once: Counter[str] = Counter()
        """By token."""
        self._checks: set[asyncio.Task[PlanOutcome]] = set()
        self._closed = False

    def close(self) -> None:
        """Nothing is checked any more; whoever waits for it is told to come again."""
        self._closed = True
        for check in self._checks:
            check.cancel()

    @contextlib.contextmanager
    def place(self, caller: Caller) -> Iterator[None]:
        """For a submission, from its first byte to its answer."""
        if self._at_once[caller.key] >= MOST_AT_ONCE:
            raise Refusal(
                "limited",
                f"{MOST_AT_ONCE} submissions with this token are being checked; wait for one of "
                "them to end",
            )
        self._at_once[caller.key] += 1
        try:
            yield
        finally:
            self._at_once[caller.key] -= 1
            if not self._at_once[caller.key]:
                del self._at_once[caller.key]

    async def take(
        self,
        spec: JobSpec,
        caller: Caller,
        key: str,
        digest: str,
        *,
        before_it_is_kept: Callable[[], None] = lambda: None,
    ) -> str:
        """The id of the job: a new one, or the one of the same caller that has this key. `digest`
        is of the whole submission; `before_it_is_kept` may still refuse it when it was checked."""
        assert caller.token is not None

        async def take() -> str:
            return await self._take(spec, caller, key, digest, before_it_is_kept)

        if not key:
            return await take()
        who = caller.token, key
        if who in self._repeatable:
            first, coming = self._repeatable[who]
            _must_be_the_same(first, digest)
            return await asyncio.shield(coming)
        for job in self._core.world.jobs.values():
            if (job.owner, job.submission) == who:
                _must_be_the_same(job.submission_digest, digest)
                return job.id
        return await self._shared(who, digest, take)

    async def _shared(
        self, who: tuple[str, str], digest: str, take: Callable[[], Awaitable[str]]
    ) -> str:
        coming: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._repeatable[who] = digest, coming
        try:
            id = await take()
            coming.set_result(id)
            return id
        except Exception as error:
            coming.set_exception(error)
            coming.exception()  # if nobody else waits, nobody else need hear of it
            raise
        finally:
            coming.cancel()  # without effect if it has ended
            del self._repeatable[who]

    async def _take(
        self,
        spec: JobSpec,
        caller: Caller,
        key: str,
        digest: str,
        before_it_is_kept: Callable[[], None],
    ) -> str:
        world = self._core.world
        if len(world.jobs.keys() | self._coming) >= self._most_jobs:
            raise Refusal("conflict", "the server has as many jobs as it can; delete some")
        self.must_have_place(caller.kind, caller.name, is_new=True)
        id = self._new_id()
        folder = self._folders.job(id)
        self._coming[id] = caller.kind, caller.name
        owner = owner_key(caller.kind, caller.name)
        try:
            hashes = await self._files.off_loop(
                lambda: {blob_key(owner, sha256) for sha256 in spec.files()}
            )
            with self._keeping.pinned(hashes):
                await self._keeping.look(lambda: self._look_for_files(spec, owner))
                await self._files.off_loop(self._place_model, spec, owner, folder)
                await self._check_model(spec, folder, caller.name)
                # Whatever may have happened to the disk in the meantime.
                await self._files.off_loop(self._look_for_files, spec, owner)
                assert caller.token is not None
                who = caller.token, caller.name, caller.kind
                job, *kept = await self._files.off_loop(_records, id, spec, hashes, *who)
                job.submission, job.submission_digest = key, digest
                before_it_is_kept()
                job.submitted_at = self._core.clock()
                await self._core.happen(Submitted(job=job), kept)
        except BaseException:
            if id not in world.jobs and not self._closed:  # else the next start does it
                await self._files.off_loop(remove_whole, folder)
            raise
        finally:
            del self._coming[id]
        return id

    def must_have_place(self, role: str, name: str, *, is_new: bool = False) -> None:
        """A `Refusal` if this owner may have no further job that has not ended. Operators
        have no limit."""
        if role == "operator":
            return
        jobs = self._core.world.jobs.values()
        own = [job for job in jobs if (job.owner_role, job.owner_name) == (role, name)]
        coming = list(self._coming.values()).count((role, name))
        open_jobs = sum(job.state not in ENDED_JOBS for job in own) + coming
        if open_jobs >= self._owner_jobs:
            raise Refusal(
                "conflict",
                f"{name} has {open_jobs} jobs that have not ended, and one owner may have "
                f"{self._owner_jobs} (ravnest server --owner-jobs); wait for one, or stop one",
            )
        if is_new and len(own) + coming >= max(self._owner_jobs, self._most_jobs // _PARTS):
            raise Refusal(
                "conflict",
                f"{name} has {len(own) + coming} of the {self._most_jobs} jobs that the server "
                "keeps; delete some that have ended (ravnest job delete)",
            )

    def _new_id(self) -> str:
        taken = self._core.world.jobs.keys() | self._coming
        while (id := secrets.token_hex(3)) in taken or id.isdigit():
            pass
        return id

    def _look_for_files(self, spec: JobSpec, owner: str) -> None:
        """A `Refusal` with those that this owner has not uploaded, or are of another size."""
        missing: list[FileRef] = []
        wrong: list[FileRef] = []
        for file in spec.files().values():
            size = self._files.size(blob_key(owner, file.sha256))
            if size is None:
                missing.append(file)
            elif size != file.size:
                wrong.append(file)
        if missing or wrong:
            raise Refusal("conflict", _missing_text(missing, wrong))

    def _place_model(self, spec: JobSpec, owner: str, folder: Path) -> None:
        model = folder / "model"
        make_folder(model)
        for file in spec.model:
            link_or_copy(self._folders.blob(blob_key(owner, file.sha256)), model / file.path)
        sync_files(model)

    async def _check_model(self, spec: JobSpec, folder: Path, owner: str) -> None:
        """In a process of its own: nobody knows what is in it."""
        order = PlanOrder(task="check", owner=owner, spec=spec, model=str(folder / "model"))
        check = folder / "check"
        outcome = await self._checked(check, order)
        # It holds the whole job once more.
        await self._files.off_loop(remove_whole, check)
        if outcome.full:
            raise Refusal("full", outcome.error)
        if outcome.error:
            what = "could not be checked" if outcome.crashed else "was refused"
            raise JobError(f"the model {what}: {outcome.error}")

    async def _checked(self, folder: Path, order: PlanOrder) -> PlanOutcome:
        check = asyncio.create_task(self._workshop.do(folder, order))
        self._checks.add(check)
        try:
            if self._closed:
                check.cancel()
            return await check
        except asyncio.CancelledError:
            if not self._closed:
                raise
            raise Refusal(
                "ending", "the server ends; submit the job again when it is back"
            ) from None
        finally:
            self._checks.discard(check)


def _must_be_the_same(first: str, digest: str) -> None:
    """An empty one is of a job that was recorded before digests were."""
    if first and first != digest:
        raise Refusal(
            "conflict",
            f"another job was submitted with this {SUBMISSION_KEY}; each job has one of its own",
        )


def _records(
    id: str, spec: JobSpec, hashes: set[str], owner: str, name: str, role: str
) -> tuple[Job, Put, Put]:
    """What is kept of a job; of a large one this takes a while."""
    job = Job.of(id, spec, owner, name, role, 0.0)
    job.curves = curve_names(spec.recipe) if spec.recipe is not None else ()
    return job, Put("spec", id, write_spec(spec)), Put(HASHES, id, noted(hashes))


def _missing_text(missing: list[FileRef], wrong: list[FileRef]) -> str:
    listed = " ".join(file.sha256 for file in [*missing, *wrong][:_NAMED])
    text = f"not uploaded yet: {counted(len(missing), 'file')} of the job"
    if wrong:
        text += f"; of another size than the job says: {counted(len(wrong), 'file')}"
    return f"{text}: {listed}"
