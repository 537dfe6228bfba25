"""What the server shows, as tables and lines of a terminal: the dashboard without a browser.

Turns structures of `api/views.py` into things that `rich` prints. Knows no server: whoever has an
overview, from wherever, can have it drawn. In a pipe the same words come without colours and
without a limit of width; the variable NO_COLOR takes the colours away in any case.
"""

import sys
import time
from collections.abc import Iterable, Sequence
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ravnest.api.views import EventView, JobView, Overview, ProviderView, ServerView
from ravnest.planning.figures import count, passed, plain, quantity, size
from ravnest.session.showing import scores

WIDE = 400
"""Columns of an output that is no terminal: nothing is cut off there."""
STYLES = {
    **dict.fromkeys(("training", "running", "done"), "green"),
    **dict.fromkeys(("preparing", "ready", "planning", "fusing", "returning"), "cyan"),
    **dict.fromkeys(("paused", "resting", "stopping", "stopped", "waiting", "planned"), "yellow"),
    **dict.fromkeys(("away",), "dim"),
    **dict.fromkeys(("failed", "error"), "bold red"),
    "warning": "yellow",
}
EVENTS_SHOWN = 8


def console(file: TextIO | None = None) -> Console:
    file = file or sys.stdout
    width = None if file.isatty() else WIDE
    return Console(file=file, width=width, highlight=False, markup=False, emoji=False)


def overview(now: Overview, url: str, *, events: int = EVENTS_SHOWN) -> Group:
    """Everything that `ravnest status` shows; `url` is where it comes from: names of servers are
    often the same."""
    from ravnest.cli.pipelines import run_lines

    parts: list[RenderableType] = [server_line(now.server, url), Text("")]
    parts.append(Text("Pool", style="bold"))
    parts.append(
        provider_table(now.providers)
        if now.providers
        else Text("  nobody yet; `ravnest token make provider` makes a token to join with")
    )
    parts += [Text(""), Text("Jobs", style="bold")]
    parts.append(
        job_table(now.jobs, now.server.now)
        if now.jobs
        else Text("  none yet; submit one with `ravnest submit`")
    )
    names = {job.id: job.name for job in now.jobs}
    for run in now.runs:
        parts += [Text(""), *run_lines(run, names.get(run.job, ""), now.server.now)]
    if now.events and events:
        parts += [Text(""), Text("Events", style="bold")]
        parts += [event_line(event) for event in now.events[-events:]]
    return Group(*parts)


def server_line(server: ServerView, url: str) -> Text:
    text = Text(server.name, style="bold")
    text.append(f"  {url}", style="none")
    up = elapsed(server.now - server.started_at)
    here = f"{server.heard} of {quantity(server.providers, 'provider')} here"
    text.append(f"  ravnest {server.version}, up {up}; {here}", style="none")
    text.append(
        f", {size(server.memory_bytes)} offered and {plain(server.gflops)} GFLOP/s", style="none"
    )
    if server.relayed_bytes:
        now = f", now {size(server.relayed_bytes_per_s)}/s" if server.relayed_bytes_per_s else ""
        text.append(f"; relayed {size(server.relayed_bytes)}{now}", style="none")
    if server.no_sandbox:
        words = f"; looks at models without a sandbox: {server.no_sandbox}"
        text.append(words, style=STYLES["warning"])
    return text


def provider_table(providers: Sequence[ProviderView]) -> Table:
    names = ("", "id", "name", "state", "device", "memory", "speed", "up / down", "delay", "reach")
    table = _table((*names, "at work on"), right=("id", "delay"))
    for one in providers:
        table.add_row(
            "",
            str(one.id),
            one.name,
            state(one.state, one.doing),
            one.device_name or one.device,
            size(one.worker_limit_bytes),
            f"{plain(one.gflops)} GFLOP/s" if one.measured else "not measured yet",
            f"{plain(one.up_mbps)} / {plain(one.down_mbps)} Mbit/s" if one.measured else "",
            f"{plain(one.latency_ms)} ms" if one.measured else "",
            "direct" if one.reachable else "relay",
            "" if one.job is None else f"{one.job} cluster {one.cluster} stage {one.stage}",
        )
    return table


def job_table(jobs: Sequence[JobView], now: float) -> Group:
    table = _table(("", "id", "name", "state", "epoch", "loss", "score", "speed", "submitted"))
    for job in jobs:
        table.add_row(
            "",
            job.id,
            job.name,
            state(job.state),
            f"{passed(job.epoch)} / {job.epochs}",
            "" if job.loss is None else plain(job.loss, 4),
            scores(job.metrics),
            f"{plain(job.samples_per_second)} samples/s" if job.samples_per_second else "",
            f"{elapsed(now - job.submitted_at)} ago",
        )
    reasons = [Text(f"  {job.id}: {job.reason}", style="dim") for job in jobs if job.reason]
    return Group(table, *reasons)


def job_facts(job: JobView, now: float, speed: str = "") -> Table:
    """One job, a line for each thing that is known."""
    table = Table.grid(padding=(0, 2))
    rows: list[tuple[str, RenderableType]] = [
        ("job", f"{job.id}  {job.name}"),
        ("state", state(job.state)),
        ("because", job.reason),
        ("owner", job.owner),
        ("submitted", f"{clock(job.submitted_at)} ({elapsed(now - job.submitted_at)} ago)"),
        ("began", "" if job.began_at is None else clock(job.began_at)),
        ("ended", "" if job.ended_at is None else clock(job.ended_at)),
        ("run", str(job.run) if job.run else ""),
        ("epoch", f"{passed(job.epoch)} of {job.epochs}, step {job.step:,}"),
        ("loss", "" if job.loss is None else plain(job.loss, 4)),
        ("score", scores(job.metrics)),
        ("speed", speed),
        ("parameters", count(job.parameters) if job.parameters else ""),
        ("result", size(job.result_bytes) if job.result_bytes else ""),
    ]
    for name, value in rows:
        if value:
            table.add_row(Text(name, style="dim"), value)
    return table


def event_line(event: EventView) -> Text:
    text = Text(f"  {clock(event.at)}  ", style="dim")
    if event.level != "info":
        text.append(f"{event.level}: ", style=STYLES[event.level])
    where = "" if event.job is None else f"{event.job}: "
    text.append(where, style="dim")
    text.append(event.text, style="none")
    return text


def state(name: str, shown: str = "") -> Text:
    return Text(shown or name, style=STYLES.get(name, "none"))


def clock(at: float) -> str:
    """Of the day if it was today, with the date otherwise; this machine's time zone."""
    then, today = time.localtime(at), time.localtime()
    same = then[:3] == today[:3]
    return time.strftime("%H:%M:%S" if same else "%Y-%m-%d %H:%M", then)


def elapsed(seconds: float) -> str:
    """The two largest units: 3 h 12 min."""
    left = max(0, round(seconds))
    for length, name, lesser, lesser_name in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if left >= length:
            rest = left % length // lesser
            return f"{left // length} {name}" + (f" {rest} {lesser_name}" if rest else "")
    return f"{left} s"


def _table(names: Iterable[str], right: tuple[str, ...] = ()) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in names:
        table.add_column(
            name, justify="right" if name in right else "left", overflow="fold", no_wrap=False
        )
    return table
