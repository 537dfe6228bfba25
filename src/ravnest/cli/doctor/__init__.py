"""`ravnest doctor`: what is wrong with this machine or the way to the server, and what to do."""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ravnest.cli.serverside import json_option, print_json

if TYPE_CHECKING:
    from ravnest.cli.doctor.findings import Finding

SIGNS = {"ok": ("ok    ", "green"), "note": ("note  ", "yellow"), "broken": ("BROKEN", "bold red")}


@click.command("doctor")
@click.argument("url", required=False)
@click.option(
    "--token",
    envvar="RAVNEST_TOKEN",
    metavar="TOKEN",
    show_default="what was used last",
    help="The token to check; also RAVNEST_TOKEN.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Check whether a provider could listen there, as with ravnest join --listen.",
)
@click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    show_default="~/.ravnest/provider",
    metavar="DIR",
    help="The folder that `ravnest join` was given, if this machine is a provider.",
)
@click.option("--insecure", is_flag=True, help="The server runs without encryption.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    url: str | None,
    token: str | None,
    listen: str | None,
    home: Path | None,
    insecure: bool,
    as_json: bool,
) -> None:
    """Check this machine, and the way to the server at URL.

    Without URL the server is the one used last, else those that this machine has joined. Each line
    says what was found; where something is to be done, the line below says what. Exits with 1 if
    anything is broken.
    """
    from ravnest.cli.doctor import machine
    from ravnest.cli.doctor.findings import examine
    from ravnest.client.known import home as our_home

    here = examine(machine.checks(our_home(), listen))
    provider = home or our_home() / "provider"
    if url is None and home is not None:
        server = _joined(provider, token)
    else:
        server = _server(url, token, provider, insecure)
    found = _report(itertools.chain(here, server), as_json)
    ctx.exit(1 if any(one.verdict == "broken" for one in found) else 0)


def _server(
    url: str | None, token: str | None, provider: Path, insecure: bool
) -> "Iterable[Finding]":
    from ravnest.cli.doctor.findings import broken, examine
    from ravnest.cli.doctor.server import ServerVisit
    from ravnest.client.known import NoServerError, find_access
    from ravnest.errors import RavnestError, ServerError

    try:
        access = find_access(url, token, insecure=insecure)
    except NoServerError:
        yield from _joined(provider, token)
        return
    except ServerError as error:
        yield broken("server", str(error))
        return
    except RavnestError as error:
        yield broken("token", str(error))
        return
    yield from examine(ServerVisit(access, provider).checks())


def _joined(provider: Path, token: str | None) -> "Iterable[Finding]":
    """The servers that this machine is a provider of."""
    from ravnest.agent.identity import known_identities
    from ravnest.cli.doctor.findings import broken, examine, ok
    from ravnest.cli.doctor.server import ServerVisit
    from ravnest.client.known import Access
    from ravnest.errors import RavnestError

    try:
        joined = known_identities(provider)
    except RavnestError as error:
        yield broken("provider", str(error))
        return
    if not joined:
        yield ok("server", "none is known on this machine yet; name one to have it checked")
    for address in joined:
        yield from examine(ServerVisit(Access(address, token), provider).checks())


def _report(found: "Iterable[Finding]", as_json: bool) -> "list[Finding]":
    """Line by line as they come: some checks take seconds."""
    from rich.text import Text

    from ravnest.cli.screen import console

    if as_json:
        everything = list(found)
        print_json(everything)
        return everything
    out, everything = console(), []
    for one in found:
        everything.append(one)
        sign, style = SIGNS[one.verdict]
        line = Text(sign, style=style)
        line.append(f"  {one.check:<9} {one.text}", style="none")
        out.print(line, soft_wrap=True)
        if one.remedy:
            out.print(Text(f"{'':18}→ {one.remedy}", style="none"), soft_wrap=True)
    return everything
