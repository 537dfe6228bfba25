"""What lies where in the server's folder.

server.sqlite                      the records (unless they are in PostgreSQL)
authority/{ca,server}.{pem,key}    see authority.py
identity.json                      which records belong to this folder, see belonging.py
operator.token                     for whoever owns this server
last-provider                      the highest number of one, see service/numbers.py
blobs/<owner>/<sha256>             files by content, of each owner apart
jobs/<id>/model/…                  the model as it was handed in
jobs/<id>/runs/<n>/                a plan, its packages, the parts of the providers
jobs/<id>/runs/<n>/results/<id>/   what a provider has brought back
jobs/<id>/runs/<n>/held-out/       rows by which the server judges what was fused
jobs/<id>/result/                  the fused weights
jobs/<id>/retired/                 the result before, while the next one is put in its place
jobs/<id>/refused/                 the last fusion that was not good enough, and why
set-aside/<id>/                    what was brought back, and is not in the records
"""

import contextlib
import errno
import functools
import hashlib
import logging
import os
import secrets
import shutil
from collections.abc import Set
from pathlib import Path

from ravnest.errors import ServerError
from ravnest.removing import remove_whole
from ravnest.whole import write_whole

logger = logging.getLogger("ravnest.server")
FUSED = {"safetensors": "trained_state_dict.safetensors", "pt": "trained_state_dict.pt"}
"""The fused weights by their formats, as fusion calls them: that is a room with torch in it."""
HELD_OUT = "held-out"
"""In the folder of a run: rows by which the server judges what was fused."""
REFUSED = "refused"
"""In the folder of a job: the last fusion that did not become the result."""
FUSED_RUN = "run"
"""Beside them: the number of the run that they are of."""


@functools.lru_cache(4096)
def owner_key(role: str, name: str) -> str:
    """Whose files they are, as a folder is called. A successor of a token has those of the former:
    jobs belong to role and name."""
    return hashlib.sha256(f"{role}:{name}".encode()).hexdigest()[:24]


def blob_key(owner: str, sha256: str) -> str:
    """A file is its owner's alone. Whether others have the same one cannot be found out, and only
    those can use it who have uploaded all of it."""
    return f"{owner}/{sha256}"


