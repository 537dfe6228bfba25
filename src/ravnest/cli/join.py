"""`ravnest join`: this machine becomes a provider."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ravnest.cli.numbers import NumberRange
from ravnest.cli.operator_option import allow_operator_option
from ravnest.cli.settings_file import config_option

if TYPE_CHECKING:
    from ravnest.agent.instructions import Show
    from ravnest.agent.settings import AgentSettings
    from ravnest.api.tokens import Token

EXIT_SIGNALLED = 128

_HOURS = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])-([01]?[0-9]|2[0-3]):([0-5][0-9])")


def _hours(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    found = _HOURS.fullmatch(value.strip())
    if found is None:
        raise click.BadParameter(f"{value!r}: expected hours of the day such as 22:00-07:00")
    return "{:0>2}:{}-{:0>2}:{}".format(*found.groups())


_DEVICE = r"(cpu|mps|cuda|xpu)(:[0-9]{1,3})?"


def _devices(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is None or value.strip() == "all":
        return None
    named = [each.strip() for each in value.split(",")]
    for each in named:
        if not re.fullmatch(_DEVICE, each):
            raise click.BadParameter(
                f"{each!r}: expected cpu, mps, cuda:0, several with commas, or all"
            )
    full = [f"{each}:0" if ":" not in each else each for each in named]
    if len(set(full)) < len(full):
        raise click.BadParameter(f"{value!r} names a device twice")
    return ",".join(named)


@click.command("join")
@click.argument("url", required=False)
@config_option
@click.option(
    "--token",
    envvar="RAVNEST_JOIN_TOKEN",
    help="From `ravnest server`; needed the first time only. Also RAVNEST_JOIN_TOKEN.",
)
@click.option("--name", show_default="the name of this computer", help="What others see.")
@click.option(
    "--memory",
    type=NumberRange(min=0.5),
    metavar="GB",
    show_default="80 % of what is free",
    help="At most this much of the machine's for all workers, with Python and torch.",
)
@click.option(
    "--gpu-memory",
    type=NumberRange(min=1.0),
    metavar="GB",
    show_default="what is free",
    help="At most this much of each GPU's own.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    metavar="N",
    show_default="one for each core",
    help="Threads a worker may compute with.",
)
@click.option(
    "--bandwidth",
    # With less, a pause between two pieces of a file would be taken for a line that is dead.
    type=NumberRange(min=0.1),
    metavar="MBPS",
    show_default="no limit",
    help="At most so many Mbit/s, in each direction; 0.1 at least.",
)
@click.option(
    "--hours", callback=_hours, metavar="HH:MM-HH:MM", help="Only then, for example 22:00-07:00."
)
@click.option(
    "--devices",
    "--device",
    "device",
    callback=_devices,
    metavar="DEVICES",
    show_default="every GPU, or the processor",
    help="cpu, cuda:0, mps; several with commas; a provider each.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="0.0.0.0:0",
    show_default="any free port",
    help="Where neighbours may reach this machine directly.",
)
@click.option("--no-listen", is_flag=True, help="Open no port; everything goes through the server.")
@click.option(
    "--advertise",
    metavar="HOST:PORT",
    multiple=True,
    help="What neighbours should dial instead, such as the router in front. Names are looked up.",
)
@click.option(
    "--lan",
    is_flag=True,
    help="Dial private addresses that others name, also in networks that this machine is not in.",
)
@click.option(
    "--allow-scripts",
    type=click.Choice(["never", "sandboxed", "always"]),
    default="never",
    show_default=True,
    help="Whether Python of other people may run here.",
)
@allow_operator_option
@click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    show_default="~/.ravnest/provider",
    metavar="DIR",
    help="Identity and work of this provider.",
)
@click.option(
    "--nice",
    type=click.IntRange(0, 19),
    default=0,
    show_default=True,
    help="How much workers give way to other programs.",
)
@click.option(
    "--require-sandbox", is_flag=True, help="Run nothing of other people outside a sandbox."
)
@click.option("--once", is_flag=True, help="Leave after one assignment.")
@click.option("--insecure", is_flag=True, help="Talk to a server that runs without TLS.")
@click.option("--log-json", is_flag=True, help="One JSON object per line instead of plain text.")
def command(
    url: str | None, token: str | None, memory: float | None, log_json: bool, **given: Any
) -> int:
    """Offer this machine to the server at URL, which may also stand in the file of --config.

    Each of its GPUs becomes a provider of its own, all of them in this one process.

    Measures it, waits for work, trains its part of a model, brings the result back, waits again.
    Ctrl-C once: work in progress is stopped and saved first. Twice: at once.
    """
    import asyncio

    from ravnest.agent.joining import join
    from ravnest.agent.settings import AgentSettings
    from ravnest.api.tokens import Token

    if url is None:
        raise click.UsageError(
            "which server? Its machine shows it: ravnest join https://host:port --token …; "
            'or --config FILE with the line url = "https://host:port"'
        )
    show = _json_line if log_json else _line
    settings = _settings(AgentSettings, url, memory, given)
    if settings.is_named and settings.name != given["name"]:
        show(
            "named",
            f"this machine will be called {settings.name!r}: names have letters of ASCII, digits, "
            "spaces and _.:+/@()-",
        )
    parsed = Token.parse(token) if token else _token_of_all_commands(settings, show)
    struck = asyncio.run(join(settings, parsed, show))
    return 0 if struck is None else EXIT_SIGNALLED + struck


def _token_of_all_commands(settings: "AgentSettings", show: "Show") -> "Token | None":
    """RAVNEST_TOKEN, if it is surely for this. Its owner may look and submit with it, perhaps at
    another server, which must not keep a machine from joining, nor tell this server of it."""
    import os

    from ravnest.agent.identity import load_identity
    from ravnest.api.tokens import Token
    from ravnest.client.known import TOKEN_VARIABLE
    from ravnest.errors import TokenError

    text = os.environ.get(TOKEN_VARIABLE)
    if not text or load_identity(settings.home, settings.address) is not None:
        return None
    try:
        token = Token.parse(text)
    except TokenError as error:
        why = str(error)
    else:
        if token.role != "provider":
            why = f"its role is {token.role}"
        elif settings.address.scheme != "https":
            why = f"without TLS nobody can tell whether it is of {settings.address}"
        else:
            return token
    show("token", f"{TOKEN_VARIABLE} is not used to join: {why}")
    return None


def _settings(kind: Any, url: str, memory: float | None, given: dict[str, Any]) -> Any:
    import platform

    from ravnest.agent.addresses import split_host_port
    from ravnest.agent.machine import a_name
    from ravnest.api.machine import Caps
    from ravnest.client.address import ServerAddress
    from ravnest.client.known import home

    for address in given["advertise"]:
        if split_host_port(address, "--advertise")[1] == 0:
            raise click.UsageError(f"--advertise {address}: expected a port from 1 to 65535")
    if not given["no_listen"]:
        split_host_port(given["listen"], "--listen")
    return kind(
        address=ServerAddress.parse(url, insecure=given["insecure"]),
        home=(given["home"] or home() / "provider").absolute(),
        name=a_name(given["name"] or platform.node()),
        is_named=bool(given["name"]),
        caps=Caps(
            memory_bytes=_bytes(memory),
            device_memory_bytes=_bytes(given["gpu_memory"]),
            threads=given["threads"],
            bandwidth_mbps=given["bandwidth"],
            hours=given["hours"],
            scripts=given["allow_scripts"],
            lan=given["lan"],
        ),
        device=given["device"],
        listen=None if given["no_listen"] else given["listen"],
        advertise=tuple(given["advertise"]),
        nice=given["nice"],
        once=given["once"],
        require_sandbox=given["require_sandbox"],
    )


def _bytes(gigabytes: float | None) -> int | None:
    return None if gigabytes is None else int(gigabytes * 1e9)


def _line(event: str, text: str) -> None:
    from ravnest.api.limits import plain_entry

    # A server and a script have a say in it, and this is a terminal.
    click.echo(plain_entry(text))
    sys.stdout.flush()


def _json_line(event: str, text: str) -> None:
    import time

    import msgspec

    from ravnest.api.limits import plain

    line = {"at": round(time.time(), 3), "event": event, "text": plain(text)}
    click.echo(msgspec.json.encode(line).decode())
    sys.stdout.flush()
