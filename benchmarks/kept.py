"""Long work in several goes: what each job comes to is kept as JSON in a folder."""

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar


class Job(Protocol):
    @property
    def file(self) -> str: ...

    @property
    def cost(self) -> float: ...


J = TypeVar("J", bound=Job)
Outcome = dict[str, Any]


def results(
    jobs: Sequence[J],
    do: Callable[[J], Outcome],
    folder: Path,
    within_s: float,
    processes: int = 2,
) -> dict[J, Outcome]:
    """Of all jobs that are done, by now or earlier. The longest come first; none is begun after
    that many seconds."""
    ends = time.monotonic() + within_s
    folder.mkdir(exist_ok=True)
    missing = sorted(
        (job for job in jobs if not (folder / job.file).exists()), key=lambda job: -job.cost
    )
    with ProcessPoolExecutor(processes) as pool:
        for job in [pool.submit(_do_one, job, do, folder / job.file, ends) for job in missing]:
            job.result()
    there = [job for job in jobs if (folder / job.file).exists()]
    return {job: json.loads((folder / job.file).read_text()) for job in there}


def _do_one(job: J, do: Callable[[J], Outcome], path: Path, ends: float) -> None:
    began = time.monotonic()
    if began >= ends:
        return
    found = do(job)
    unfinished = path.with_suffix(".new")
    unfinished.write_text(json.dumps(found))
    unfinished.replace(path)
    print(f"{path.stem}: {time.monotonic() - began:.0f} s", flush=True)
