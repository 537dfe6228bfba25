"""`ravnest server`: the intermediary between providers and requesters."""

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ravnest.cli.messages import Messages
from ravnest.cli.numbers import NumberRange
from ravnest.cli.operator_option import allow_operator_option
from ravnest.cli.settings_file import config_option

if TYPE_CHECKING:
    from ravnest.server.running import Ready
    from ravnest.server.service.files import Quota
    from ravnest.server.service.gate import Dashboard

F = TypeVar("F", bound=Callable[..., Any])
_MOST_RESERVE = 10 * 10**9
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


class Size(click.ParamType[int]):
    """Bytes, as in 500M or 2G."""

    name = "SIZE"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        text = str(value).upper().removesuffix("B")
        unit = text[-1:] if text[-1:] in _UNITS else ""
        try:
            size = int(float(text.removesuffix(unit)) * _UNITS[unit])
        except (ValueError, OverflowError):
            size = -1
        if size < 0:
            self.fail(f"{value!r} is not a size like 500M or 2G", param, ctx)
        return size


def _seconds(name: str, default: float, says: str, *, least: float = 1) -> Callable[[F], F]:
    return click.option(
        name,
        type=NumberRange(min=least),
        default=default,
        show_default=True,
        metavar="SECONDS",
        help=says,
    )


@click.command("server")
@config_option
@click.option("--host", default="0.0.0.0", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8470,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--public",
    multiple=True,
    metavar="NAME",
    help="A name or address by which others reach this machine; the first is shown to them.",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    show_default="~/.ravnest/server",
    help="Folder for everything that is kept.",
)
@click.option(
    "--store",
    metavar="URL",
    show_default="SQLite in the folder",
    help="Where records are kept: sqlite:///PATH or postgresql://USER:PASSWORD@HOST/DATABASE.",
)
@click.option("--name", default="ravnest", show_default=True, help="What the dashboard calls it.")
@click.option(
    "--dashboard",
    type=click.Choice(["local", "open", "token"]),
    default="local",
    show_default=True,
    help="open: everybody may look without a token. local, token: `ravnest dashboard` has one.",
)
@click.option(
    "--behind-proxy",
    is_flag=True,
    help="All callers have a proxy's address, so none is limited by it; the proxy has to.",
)
@click.option("--insecure", is_flag=True, help="Without TLS: only behind something that has it.")
@click.option(
    "--max-upload", type=Size(), default="64G", show_default=True, help="Largest single file."
)
@click.option(
    "--quota", type=Size(), default="1T", show_default=True, help="All files of jobs together."
)
@click.option(
    "--owner-quota",
    type=Size(),
    show_default="a quarter of the quota or of the disk",
    help="Files of the jobs of one owner together; operators are not counted.",
)
@click.option(
    "--owner-jobs",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="Jobs of one owner that have not ended; operators are not counted.",
)
@click.option(
    "--reserve",
    type=Size(),
    show_default="5 % of the disk, at most 10G",
    help="What submissions leave of the disk, and of the quota, for results.",
)
@click.option(
    "--token-hours",
    type=NumberRange(min=0, min_open=True, max=24 * 365 * 10),
    default=24.0,
    show_default=True,
    help="How long the first join token is good for.",
)
@_seconds(
    "--away", 180.0, "How long a provider that is needed may be away before its run is given up."
)
@_seconds(
    "--standstill", 900.0, "How long no worker of a run may get on before the run is given up."
)
@_seconds(
    "--settle", 2.0, "How long the pool must stay the same before it is planned with.", least=0
)
@_seconds("--check-seconds", 300.0, "Longest time for checking a job that is being submitted.")
@_seconds("--plan-seconds", 3600.0, "Longest time for planning or fusing.")
@click.option(
    "--plan-memory",
    type=Size(),
    show_default="half of the machine's",
    help="Most memory for checking, planning or fusing; 0 is no limit.",
)
@click.option(
    "--require-sandbox",
    is_flag=True,
    help="Look at no model outside a sandbox: end if there is none.",
)
@allow_operator_option
@click.option("--print-json", is_flag=True, help="When ready, one line of JSON instead of text.")
@click.pass_obj
def command(
    messages: Messages,
    host: str,
    port: int,
    public: tuple[str, ...],
    data: Path | None,
    store: str | None,
    name: str,
    dashboard: "Dashboard",
    behind_proxy: bool,
    insecure: bool,
    max_upload: int,
    quota: int,
    owner_quota: int | None,
    owner_jobs: int,
    reserve: int | None,
    token_hours: float,
    away: float,
    standstill: float,
    settle: float,
    check_seconds: float,
    plan_seconds: float,
    plan_memory: int | None,
    require_sandbox: bool,
    print_json: bool,
) -> None:
    """Run a server: providers join it, requesters hand it jobs, everybody sees what happens.

    Everything it knows is in its folder (and its store) and is still there when it is started
    again. Ctrl-C ends it; providers go on with what they have and come back when it does.
    """
    import asyncio

    from ravnest.client.known import home
    from ravnest.server.running import Listening, own_names, reached_at, serve
    from ravnest.server.service.service import Options
    from ravnest.server.service.work import WorkLimits, half_of_memory
    from ravnest.server.state.world import Settings

    folder = (data or home() / "server").absolute()
    options = Options(
        folder=folder,
        name=name,
        names=own_names(host, public),
        dashboard=dashboard,
        behind_proxy=behind_proxy,
        most_upload_bytes=max_upload,
        quota=_quota(folder, quota, owner_quota, reserve),
        owner_jobs=owner_jobs,
        settings=Settings(away_s=away, settle_s=settle, standstill_s=standstill),
        work=WorkLimits(
            seconds=plan_seconds,
            check_seconds=check_seconds,
            memory_bytes=half_of_memory() if plan_memory is None else plan_memory,
        ),
        require_sandbox=require_sandbox,
    )
    address = reached_at(host, public)

    def ready(server: "Ready") -> None:
        if print_json:
            _as_json(server, address, options.folder)
        else:
            _as_text(server, address, options.folder, usual=home() / "server")
        messages.show_steps()

    listening = Listening(host, port, tls=not insecure)
    asyncio.run(serve(options, listening, ready, store=store, token_hours=token_hours))


