"""What lies where while an assignment is worked on, and what is found there after a restart.

files/…                              see `keeping.py`
gone/…                               put away, to be removed
records/<assignment>/order.json      what the worker was told, written before it starts
                     server          for whom
                     ended.json      how it ended
                     worker.log      what it printed
undelivered/<assignment>/            results that the server did not want: the only ones there are
work/<assignment>/                   as the worker expects it

The worker may be a stranger's script. It writes to its folder under work/ what it likes, links and
pipes too, so of that folder nothing is believed, and no path in it is opened that it may have made.
Once a worker has been given its order, which is when there are records, nothing is prepared in that
folder again. Nor does anybody else on this machine get at it: what a script has made belongs to the
agent's owner, and would run as the owner if it is marked so.
"""

import contextlib
import stat
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ravnest.agent.identity import Identity
from ravnest.agent.results import most_bytes, results_in
from ravnest.api.limits import NOT_UNDERSTOOD
from ravnest.api.work import Assignment, WorkEnd, WorkOrder
from ravnest.client.known import write_private
from ravnest.errors import JobError
from ravnest.removing import move, remove

RESTARTED = "the agent was restarted while the worker was at work"
_MOST_UNDELIVERED = 8
_WITH_WORK = ("work", "records", "gone", "undelivered", "files")
_FIXED = {"node.json", "script.py"}
_UNDER = ("package/", "data/train/", "data/validation/")


@dataclass(frozen=True)
class AssignmentFolder:
    path: Path

    @property
    def records(self) -> Path:
        """What the agent keeps for itself; its worker does not see it if it is in a sandbox."""
        return self.path.parents[1] / "records" / self.path.name

    @property
    def log(self) -> Path:
        return self.records / "worker.log"

    @property
    def package(self) -> Path:
        return self.path / "package"

    def target(self, relative: str) -> Path:
        """Where a file of the assignment belongs; what does not belong anywhere is refused."""
        if relative not in _FIXED and not relative.startswith(_UNDER):
            raise JobError(f"the assignment has a file {relative!r}, which belongs nowhere")
        return self._place(relative)

    def _place(self, relative: str) -> Path:
        """Its folders are made. None of them may be a link, wherever that leads to."""
        place = self.path
        for part in relative.split("/")[:-1]:
            place = place / part
            place.mkdir(exist_ok=True, mode=0o700)
            if not stat.S_ISDIR(place.lstat().st_mode):
                raise OSError(f"{place} is a link")
        return self.path / relative

    @property
    def was_given(self) -> bool:
        """To a worker."""
        return self.records.exists()

    def begin(self, identity: Identity) -> None:
        if self.was_given:
            raise OSError(f"{self.path} was given to a worker before and cannot be put away")
        # One after the other: `parents` makes those above it open to others.
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path.mkdir(exist_ok=True, mode=0o700)
        for name, content in (
            ("ca.pem", identity.authority.pem.encode()),
            ("certificate.pem", identity.certificate_file.read_bytes()),
            ("key.pem", identity.key_file.read_bytes()),
        ):
            write_private(self._place(f"tls/{name}"), content)

    def place_document(self, assignment: Assignment) -> None:
        """The node document, with its package where it is on this machine."""
        try:
            document = msgspec.json.decode((self.path / "node.json").read_bytes())
        except (OSError, *NOT_UNDERSTOOD) as error:
            raise JobError(f"the node document cannot be read: {error}") from error
        if not isinstance(document, dict) or document.get("node_id") != assignment.provider:
            raise JobError("the node document is not that of this provider")
        document["template_path"] = self.package.resolve().as_posix()
        path = self._place(f"node_data/nodes/{assignment.node}.json")
        write_private(path, msgspec.json.encode(document))

    def give_order(self, order: WorkOrder, identity: Identity) -> None:
        write_private(self.records / "server", identity.folder.name.encode())
        for place in (self.records, self.path):
            write_private(place / "order.json", msgspec.json.encode(order))

    def record_end(self, end: WorkEnd) -> None:
        write_private(self.records / "ended.json", msgspec.json.encode(end))


