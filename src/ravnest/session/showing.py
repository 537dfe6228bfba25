"""A job that is followed, shown to a person: a line now and then, or a bar in a terminal."""

import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Protocol, TextIO

from ravnest.api.views import ENDED_JOBS, EventView, JobView
from ravnest.planning.figures import passed, plain
from ravnest.session.following import JobUpdate

EVERY_S = 5.0


class Shows(Protocol):
    def __enter__(self) -> "Shows": ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def show(self, update: JobUpdate) -> None: ...


def shown_on(file: TextIO | None = None, every_s: float = EVERY_S) -> Shows:
    """The bar where a person watches, lines for a file or a pipe."""
    file = file or sys.stdout
    return Bar(file) if file.isatty() else Lines(file, every_s)


def progress_line(job: JobView) -> str:
    """Where it stands, in one line."""
    parts = [f"epoch {passed(job.epoch)} of {job.epochs}", f"step {job.step:,}"]
    if job.loss is not None:
        parts.append(f"loss {plain(job.loss, 4)}")
    if job.samples_per_second:
        parts.append(f"{plain(job.samples_per_second)} samples/s")
    line = ", ".join(parts)
    return f"{line}; validation: {scores(job.metrics)}" if job.metrics else line


def scores(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {plain(value, 4)}" for name, value in sorted(metrics.items()))


def state_line(job: JobView) -> str:
    return f"{job.state}: {job.reason}" if job.reason else job.state


def event_text(event: EventView) -> str:
    return event.text if event.level == "info" else f"{event.level}: {event.text}"


class Lines:
    """A line for every event and change of state; in between one per interval, if it is news."""

    def __init__(
        self,
        file: TextIO,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file, self._every_s, self._clock = file, every_s, clock
        self._state: tuple[str, str] | None = None
        self._last, self._said_at = "", -every_s

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, update: JobUpdate) -> None:
        for event in update.events:
            self._say(event_text(event), event.at)
        job = update.job
        if (job.state, job.reason) != self._state:
            self._state = job.state, job.reason
            self._say(state_line(job))
            self._said_at = -self._every_s
        line, now = progress_line(job), self._clock()
        due = now - self._said_at >= self._every_s or job.state in ENDED_JOBS
        if job.step and line != self._last and due:
            self._last, self._said_at = line, now
            self._say(line)

    def _say(self, text: str, at: float | None = None) -> None:
        stamp = time.strftime("%H:%M:%S", time.localtime(at))
        print(f"{stamp}  {text}", file=self._file, flush=True)


class Bar:
    """A bar that fills with the epochs, below the events."""

    def __init__(self, file: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = Console(file=file, highlight=False, markup=False, emoji=False)
        self._progress = Progress(
            TextColumn("{task.fields[state]}", markup=False),
            BarColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            console=self._console,
            auto_refresh=False,
        )
        self._task = self._progress.add_task("", total=1.0, state="")
        self._state: tuple[str, str] | None = None

    def __enter__(self) -> "Bar":
        try:
            self._progress.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._progress.stop()
        finally:
            self._console.show_cursor(True)  # also if an interrupt comes meanwhile

    def show(self, update: JobUpdate) -> None:
        job = update.job
        for event in update.events:
            stamp = time.strftime("%H:%M:%S", time.localtime(event.at))
            self._console.print(f"{stamp}  {event_text(event)}")
        if (job.state, job.reason) != self._state and job.reason:
            self._console.print(state_line(job))
        self._state = job.state, job.reason
        self._progress.update(
            self._task,
            total=float(job.epochs),
            completed=min(job.epoch, float(job.epochs)),
            description=progress_line(job) if job.step else "",
            state=job.state,
            refresh=True,
        )