def _quota(folder: Path, total: int, owner: int | None, reserve: int | None) -> "Quota":
    """With what was not said: by the disk that the folder is on, or will be."""
    from ravnest.server.service.files import Quota

    there = next(place for place in (folder, *folder.parents) if place.exists())
    disk = shutil.disk_usage(there).total
    kept = min(_MOST_RESERVE, disk // 20, total // 10) if reserve is None else reserve
    if kept >= total:
        raise click.BadParameter(
            f"--reserve is {kept} bytes, and --quota only {total}: nothing could be submitted"
        )
    return Quota(total, min(total, disk) // 4 if owner is None else owner, kept)


def _url(ready: "Ready", host: str) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"{ready.scheme}://{shown}:{ready.port}"


def _as_json(ready: "Ready", host: str, folder: Path) -> None:
    import msgspec

    line = {
        "port": ready.port,
        "url": _url(ready, "127.0.0.1"),
        "public_url": _url(ready, host),
        "data": str(folder),
        "operator_token_file": str(ready.operator_token),
        "join_token": ready.join_token,
        "no_sandbox": ready.service.no_sandbox,
    }
    click.echo(msgspec.json.encode(line).decode())


def _as_text(ready: "Ready", host: str, folder: Path, *, usual: Path) -> None:
    """Commands on this machine look for the operator's token in the usual folder; if it is in
    another, they have to be told."""
    url, local = _url(ready, host), _url(ready, "127.0.0.1")
    insecure = "" if ready.scheme == "https" else " --insecure"
    here, token = f" --server {local}{insecure}", ""
    if folder != usual.absolute():
        token = f' --token "$(cat {shlex.quote(str(ready.operator_token))})"'
    click.echo(f"Ravnest {ready.service.version} serves {url}; its folder is {folder}")
    click.echo("Dashboard, on this machine:")
    click.echo(f"    ravnest dashboard{here + token if token else ''}")
    who = "everybody may look" if ready.service.options.dashboard == "open" else "with a token"
    click.echo(f"and elsewhere {url}/ ({who})")
    click.echo("")
    if ready.join_token is not None:
        click.echo("On every machine that is to take part:")
        click.echo(f"    ravnest join {url} --token {ready.join_token}{insecure}")
    else:
        click.echo("Machines that have joined come back by themselves, and tokens made before are")
        click.echo("good until they expire. A new one to join with:")
        click.echo(f"    ravnest token make provider{here + token if token else ''}")
    click.echo(
        "To train a model, on this machine (examples/spirals/job.py is a file to begin with):"
    )
    click.echo(f"    ravnest submit job.py{here}{token}")
    if token:
        click.echo("(said once, server and token are remembered)")
    click.echo("and elsewhere the same with a token from: ravnest token make requester --name WHO")
    if ready.service.no_sandbox:
        from ravnest.sandbox.bubblewrap import remedy

        click.echo("")
        click.echo(
            "WARNING: models are checked and planned without a sandbox: "
            f"{ready.service.no_sandbox}. To have one: {remedy()}; --require-sandbox ends without"
        )
    click.echo("")