@dataclass(frozen=True)
class WorkFolders:
    """All of them, under the agent's home."""

    home: Path

    @property
    def root(self) -> Path:
        return self.home / "work"

    @property
    def gone(self) -> Path:
        return self.home / "gone"

    def of(self, assignment: str) -> AssignmentFolder:
        return AssignmentFolder(self.root / assignment)

    def shut(self) -> None:
        """To everybody else on this machine, as the home that they are in may not be."""
        for name in _WITH_WORK:
            # Made here: whoever makes a folder in one of them first leaves it open. Where there
            # are no modes, nothing can be marked to run as somebody else either.
            with contextlib.suppress(OSError):
                (self.home / name).mkdir(exist_ok=True, mode=0o700)
                (self.home / name).chmod(0o700)

    def keep_log(self, assignment: str) -> Path | None:
        """Of a worker that failed; only the last one's is kept."""
        kept = self.home / "last-failed-worker.log"
        log = self.of(assignment).log
        with contextlib.suppress(OSError):
            log.chmod(0o600)  # the worker has held it, and may have made a program of it
            log.replace(kept)
            return kept
        return None

    def keep_results(self, assignment: str, most: int) -> Path | None:
        """Of a worker whose server does not want them: it may be wrong about that. They stay until
        their owner removes them or many others have come, which are put away. Nothing else of the
        package stays, nor more than `most` bytes. Not for the thread of the event loop."""
        kept = self.home / "undelivered" / assignment
        try:
            with results_in(self.of(assignment).package) as results:
                names = results.fitting(most)
                if not names:
                    return None
                self._move_away(kept)
                kept.mkdir(parents=True, mode=0o700)
                for name in names:
                    results.move(name, kept)
        except (OSError, JobError):
            return None
        with contextlib.suppress(OSError):
            older = sorted(kept.parent.iterdir(), key=lambda path: path.stat().st_mtime)
            for path in [path for path in older if path != kept][: 1 - _MOST_UNDELIVERED]:
                self._move_away(path)
        return kept

    def keep_others(self, identity: Identity) -> list[Path]:
        """Results that an earlier agent could not deliver to another server than this one's."""
        kept = []
        for folder in sorted(self.root.glob("*/")):
            left = _unfinished(self.of(folder.name).records)
            if left is not None and left.end.saved and not left.is_of(identity):
                kept.append(self.keep_results(folder.name, most_bytes(left.assignment)))
        return [path for path in kept if path is not None]

    def left_behind(self, identity: Identity) -> tuple[Assignment, WorkEnd] | None:
        """What an earlier agent did not finish and the server should hear of. The rest is put
        away, but for files that had been fetched: the assignment may come again."""
        found: list[tuple[float, _Left]] = []
        for folder in sorted(self.root.glob("*/")):
            records = self.of(folder.name).records
            left = _unfinished(records)
            if left is not None and left.is_of(identity):
                # Not that of the folder itself, which belongs to a script.
                found.append((records.stat().st_mtime, left))
            elif left is not None:
                self._try_to_put_away(folder.name)
        if not found:
            return None
        found.sort(key=lambda each: each[0])
        for _, older in found[:-1]:
            self._try_to_put_away(older.assignment.id)
        _, newest = found[-1]
        return newest.assignment, newest.end

    def settle(self, assignment: str) -> None:
        """Nobody need hear of it again, also if this agent ends before its folder is put away."""
        with contextlib.suppress(OSError):
            (self.of(assignment).records / "order.json").unlink()

    def put_away(self, assignment: str) -> None:
        """Out of the way at once, so that the same may come again; `empty` takes longer."""
        self._move_away(self.of(assignment).path)
        # Afterwards: as long as there are records, the folder is not used again.
        self._move_away(self.of(assignment).records)

    def _try_to_put_away(self, assignment: str) -> None:
        """What stays is in nobody's way, and is tried again before the next assignment."""
        with contextlib.suppress(OSError):
            self.put_away(assignment)

    def _move_away(self, folder: Path) -> None:
        self.gone.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileNotFoundError):
            move(folder, self.gone / uuid.uuid4().hex)

    def make_way(self, assignment: str, *, but: Collection[str] = ()) -> None:
        """Nothing is needed but what was fetched for that assignment, if no worker was given it
        yet. Somebody else sees to those in `but`."""
        for folder in [*self.root.glob("*/"), *(self.home / "records").glob("*/")]:
            if folder.name != assignment and folder.name not in but:
                self._try_to_put_away(folder.name)
        if self.of(assignment).was_given:
            self.put_away(assignment)

    def empty(self) -> None:
        """Remove what was put away. OSError if something is left, with all else removed. Not for
        the thread of the event loop."""
        problem: OSError | None = None
        with contextlib.suppress(FileNotFoundError):
            for folder in list(self.gone.iterdir()):
                try:
                    remove(folder)
                except OSError as error:
                    problem = error
        if problem is not None:
            raise problem


@dataclass(frozen=True)
class _Left:
    assignment: Assignment
    end: WorkEnd
    server: str
    """Empty if an earlier release has left it, which did not say for whom."""

    def is_of(self, identity: Identity) -> bool:
        """Servers number their providers alike."""
        is_from_there = self.server in ("", identity.folder.name)
        return is_from_there and self.assignment.provider == identity.provider


def _unfinished(records: Path) -> _Left | None:
    try:
        order = msgspec.json.decode((records / "order.json").read_bytes(), type=WorkOrder)
        server = _server_in(records)
    except (OSError, *NOT_UNDERSTOOD):
        return None
    try:
        end = msgspec.json.decode((records / "ended.json").read_bytes(), type=WorkEnd)
    except (OSError, *NOT_UNDERSTOOD):
        end = WorkEnd(outcome="failed", epochs_done=order.assignment.epochs_done, reason=RESTARTED)
    return _Left(order.assignment, end, server)


def _server_in(records: Path) -> str:
    try:
        return (records / "server").read_text()
    except FileNotFoundError:
        return ""
