"""A job on a server, as its requester holds it: ask, steer, follow, fetch."""

import logging
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ravnest.api.requests import JobAction
from ravnest.api.views import ENDED_JOBS, EventView, JobDetail, JobState, JobView, Series
from ravnest.client.http import HttpClient
from ravnest.client.stream import follow
from ravnest.client.transfers import download
from ravnest.errors import JobError
from ravnest.session.following import AT_WORK, JobUpdate, job_updates, within
from ravnest.session.showing import EVERY_S, shown_on, state_line

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("ravnest.session")

Action = Literal["start", "stop", "pause", "continue", "resume", "delete"]
_STAYS = "the job stays on the server: plan() waits for as long as it takes, delete() removes it"


class Job:
    """What is asked of it (`state`, `metrics`, …) is asked of the server every time."""

    def __init__(self, client: HttpClient, view: JobView) -> None:
        self._client = client
        self.id = view.id
        self.name = view.name

    def __repr__(self) -> str:
        return f"Job({self.id!r}, {self.name!r})"

    # ---- what is known ----

    def detail(self) -> JobDetail:
        """Everything: the job, its plan, the run that is at work."""
        return self._client.get(f"/jobs/{self.id}", JobDetail)

    @property
    def view(self) -> JobView:
        return self.detail().job

    @property
    def state(self) -> JobState:
        return self.view.state

    @property
    def metrics(self) -> dict[str, float]:
        """Of the last validation, by name."""
        return self.view.metrics

    def events(self) -> list[EventView]:
        """What has happened, oldest first, each with its reason."""
        return self._client.get(f"/jobs/{self.id}/events", list[EventView])

    def series(self) -> Series:
        """The curves so far: loss, scores."""
        return self._client.get(f"/jobs/{self.id}/series", Series)

    def plan(
        self,
        timeout_s: float | None = None,
        *,
        waiting: Callable[[str], object] | None = None,
    ) -> str:
        """The report: who does what, what it costs, whether it is worth it.

        Waits until there is one, for any time unless `timeout_s` is given: a pool may be busy for
        hours. What the job waits for ("waiting: 2 GB more are needed", "planning with 4 providers")
        is told to `waiting` at once, and whenever it changes; without one, it is logged.
        """
        self._wait_for_plan(timeout_s, waiting or self._log_waiting)
        return self._client.get_text(f"/jobs/{self.id}/plan")

    def _log_waiting(self, words: str) -> None:
        # As a warning, which a script shows that has set up no logging: it stands still.
        level = logging.WARNING if words.startswith("waiting") else logging.INFO
        logger.log(level, "job %s is %s", self.id, words)

    def _wait_for_plan(self, timeout_s: float | None, waiting: Callable[[str], object]) -> None:
        job: JobView | None = None
        told = ""
        for_s = math.inf if timeout_s is None else timeout_s
        stream = follow(self._client, "/stream", for_s=for_s)
        events = within(for_s, lambda: _wanted(self.id, job), stream, remedy=_STAYS)
        for update in job_updates(events, self.id):
            job = update.job
            if job.state in AT_WORK or job.state in {"planned", "done", "stopped"}:
                return
            if job.state == "failed":
                raise JobError(f"there is no plan for job {self.id}: {job.reason}")
            words = f"planning {job.reason}" if job.state == "planning" else state_line(job)
            if job.reason and words != told:
                waiting(words)
                told = words

    # ---- what can be done with it ----

    def start(self) -> None:
        """Begin a job that was submitted with start="asked"."""
        self.act("start")

    def pause(self) -> None:
        """Feed no batches until `go_on`; everything stays where it is."""
        self.act("pause")

    def go_on(self) -> None:
        """After `pause`."""
        self.act("continue")

    def stop(self) -> None:
        """Save and end in good order; what was learned can be fetched, or resumed."""
        self.act("stop")

    def resume(self) -> None:
        """After `pause` the run goes on; after `stop` (or a failure) a new run takes up the
        weights that the last one has left."""
        self.act("continue" if self.state == "paused" else "resume")

    def delete(self) -> None:
        """Take it off the server with everything that belongs to it."""
        self.act("delete")

    def act(self, action: Action) -> None:
        self._client.post(f"/jobs/{self.id}/action", JobAction(action=action), type(None))

    # ---- following ----

    def updates(self) -> Iterator[JobUpdate]:
        """Everything new about it as it happens, until it has ended."""
        return job_updates(follow(self._client, "/stream"), self.id)

    def follow(
        self,
        callback: Callable[[JobUpdate], object] | None = None,
        *,
        every_s: float = EVERY_S,
        quiet: bool = False,
    ) -> JobView:
        """Wait for the end, and show how it goes: a bar in a terminal, lines elsewhere.

        `callback` gets every update instead. Interrupting this interrupts nothing but the watching.
        Returns the job as it ended: "done", "stopped" or "failed".
        """
        last: JobView | None = None
        if callback is not None or quiet:
            for update in self.updates():
                last = update.job
                if callback is not None:
                    callback(update)
        else:
            with shown_on(every_s=every_s) as screen:
                for update in self.updates():
                    last = update.job
                    screen.show(update)
        if last is None or last.state not in ENDED_JOBS:
            raise JobError(f"job {self.id} is not followed any more: the session was closed")
        return last

    # ---- the result ----

    def fetch(self, path: str | Path, progress: Callable[[int], None] | None = None) -> Path:
        """The trained weights as a safetensors file."""
        target = Path(path)
        download(
            self._client,
            f"/jobs/{self.id}/result",
            target,
            format="safetensors",
            progress=progress,
        )
        return target

    def result(self) -> "dict[str, torch.Tensor]":
        """The trained weights: a state_dict that loads into the model."""
        from safetensors.torch import load_file

        with tempfile.TemporaryDirectory(prefix="ravnest-result-") as folder:
            return load_file(self.fetch(Path(folder) / "result.safetensors"))

    def save(self, path: str | Path) -> Path:
        """The trained weights as a file: safetensors by that ending, else for `torch.load`."""
        target = Path(path)
        if target.suffix == ".safetensors":
            return self.fetch(target)
        import torch

        state: dict[str, Any] = self.result()
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f"{target.name}.new")
        torch.save(state, fresh)
        fresh.replace(target)
        return target


def _wanted(job_id: str, job: JobView | None) -> str:
    why = "" if job is None else f" ({job.state}: {job.reason})"
    return f"a plan for job {job_id}{why}"
