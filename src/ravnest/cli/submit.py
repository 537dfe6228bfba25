"""`ravnest submit`: a model, handed to a server and brought back trained, in one command."""

import logging
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ravnest.cli.asking import confirm
from ravnest.cli.job import fetch_result, follow_to_the_end, goes_on
from ravnest.cli.messages import Messages
from ravnest.cli.numbers import NumberRange
from ravnest.cli.serverside import server_options, session_of
from ravnest.errors import RavnestError

if TYPE_CHECKING:
    from ravnest.session import Job, JobRequest, Session

logger = logging.getLogger("ravnest.cli")


@click.command("submit", options_metavar="[OPTIONS]")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS...]")
@server_options
@click.option("--name", metavar="NAME", show_default="the file's", help="What to call the job.")
@click.option("--epochs", type=click.IntRange(min=1), metavar="N", help="Times through the data.")
@click.option("--batch-size", type=click.IntRange(min=1), metavar="N", help="Rows per step.")
@click.option(
    "--lr", type=NumberRange(min=0), metavar="RATE", help="Learning rate of the optimizer."
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Any other argument of Session.submit, as in --set max_clusters=2.",
)
@click.option("--yes", "-y", is_flag=True, help="Start without asking.")
@click.option("--detach", "-d", is_flag=True, help="Do not follow the job: submit it and end.")
@click.option("--quiet", "-q", is_flag=True, help="Do not tell what is being prepared.")
@click.option(
    "--output",
    "-o",
    type=click.Path(file_okay=False, path_type=Path),
    default="trained",
    show_default=True,
    metavar="DIR",
    help="Folder for the result.",
)
@click.pass_context
def command(
    ctx: click.Context,
    file: Path,
    args: tuple[str, ...],
    server: str | None,
    token: str | None,
    insecure: bool,
    name: str | None,
    epochs: int | None,
    batch_size: int | None,
    lr: float | None,
    settings: tuple[str, ...],
    yes: bool,
    detach: bool,
    quiet: bool,
    output: Path,
) -> None:
    """Hand the model in FILE to a server and bring it back trained.

    FILE is Python with a function job() that returns the arguments of Session.submit (model,
    example_args, data, loss and so on), or TOML with the same names: see docs/server.md. It runs on
    this machine only; what is sent is the model as a graph of operators, its weights and the data.

    Shows the plan and asks before it starts. Ctrl-C ends the watching, not the job.
    """
    overrides = _overrides(settings if lr is None else [*settings, f"optimizer_params.lr={lr}"])
    said = {"name": name, "epochs": epochs, "batch_size": batch_size}
    overrides |= {key: value for key, value in said.items() if value is not None}
    overrides["start"] = "at once" if yes else "asked"
    if not quiet:
        ctx.ensure_object(Messages).show_steps()
    with session_of(server, token, insecure) as session:
        session.check_may_submit()
        logger.info("reading %s …", file)
        request = _request(ctx, file, args, overrides)
        job = _submit(session, request)
        click.echo(f"submitted {job.id} ({job.name}) to {session.url}", err=True)
        if detach and yes:
            click.echo(job.id)
            return
        _agree(job, yes)
        if detach:
            click.echo(job.id)
            return
        code = follow_to_the_end(job)
        if job.view.result_bytes:
            fetch_result(job, output)
            _print_end(job)
        ctx.exit(code)


def _request(
    ctx: click.Context, file: Path, args: tuple[str, ...], overrides: dict[str, Any]
) -> "JobRequest":
    from ravnest.cli.loading import load_torch
    from ravnest.cli.tracebacks import shown_from
    from ravnest.session.programs import load_request
    from ravnest.session.request import JobRequest

    load_torch()
    try:
        request = load_request(file, args, overrides)
    except Exception as error:
        if isinstance(error, RavnestError) or ctx.find_root().params["debug"]:
            raise
        own = file.absolute().parent.glob("*.py")
        click.echo(shown_from(own, error), nl=False, err=True)
        ctx.exit(1)
    return request if request.name else JobRequest.of(request, name=_name_from(file))


def _name_from(file: Path) -> str | None:
    """What of the file's name a job may be called; if nothing is left, it is called like
    its model."""
    kept = re.sub(r"[^\w .:+/@()-]", "", file.stem)
    return re.sub(r"^\W+", "", kept)[:100] or None


def _submit(session: "Session", request: "JobRequest") -> "Job":
    """With a bar while files are sent, where a person watches."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from ravnest.cli.screen import console

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    out = console(sys.stderr)
    bars = Progress(*columns, console=out, disable=not out.is_terminal, transient=True)
    bar = bars.add_task("sending", total=None, start=False, visible=False)
    try:

        def progress(what: str, done: int, size: int) -> None:
            bars.start()
            bars.start_task(bar)
            # A full bar would stand there for as long as the server looks at what it has got.
            bars.update(bar, description=what, completed=done, total=size, visible=done < size)

        return session.submit_request(request, progress=progress)
    finally:
        # Also if an interrupt came while it was begun, or ended: the cursor is visible again.
        try:
            bars.stop()
        finally:
            out.show_cursor(True)


def _agree(job: "Job", yes: bool) -> None:
    """Show the plan, as soon as there is one; without --yes, ask whether it shall be."""
    later = f"it stays on the server: ravnest job start {job.id}, or ravnest job delete {job.id}"
    try:
        click.echo(job.plan(None, waiting=lambda words: click.echo(words, err=True)))
    except KeyboardInterrupt:
        click.echo(f"\n{goes_on(job) if yes else later}", err=True)
        raise
    if yes:
        return
    try:
        agreed = confirm("Start training?", default=True)
    except click.Abort as abort:
        click.echo(f"\nnobody has answered (--yes needs no answer); {later}", err=True)
        if isinstance(abort.__cause__, EOFError):
            raise click.exceptions.Exit(1) from None
        raise
    if not agreed:
        click.echo(later, err=True)
        raise click.exceptions.Exit(0)
    job.start()


def _print_end(job: "Job") -> None:
    from ravnest.session.showing import scores
    from ravnest.session.speed import speed_words

    detail = job.detail()
    if speed := speed_words(detail, job.series()):
        click.echo(f"speed: {speed}")
    if detail.job.metrics:
        click.echo(f"score: {scores(detail.job.metrics)}")


def _overrides(settings: Iterable[str]) -> dict[str, Any]:
    """KEY=VALUE, with values as in TOML or plain words; `a.b=…` sets b inside of a."""
    found: dict[str, Any] = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--set")
        place = found
        *outer, last = key.strip().replace("-", "_").split(".")
        for step in outer:
            place = place.setdefault(step, {})
            if not isinstance(place, dict):
                raise click.BadParameter(
                    f"{text!r} sets a part of {step}, which another one has set as a whole",
                    param_hint="--set",
                )
        place[last] = _value(value.strip())
    return found


def _value(text: str) -> Any:
    import tomllib

    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
