"""`ravnest job`: jobs on a server, listed, shown, steered, followed, fetched."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ravnest.cli import EXIT_FAILED
from ravnest.cli.asking import confirm
from ravnest.cli.serverside import json_option, print_json, server_options, session_of

if TYPE_CHECKING:
    from ravnest.session import Job

id_argument = click.argument("job_id", required=False, metavar="[ID]")


@click.group("job")
def command() -> None:
    """List, show, steer, follow and fetch jobs.

    ID is the id of a job or the beginning of it; without one, the last job that you have submitted
    is meant (with a token that can submit none, the last of all); every command says which.
    """


@command.command("list")
@server_options
@json_option
def list_jobs(server: str | None, token: str | None, insecure: bool, as_json: bool) -> None:
    """Show all jobs."""
    with session_of(server, token, insecure) as session:
        now = session.overview()
    if as_json:
        print_json(now.jobs)
        return
    from ravnest.cli import screen

    if not now.jobs:
        click.echo("no jobs yet; submit one with `ravnest submit`")
        return
    screen.console().print(screen.job_table(now.jobs, now.server.now))


@command.command("show")
@id_argument
@server_options
@json_option
def show(
    job_id: str | None, server: str | None, token: str | None, insecure: bool, as_json: bool
) -> None:
    """Show a job: how far it is, its plan, its pipelines, what has happened."""
    with session_of(server, token, insecure) as session:
        job = session.job(job_id)
        detail, events = job.detail(), job.events()
        if as_json:
            print_json({"detail": detail, "events": events})
            return
        series = job.series()
    import time

    from ravnest.cli import screen
    from ravnest.cli.pipelines import run_lines
    from ravnest.session.speed import speed_words

    out, now = screen.console(), time.time()
    out.print(screen.job_facts(detail.job, now, speed_words(detail, series)))
    if detail.plan is not None:
        out.print("\n" + detail.plan.report)
    if detail.run is not None:
        out.print()
        out.print(*run_lines(detail.run, detail.job.name, now), sep="\n")
    if events:
        out.print()
        out.print(*(screen.event_line(one) for one in events[-20:]), sep="\n")


@command.command("follow")
@id_argument
@server_options
@click.pass_context
def follow(
    ctx: click.Context, job_id: str | None, server: str | None, token: str | None, insecure: bool
) -> None:
    """Watch a job until it has ended; Ctrl-C ends the watching, not the job."""
    with session_of(server, token, insecure) as session:
        job = session.job(job_id)
        click.echo(f"following {job.id} ({job.name})", err=True)
        code = follow_to_the_end(job)
        if job.view.result_bytes:
            click.echo(f"the trained weights: ravnest job fetch {job.id}", err=True)
        ctx.exit(code)


def follow_to_the_end(job: "Job") -> int:
    """The exit code that the job's end deserves. Interrupted, it says how to come back."""
    try:
        ended = job.follow()
    except KeyboardInterrupt:
        click.echo(f"\n{goes_on(job)}", err=True)
        raise
    if ended.state == "failed":
        click.echo(f"error: job {job.id} ({job.name}) failed: {ended.reason}", err=True)
        return EXIT_FAILED
    return 0


def goes_on(job: "Job") -> str:
    return f"job {job.id} goes on without you: ravnest job follow {job.id}"


@command.command("fetch")
@id_argument
@click.option(
    "--output",
    "-o",
    type=click.Path(file_okay=False, path_type=Path),
    default="trained",
    show_default=True,
    metavar="DIR",
    help="Folder for the result.",
)
@server_options
def fetch(
    job_id: str | None, output: Path, server: str | None, token: str | None, insecure: bool
) -> None:
    """Fetch the trained weights: a state_dict for torch.load, and the same as safetensors."""
    with session_of(server, token, insecure) as session:
        job = session.job(job_id)
        click.echo(f"fetching the weights of {job.id} ({job.name})", err=True)
        with _naming(job):
            fetch_result(job, output)


def fetch_result(job: "Job", output: Path) -> None:
    from ravnest.cli.loading import load_torch

    load_torch()
    from ravnest.session.results import write_result

    for path in write_result(job, output):
        click.echo(f"wrote {path}")


@contextlib.contextmanager
def _naming(job: "Job") -> Iterator[None]:
    """A refusal says which job was meant: it may not be the one that its reader has in mind."""
    from ravnest.client.answers import AnswerError
    from ravnest.errors import JobError

    try:
        yield
    except AnswerError as error:
        raise JobError(f"job {job.id} ({job.name}): {error}") from error


def _steering(name: str, action: str, words: str, done: str) -> None:
    """Adds a command that does nothing but send an action."""

    @command.command(name, help=words)
    @id_argument
    @server_options
    def steer(job_id: str | None, server: str | None, token: str | None, insecure: bool) -> None:
        with session_of(server, token, insecure) as session:
            job = session.job(job_id)
            wanted: Any = action
            with _naming(job):
                job.act(wanted)
            click.echo(f"{done} {job.id} ({job.name})")


_steering("start", "start", "Begin to train a job that is planned.", "started")
_steering("stop", "stop", "Save and end in good order; `resume` takes it up again.", "stopping")
_steering("pause", "pause", "Feed no batches until `continue`.", "paused")
_steering("continue", "continue", "Go on after `pause`.", "continued")
_steering("resume", "resume", "Take up a stopped or failed job in a new run.", "resuming")


@command.command("delete")
@id_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@server_options
def delete(
    job_id: str | None, yes: bool, server: str | None, token: str | None, insecure: bool
) -> None:
    """Take a job off the server, with its model, data and results; if it runs, it ends."""
    from ravnest.session.following import AT_WORK

    with session_of(server, token, insecure) as session:
        job = session.job(job_id)
        state = job.state
        named = f"{job.id} ({job.name})"
        running = state in AT_WORK
        if not yes:
            which = f"{named}, which is {state}," if running else named
            if not confirm(f"delete job {which} with its results?", default=False):
                click.echo("not deleted", err=True)
                raise click.exceptions.Exit(EXIT_FAILED)
        with _naming(job):
            job.delete()
        click.echo(f"deleted {named}" + f", which was {state}" * running)
