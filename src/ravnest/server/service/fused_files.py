"""The files around a fusion, which the process that fuses may read and not change: the server lays
them out for it, and moves what it has made into place.

By names and links within one file system: weights are not copied. Whatever happens meanwhile, there
is the last good result or the new one, and it is on disk before it is believed.
"""

import re
from pathlib import Path

import msgspec

from ravnest.api.machine import provider_name
from ravnest.removing import remove_whole
from ravnest.server.folders import FUSED, FUSED_RUN, HELD_OUT, REFUSED, link_or_copy
from ravnest.server.planjob.outcome import FRESH, ORDER, PlanOrder, PlanOutcome
from ravnest.server.state.fusing import why_refused
from ravnest.server.state.records import Validation
from ravnest.whole import read_at_most, sync_files, sync_folder, write_whole

_RETIRED = "retired"
"""Beside the result: the one before it, until the new one is in its place."""
_HASHES = tuple(f"{name}.sha256" for name in FUSED.values())
_HASH = re.compile(rb"[0-9a-f]{64}")


def lay_out(order: PlanOrder) -> None:
    """What providers have brought back, beside the packages that they were given."""
    result = Path(order.output)
    retired = result.with_name(_RETIRED)
    if retired.is_dir() and not result.is_dir():  # the server ended between two moves
        retired.rename(result)
    for results in sorted(Path(order.results).iterdir()):
        if not results.name.isdecimal() or not results.is_dir():
            continue  # nothing that a provider has brought back
        provider = provider_name(int(results.name))
        for package in Path(order.model).glob(f"cluster_*/{provider}:1"):
            for file in results.iterdir():
                link_or_copy(file, package / file.name)


def readable(order: PlanOrder) -> list[Path]:
    """What fusing needs: the plan with what was trained, the rows to judge it by, the model, and
    the last good result. All of it read-only, as other jobs may have the same files."""
    run, job = Path(order.model).parent, Path(order.output).parent
    wanted = (run / ORDER, Path(order.model), run / HELD_OUT, job / "model", Path(order.output))
    return [path for path in wanted if path.exists()]


def put_in_place(folder: Path, order: PlanOrder, outcome: PlanOutcome) -> PlanOutcome:
    """What a fusion has left in its folder, as the result of its job, or as what was refused."""
    fresh, result = folder / FRESH, Path(order.output)
    if not _is_fused(fresh):
        remove_whole(fresh)
        return PlanOutcome(error="it left no fused weights behind")
    found = outcome.validation or Validation(note="it was not judged")
    if reason := why_refused(found):
        # Kept as evidence, instead of the one that was refused before it.
        (fresh / FUSED["pt"]).unlink()
        write_whole(fresh / "validation.json", msgspec.json.encode(found))
        remove_whole(result.with_name(REFUSED))
        fresh.rename(result.with_name(REFUSED))
        return PlanOutcome(error=reason, validation=found)
    size = (fresh / FUSED["safetensors"]).stat().st_size
    write_whole(fresh / FUSED_RUN, str(order.run).encode())
    # The server records that the job has a result as soon as this has ended.
    sync_files(fresh)
    retired = result.with_name(_RETIRED)
    remove_whole(retired)
    if result.is_dir():
        result.rename(retired)
    fresh.rename(result)
    sync_folder(result.parent)
    remove_whole(retired)
    return msgspec.structs.replace(outcome, result_bytes=size)


def _is_fused(fresh: Path) -> bool:
    """All files of a fusion and no others. That they are files is known already; their hashes are
    told to those who download them."""
    if not fresh.is_dir() or {path.name for path in fresh.iterdir()} != {*FUSED.values(), *_HASHES}:
        return False
    files = all((fresh / name).is_file() for name in FUSED.values())
    return files and all(_is_hash(fresh / name) for name in _HASHES)


def _is_hash(path: Path) -> bool:
    try:
        return _HASH.fullmatch(read_at_most(path, 64)) is not None
    except OSError:
        return False