class Folders:
    """Paths under one folder of a server."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.database = root / "server.sqlite"
        self.authority = root / "authority"
        self.identity = root / "identity.json"
        self.operator_token = root / "operator.token"
        self.last_provider = root / "last-provider"
        self.blobs = root / "blobs"
        self.jobs = root / "jobs"
        self.incoming = root / "incoming"
        """Files that are not complete yet; whatever is here when the server starts is refuse."""
        self.aside = root / "set-aside"

    def make(self) -> None:
        for folder in (self.root, self.authority, self.blobs, self.jobs, self.incoming):
            if folder.is_symlink() and not folder.exists():
                raise ServerError(
                    f"{folder} is a link to {folder.readlink()}, which is not there; mount it or "
                    "put it back, or give another folder (--data DIR)"
                )
            folder.mkdir(parents=True, exist_ok=True)
            _shut(folder)
        if self.aside.is_dir():
            _shut(self.aside)

    def empty_incoming(self) -> None:
        """Throw away what was not complete when the server ended."""
        for path in self.incoming.iterdir():  # it may be a link itself
            remove_whole(path)

    def must_be_one(self) -> None:
        """What has come is moved to its place, which no file system takes from another one. Also
        two places of the same one may be in the way (bind mounts), so it is tried."""
        for folder in (self.blobs, self.jobs):
            tried = self.fresh()
            try:
                tried.touch()
                tried.replace(folder / tried.name)
            except OSError as error:
                if error.errno == errno.EXDEV:
                    raise ServerError(
                        f"{folder} is on another file system than {self.incoming}, and files "
                        "cannot be moved there: mount or link all of the folder (--data), not "
                        "what is in it"
                    ) from error
                # A full disk, for one: that passes, and is told to whoever brings something.
            finally:
                for place in (tried, folder / tried.name):
                    place.unlink(missing_ok=True)

    def blob(self, key: str) -> Path:
        """Of a file that was handed in, by its `blob_key`."""
        return self.blobs / key

    def job(self, job: str) -> Path:
        return self.jobs / job

    def run(self, job: str, run: int) -> Path:
        return self.jobs / job / "runs" / str(run)

    def results(self, job: str, run: int, provider: int) -> Path:
        return self.run(job, run) / "results" / str(provider)

    def result(self, job: str) -> Path:
        return self.jobs / job / "result"

    def holds_results(self, job: str) -> bool:
        """Whether there is something of this job that only training can bring back."""
        found = [self.result(job), *self.job(job).glob("runs/*/results/*")]
        return any(path.is_file() for folder in found for path in folder.glob("*"))

    def set_aside(self, job: str) -> Path:
        """Out of the way, and never removed by the server; where it is now."""
        target = self._place_aside(job)
        self.job(job).rename(target)
        return target

    def _place_aside(self, job: str) -> Path:
        self.aside.mkdir(exist_ok=True, mode=0o700)
        target, number = self.aside / job, 1
        while target.exists():
            number += 1
            target = self.aside / f"{job}-{number}"
        return target

    def set_newer_aside(self, job: str, run: int, fused_run: int) -> Path | None:
        """What was trained after these runs, which are the last ones that the records know of,
        before others take its place; where it is now. Fused weights are in their own place too:
        those that the records know of are not there any more."""
        newer = [
            folder
            for folder in (self.job(job) / "runs").glob("*")
            if folder.name.isdigit() and int(folder.name) > run and any(folder.glob("results/*/*"))
        ]
        is_fused = self._fused_run(job, fused_run) > fused_run
        if not newer and not is_fused:
            return None
        target = self._place_aside(job)
        (target / "runs").mkdir(parents=True)
        if is_fused:
            result = self.result(job)
            shutil.copytree(result, target / "result", copy_function=link_or_copy)
            # From here on they are taken for what the records say, and not set aside again.
            write_whole(result / FUSED_RUN, str(fused_run).encode())
        for folder in newer:
            folder.rename(target / "runs" / folder.name)
        return target

    def _fused_run(self, job: str, known: int) -> int:
        """Of the weights that are there. Earlier releases did not note it: those are the ones that
        the records know of, if they know of any."""
        if not any(self.result(job).glob("*")):
            return 0
        try:
            return int((self.result(job) / FUSED_RUN).read_text())
        except (FileNotFoundError, ValueError):
            return max(known, 1)

    def remove_runs_before(self, job: str, run: int) -> None:
        """Their plans and what was brought back for them; `run` holds everything that is needed."""
        with contextlib.suppress(FileNotFoundError):
            for folder in (self.job(job) / "runs").iterdir():
                if folder.name.isdigit() and int(folder.name) < run:
                    remove_whole(folder)

    def remove_runs_except(self, job: str, kept: Set[int]) -> None:
        with contextlib.suppress(FileNotFoundError):
            for folder in (self.job(job) / "runs").iterdir():
                if folder.name.isdigit() and int(folder.name) not in kept:
                    remove_whole(folder)

    def own_bytes(self, job: str) -> int:
        """Of everything that was made for a job, and brought back. Its model is not, nor are rows
        to judge by: those were handed in, and are here by another name. A process that the end of
        the server has cut off may have left anything: no link is followed, and what cannot be
        looked at is an error in the log and none of the server."""
        top, sizes = self.job(job), dict[tuple[int, int], int]()
        handed_in = {top / "model", *(run / HELD_OUT for run in (top / "runs").glob("*"))}
        waiting, but = [str(top)], {str(path) for path in handed_in}
        while waiting:  # not by calls in calls: there may be more levels than Python nests them
            folder = waiting.pop()
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            waiting += [entry.path] if entry.path not in but else []
                            continue
                        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                            found = os.stat(entry.path, follow_symlinks=False)
                            sizes[found.st_dev, found.st_ino] = found.st_size
            except FileNotFoundError:
                pass
            except OSError as error:
                logger.error("something in %s is not counted: %s", top, error.strerror)
        return sum(sizes.values())

    def fresh(self) -> Path:
        """A name for a file that is being received."""
        return self.incoming / secrets.token_hex(8)


def _shut(folder: Path) -> None:
    """To everybody else on this machine, also where it is a link to a folder that others can enter:
    what a process leaves there belongs to the server's user, and could be marked to run as that."""
    try:
        folder.chmod(0o700)
    except OSError as error:  # it is somebody else's, or there are no modes on that disk
        logger.warning("others on this machine may be able to enter %s: %s", folder, error.strerror)


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """The same file by another name, in place of what has that name."""
    Path(target).unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
