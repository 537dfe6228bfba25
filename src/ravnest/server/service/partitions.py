"""After planning: the server writes what each provider is assigned. Every provider gets the rows of
its own cluster, and no others.

The shards of a dataset are cut where its requester has cut them. The border between two clusters
lies somewhere inside one: of such a shard each side gets a file with its own rows, which is kept in
the folder of the run. Shards that lie within a cluster are handed out as they were handed in.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec

from ravnest.api.jobs import DataSpec, JobSpec, ShardSpec
from ravnest.api.limits import FileRef
from ravnest.api.work import Assignment, DataPart, RowRange
from ravnest.data.dividing import held_out_part
from ravnest.data.slicing import row_bytes, slice_rows
from ravnest.removing import remove_whole
from ravnest.server.folders import HELD_OUT, link_or_copy
from ravnest.server.planjob.assigning import assignments, must_fit
from ravnest.server.planjob.outcome import (
    MADE,
    NODE_DATA,
    ORDER,
    OUTCOME,
    PARTS,
    PLACES,
    PlanOrder,
    PlanOutcome,
    left_files,
)
from ravnest.server.room import leave_room
from ravnest.whole import make_folder, sync_files, write_whole

_ROWS = "rows"


_LEFT = frozenset({ORDER, OUTCOME, NODE_DATA, MADE})


def take_over(
    folder: Path,
    order: PlanOrder,
    outcome: PlanOutcome,
    blob: Callable[[str], Path],
    spare_bytes: int,
) -> None:
    """What planning has left in the folder of a run, as assignments. `blob` is where a file that
    was handed in lies. A `JobError` if it is no plan for this order, or a shard is not what the
    job says; an `OSError` if there is no room. Waits for the disk."""
    for path in folder.iterdir():
        if path.name not in _LEFT:  # the server keeps rows, assignments and results here
            remove_whole(path)
    made = left_files(folder, order)
    must_fit(order, outcome, made)
    places = {each.file.sha256: each.place for files in made.values() for each in files}
    cutter = _Cutter(folder, blob, spare_bytes, places)
    make_folder(folder / PARTS)
    for assignment in assignments(order, outcome, made):
        cut = cutter.cut(assignment)
        write_whole(folder / PARTS / f"{cut.provider}.json", msgspec.json.encode(cut))
    if (folder / _ROWS).is_dir():
        sync_files(folder / _ROWS)
    write_whole(folder / PLACES, msgspec.json.encode(places))
    assert order.spec is not None
    link_held_out(folder, order.spec, blob)


def link_held_out(folder: Path, spec: JobSpec, blob: Callable[[str], Path]) -> None:
    """Into the folder of a run: whatever judges its weights sees no other folder."""
    part = held_out_part(spec)
    for shard in part.data.shards if part is not None else ():
        for file in shard.files:
            target = folder / HELD_OUT / file.path
            make_folder(target.parent)
            link_or_copy(blob(file.sha256), target)


class _Cutter:
    def __init__(
        self, folder: Path, blob: Callable[[str], Path], spare_bytes: int, places: dict[str, str]
    ) -> None:
        self._folder, self._blob, self._spare_bytes = folder, blob, spare_bytes
        self._made: dict[tuple[str, int, int], FileRef] = {}
        """Shard, first row, number of rows → what was made of it: Root and Leaf may share it."""
        self._places = places
        """Gets the files that are new."""

    def cut(self, planned: Assignment) -> Assignment:
        files = {file.path: file for file in planned.files}
        train, validation = (
            self._own_rows(part, files) for part in (planned.train, planned.validation)
        )
        return msgspec.structs.replace(
            planned, files=tuple(files.values()), train=train, validation=validation
        )

    def _own_rows(self, part: DataPart | None, files: dict[str, FileRef]) -> DataPart | None:
        """The part with the rows of its range alone; `files` gets those that are new."""
        if part is None:
            return None
        begin, shards = -part.range.first, []
        for shard in part.data.shards:
            wanted = range(max(0, -begin), min(shard.rows, part.range.rows - begin))
            begin += shard.rows
            if len(wanted) < shard.rows:
                shard = self._cut_shard(part.data, shard, wanted)
                files |= {file.path: file for file in shard.files}
            shards.append(shard)
        return DataPart(
            data=DataSpec(fields=part.data.fields, shards=tuple(shards)),
            range=RowRange(first=0, rows=part.range.rows),
        )

    def _cut_shard(self, data: DataSpec, shard: ShardSpec, wanted: range) -> ShardSpec:
        make_folder(self._folder / _ROWS)
        files = []
        for column, file in zip(data.fields, shard.files, strict=True):
            key = file.sha256, wanted.start, len(wanted)
            if key not in self._made:
                leave_room(self._folder, len(wanted) * row_bytes(column), self._spare_bytes)
                name = f"{_ROWS}/{len(self._made)}.safetensors"
                self._made[key] = slice_rows(
                    *(self._blob(file.sha256), self._folder / name, file, column),
                    *(shard.rows, wanted),
                )
                self._places[self._made[key].sha256] = name
            files.append(msgspec.structs.replace(self._made[key], path=file.path))
        return ShardSpec(rows=len(wanted), files=tuple(files))
