"""The files of runs: what planning has made for each provider, and what providers bring back."""

import contextlib
import re
from collections import OrderedDict
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import msgspec

from ravnest.api.control import Assign
from ravnest.api.limits import NOT_UNDERSTOOD, FileRef
from ravnest.api.work import Assignment
from ravnest.server.folders import Folders, blob_key, owner_key
from ravnest.server.planjob.outcome import (
    MOST_LEFT_BYTES,
    OUTCOME,
    PARTS,
    PLACES,
    PlanOutcome,
)
from ravnest.server.service.files import Files, hash_of
from ravnest.server.service.problems import Refusal
from ravnest.server.state.introducing import addresses_for
from ravnest.server.state.records import Part
from ravnest.server.state.world import World
from ravnest.whole import read_at_most

_RESULT = re.compile(r"trained\.json|trained-[0-9a-f]{16}\.safetensors")
_KNOWN = 512
_WRITTEN = 64
_BROUGHT = 20_000
_MOST_RESULTS = 16
_LEAST_RESULT_BYTES = 1 << 20


class RunFiles:
    def __init__(self, folders: Folders, files: Files, world: World) -> None:
        self._folders = folders
        self._files = files
        self._world = world
        self._places: OrderedDict[str, dict[str, Path]] = OrderedDict()
        self._outcomes: OrderedDict[tuple[str, int], PlanOutcome] = OrderedDict()
        self._written: OrderedDict[str, tuple[dict[int, tuple[str, ...]], str]] = OrderedDict()
        """Assignments as they were told last, and the addresses that are in them."""
        self._coming: dict[str, list[int]] = {}
        """Sizes of results that are on their way, by assignment."""
        self._brought: OrderedDict[tuple[str, str], tuple[str, int]] = OrderedDict()
        """Assignment and name of a result → hash and size, as they were checked on arrival."""

    # ---- what a plan says

    def outcome(self, job: str, run: int) -> PlanOutcome | None:
        """Of the planning of a run, if it is there. Small, and read once."""
        if (job, run) not in self._outcomes:
            try:
                path = self._folders.run(job, run) / OUTCOME
                content = read_at_most(path, MOST_LEFT_BYTES)
                found = msgspec.json.decode(content, type=PlanOutcome)
            except (OSError, *NOT_UNDERSTOOD):
                return None
            self._outcomes[job, run] = found
            if len(self._outcomes) > _KNOWN:
                self._outcomes.popitem(last=False)
        return self._outcomes[job, run]

    def forget(self, job: str, run: int | None = None) -> None:
        """What was known of a run that is planned anew, or of a job that is gone."""
        for key in [key for key in self._outcomes if key[0] == job and run in (None, key[1])]:
            del self._outcomes[key]
        begin = f"{job}-" if run is None else f"{job}-{run}-"
        for part in [part for part in self._places if part.startswith(begin)]:
            del self._places[part]
        for part in [part for part in self._written if part.startswith(begin)]:
            del self._written[part]
        for brought in [one for one in self._brought if one[0].startswith(begin)]:
            del self._brought[brought]

    # ---- what a provider gets

    def _assignment(self, part: Part) -> Assignment:
        """As it was planned."""
        path = self._folders.run(part.job, part.run) / PARTS / f"{part.provider}.json"
        return msgspec.json.decode(read_at_most(path, MOST_LEFT_BYTES), type=Assignment)

    async def written_assignment(self, part: Part) -> str:
        """The message as it is sent, with the addresses at which its neighbours may be reached now.
        Agents that come back again and again get the same text."""
        known = self._written.get(part.id)
        me = part.provider
        if known is not None and all(self._addresses(me, n) == known[0][n] for n in known[0]):
            self._written.move_to_end(part.id)
            return known[1]
        planned = await self._files.off_loop(self._assignment, part)
        addresses = {n.provider: self._addresses(me, n.provider) for n in planned.neighbours}
        neighbours = tuple(
            msgspec.structs.replace(neighbour, addresses=addresses[neighbour.provider])
            for neighbour in planned.neighbours
        )
        message = Assign(assignment=msgspec.structs.replace(planned, neighbours=neighbours))
        text = msgspec.json.encode(message).decode()
        self._written[part.id] = (addresses, text)
        self._written.move_to_end(part.id)
        if len(self._written) > _WRITTEN:
            self._written.popitem(last=False)
        return text

    def _addresses(self, dialler: int, target: int) -> tuple[str, ...]:
        return addresses_for(self._world, dialler, target)

    async def file(self, part: Part, sha256: str) -> Path:
        places = self._places.get(part.id)
        if places is None:
            places = await self._files.off_loop(self._read_places, part)
            self._places[part.id] = places
            if len(self._places) > _KNOWN:
                self._places.popitem(last=False)
        if sha256 not in places:
            raise Refusal("not_found", "this file is not part of the assignment")
        return places[sha256]

    def _read_places(self, part: Part) -> dict[str, Path]:
        """Every file of an assignment: from the run's own folder, or from those handed in."""
        folder = self._folders.run(part.job, part.run).resolve()
        content = read_at_most(folder / PLACES, MOST_LEFT_BYTES)
        made = msgspec.json.decode(content, type=dict[str, str])
        assignment, job = self._assignment(part), self._world.jobs[part.job]
        owner = owner_key(job.owner_role, job.owner_name)
        return {
            file.sha256: _inside(folder, made[file.sha256])
            if file.sha256 in made
            else self._folders.blob(blob_key(owner, file.sha256))
            for file in assignment.files
        }

    # ---- what a provider brings back

    async def receive(
        self, part: Part, name: str, sha256: str, size: int | None, body: AsyncIterator[bytes]
    ) -> None:
        """A result; all those of an assignment together have a bound."""
        if _RESULT.fullmatch(name) is None:
            raise Refusal("invalid", f"{name[:80]!r} is not the name of a result")
        most = await self._files.off_loop(self._most_of, part)
        folder = self._folders.results(part.job, part.run, part.provider)
        # Not on a thread: from here until it is counted among those that come nothing may happen.
        here = _sizes(folder)
        here.pop(name, None)
        coming = self._coming.get(part.id, [])
        room = most - sum(here.values()) - sum(coming)
        if len(here) + len(coming) >= _MOST_RESULTS or room <= 0:
            raise Refusal("too_large", "more results than an assignment has")
        self._coming[part.id] = coming
        coming.append(room if size is None else size)

        def still_wanted() -> None:
            if not part.is_open:
                raise Refusal("conflict", "this assignment is over; nothing is expected of it")

        try:
            received = await self._files.receive_result(
                part.job,
                folder / name,
                sha256,
                size,
                room,
                body,
                has_share=self._world.jobs[part.job].owner_role != "operator",
                before_it_is_kept=still_wanted,
            )
        finally:
            coming.remove(room if size is None else size)
            if not coming:
                self._coming.pop(part.id, None)
        self._brought[part.id, name] = (sha256, received)
        if len(self._brought) > _BROUGHT:
            self._brought.popitem(last=False)

    def _most_of(self, part: Part) -> int:
        assignment = self._assignment(part)
        package = sum(f.size for f in assignment.files if f.path.startswith("package/"))
        return 2 * max(package, 8 * part.parameters) + _LEAST_RESULT_BYTES

    async def whole(self, part: Part, results: tuple[FileRef, ...]) -> tuple[FileRef, ...]:
        """Those of the files that are here and are what the provider says. Others are removed, if
        it is now that the assignment ends."""
        found = tuple([file for file in results if await self._is_whole(part, file)])
        if part.is_open:
            folder = self._folders.results(part.job, part.run, part.provider)
            keep = partial(_keep_only, folder, {file.path for file in found})
            await self._files.off_loop(self._files.change_job, part.job, keep)
        return found

    async def _is_whole(self, part: Part, file: FileRef) -> bool:
        if _RESULT.fullmatch(file.path) is None:
            return False
        path = self._folders.results(part.job, part.run, part.provider) / file.path
        known = self._brought.get((part.id, file.path))
        try:
            if known is None:  # it came before the server was restarted, or long ago
                size = path.stat().st_size
                known = (await self._files.off_loop(hash_of, path), size)
        except OSError:
            return False
        return known == (file.sha256, file.size)

    def settled(self, part: Part) -> None:
        for key in [key for key in self._brought if key[0] == part.id]:
            del self._brought[key]


def _inside(folder: Path, name: str) -> Path:
    """A file that planning has made. A foreign model was at work in that process: what it names
    may be a link, or lie elsewhere, and would be handed to a provider."""
    path, root = (folder / name).resolve(), folder.resolve()
    if not path.is_relative_to(root) or path != root / name:
        raise Refusal("not_found", "this file is not in the folder of its run")
    return path


def _sizes(folder: Path) -> dict[str, int]:
    with contextlib.suppress(FileNotFoundError):
        return {path.name: path.stat().st_size for path in folder.iterdir()}
    return {}


def _keep_only(folder: Path, names: set[str]) -> int:
    """How many bytes more there are: none, or fewer."""
    others = {name: size for name, size in _sizes(folder).items() if name not in names}
    for name in others:
        (folder / name).unlink(missing_ok=True)
    return -sum(others.values())
