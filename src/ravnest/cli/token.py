"""`ravnest token`: who may do what on a server, for its operator."""

import click

from ravnest.cli.numbers import NumberRange
from ravnest.cli.serverside import json_option, print_json, server_options, session_of

ROLES = ("provider", "requester", "viewer", "operator")


@click.group("token")
def command() -> None:
    """Make, list and revoke tokens (operator).

    provider tokens enrol machines, requester tokens submit jobs, viewer tokens look, operator
    tokens do all of it. On the server's own machine no token is needed to make one.
    """


@command.command("make")
@click.argument("role", type=click.Choice(ROLES))
@click.option(
    "--name",
    metavar="NAME",
    show_default="one that nobody has had",
    help="Whom it is for. Jobs belong to the name of a requester token.",
)
@click.option(
    "--replace",
    is_flag=True,
    help="Make a successor: those of the same role and NAME are revoked. Jobs stay NAME's.",
)
@click.option(
    "--hours",
    type=NumberRange(min=0, min_open=True, max=24 * 365 * 10),
    default=24.0,
    show_default=True,
    help="How long it is good for.",
)
@click.option(
    "--uses",
    type=click.IntRange(min=1, max=1_000_000),
    show_default="any number",
    metavar="N",
    help="How many machines may enrol with it.",
)
@server_options
@json_option
def make(
    role: str,
    name: str | None,
    replace: bool,
    hours: float,
    uses: int | None,
    server: str | None,
    token: str | None,
    insecure: bool,
    as_json: bool,
) -> None:
    """Make a token; its text is shown this once."""
    with session_of(server, token, insecure) as session:
        made = session.make_token(
            role,  # type: ignore[arg-type]
            name,
            hours=hours,
            uses=uses,
            replace=replace,
        )
        if as_json:
            print_json(made)
            return
        click.echo(made.token)
        # Only the token itself on stdout: it can be put into a variable.
        whose = f" for {made.name}" if made.name else ""
        click.echo(f"{role} token {made.id}{whose}, good for {hours:g} h", err=True)


@command.command("list")
@server_options
@json_option
def list_tokens(server: str | None, token: str | None, insecure: bool, as_json: bool) -> None:
    """Show all tokens that were made, without their secrets."""
    import time

    with session_of(server, token, insecure) as session:
        found = session.tokens()
    if as_json:
        print_json(found)
        return
    from rich.table import Table

    from ravnest.cli import screen

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in ("id", "role", "name", "made", "good until", "uses left"):
        table.add_column(name)
    for one in found:
        until = screen.clock(one.expires_at)
        if one.revoked:
            until = "revoked"
        elif one.expires_at < time.time():
            until = f"expired {until}"
        left = "any" if one.uses_left is None else str(one.uses_left)
        table.add_row(one.id, one.role, one.name, screen.clock(one.made_at), until, left)
    screen.console().print(table)


@command.command("revoke")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option("--with-providers", is_flag=True, help="Remove all that have enrolled with one.")
@server_options
def revoke(
    ids: tuple[str, ...],
    with_providers: bool,
    server: str | None,
    token: str | None,
    insecure: bool,
) -> None:
    """Make tokens invalid at once. Machines that have enrolled with one stay otherwise.

    ID may be the beginning of one.
    """
    also = (
        ", and removed the providers that are known to have enrolled with it"
        if with_providers
        else ""
    )
    with session_of(server, token, insecure) as session:
        for one in ids:
            revoked = session.revoke_token(one, with_providers=with_providers)
            click.echo(f"revoked {revoked}{also}")
