"""Where everything lies on disk, and how it gets there without ever losing what was there.

    node_data/
      node_configs.json              the pool, written by the user
      plan.json  model.json          the plan; the names in the model's state_dict
      nodes/node_<id>.json           what each provider needs to know
      cluster_<cid>/<address>/       its stage package, later its trained weights
      archive/<n>/                   earlier plans that have trained weights
    trained/trained_state_dict.pt    the fused model

A new plan is written completely beside the old one and then put in its place by renaming. The
renames are many, so the list of them is written down first: if the process dies among them, the
next one to come along finishes them (`settle`). One process at a time may do so.
"""

import contextlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from ravnest.errors import RunDirError
from ravnest.locks import only_one

PLAN_PARTS = ("plan.json", "model.json", "nodes")
TRAINED_MARK = "trained.json"
_FRESH, _RETIRED = ".new-", ".old-"
_CLUSTER = re.compile(r"cluster_\d+")


class StateEntry(msgspec.Struct, frozen=True):
    """One key of the model's state_dict and the tensor it shows; tied keys show the same one."""

    key: str
    tensor: str


class ModelIndex(msgspec.Struct, frozen=True, kw_only=True):
    """What fusion needs to know to rebuild the state_dict of the original model."""

    plan_id: str
    state: tuple[StateEntry, ...]
    versions: dict[str, int] = {}
    """Module path → version of its state_dict format, which some modules ask for when loading."""


def file_of_cluster(name: Path | str, cluster: int) -> Path:
    """Every cluster has a Root and a Leaf that write files, and they may share a folder."""
    path = Path(name)
    return path if cluster == 0 else path.with_stem(f"{path.stem}_cluster_{cluster}")


class RunDir:
    """Paths under one `node_data` folder."""

    def __init__(self, root: Path | str = "node_data") -> None:
        self.root = Path(root)

    @property
    def pool_file(self) -> Path:
        return self.root / "node_configs.json"

    @property
    def plan_file(self) -> Path:
        return self.root / "plan.json"

    @property
    def model_file(self) -> Path:
        return self.root / "model.json"

    def node_file(self, provider_id: int) -> Path:
        return self.root / "nodes" / f"node_{provider_id}.json"

    def cluster_dir(self, cluster_id: int) -> Path:
        return self.root / f"cluster_{cluster_id}"

    def package_dir(self, cluster_id: int, address: str) -> Path:
        return self.cluster_dir(cluster_id) / address_folder(address)

    def replace_plan(self, write: Callable[["RunDir"], None]) -> Path | None:
        """Let `write` fill a fresh folder, then swap it in; if it fails nothing has changed.

        An earlier plan that holds trained weights is moved to the archive, whose path is returned.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        with self._locked():
            self._finish_swap()
            fresh = self._folder_beside(_FRESH)
            try:
                write(RunDir(fresh))
                return self._swap_in(fresh)
            finally:
                if not self._journal.exists():  # else it is needed to finish the swap
                    shutil.rmtree(fresh, ignore_errors=True)

    def settle(self) -> None:
        """Finish what a process that died while replacing the plan has left half done."""
        if self._journal.exists():
            with self._locked():
                self._finish_swap()

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        return only_one(
            self.root / ".lock",
            otherwise=RunDirError(
                f"another process is writing a plan into {self.root} right now; "
                "wait for it, or give each plan a folder of its own (node_data=…)"
            ),
        )

    @property
    def _journal(self) -> Path:
        return self.root / ".swap.json"

    def _swap_in(self, fresh: Path) -> Path | None:
        """The old plan out, the new one in; a move that fails takes back those before it."""
        old = self._current_parts()
        keep = any(part.is_dir() and any(part.rglob(TRAINED_MARK)) for part in old)
        retired = self._next_archive() if keep else self._folder_beside(_RETIRED)
        moves = [(part, retired / part.name) for part in old]
        # plan.json comes last: whoever sees the new one finds everything else in place.
        new = sorted(fresh.iterdir(), key=lambda part: part.name == PLAN_PARTS[0])
        moves += [(part, self.root / part.name) for part in new]
        try:
            self._write_journal(moves)
            for source, target in moves:
                os.replace(source, target)
        except BaseException:
            self._take_back(moves)
            retired.rmdir()
            with contextlib.suppress(OSError):  # not empty, or in use
                self._archive.rmdir()
            raise
        self._journal.unlink()
        if keep:
            return retired
        shutil.rmtree(retired, ignore_errors=True)
        return None

    def _take_back(self, moves: list[tuple[Path, Path]]) -> None:
        """Undo whichever of these moves were made, judged by what lies where."""
        for source, target in reversed(moves):
            if target.exists() and not source.exists():
                os.replace(target, source)
        self._journal.unlink(missing_ok=True)

    def _write_journal(self, moves: list[tuple[Path, Path]]) -> None:
        relative = [
            (str(source.relative_to(self.root)), str(target.relative_to(self.root)))
            for source, target in moves
        ]
        draft = self._journal.with_suffix(".draft")
        draft.write_bytes(msgspec.json.encode(relative))
        os.replace(draft, self._journal)

    def _finish_swap(self) -> None:
        """Make the moves of a swap that was cut off, and clear away what dead processes left."""
        if self._journal.exists():
            moves = msgspec.json.decode(self._journal.read_bytes(), type=list[tuple[str, str]])
            for source, target in moves:
                # A move that was made has its target; what is not there was never to be moved.
                if (self.root / source).exists() and not (self.root / target).exists():
                    os.replace(self.root / source, self.root / target)
            self._journal.unlink()
        for prefix in (_FRESH, _RETIRED):
            for leftover in self.root.glob(f"{prefix}*"):
                shutil.rmtree(leftover, ignore_errors=True)

    def _current_parts(self) -> list[Path]:
        """What the plan in place consists of; plan.json first."""
        parts = [self.root / part for part in PLAN_PARTS if (self.root / part).exists()]
        clusters = [path for path in self.root.glob("cluster_*") if _CLUSTER.fullmatch(path.name)]
        return parts + sorted(path for path in clusters if path.is_dir())

    def _folder_beside(self, prefix: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=prefix, dir=self.root))

    @property
    def _archive(self) -> Path:
        return self.root / "archive"

    def _next_archive(self) -> Path:
        self._archive.mkdir(exist_ok=True)
        taken = [int(path.name) for path in self._archive.iterdir() if path.name.isdigit()]
        target = self._archive / f"{max(taken, default=0) + 1:03d}"
        target.mkdir()
        return target


def address_folder(address: str) -> str:
    """The folder of a provider: its address, written so that the file system accepts it."""
    return address.replace(":", "_") if sys.platform == "win32" else address
