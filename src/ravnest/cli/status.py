"""`ravnest status`: what the dashboard shows, in the terminal."""

import click

from ravnest.cli.serverside import json_option, print_json, server_options, session_of


@click.command("status")
@server_options
@click.option("--watch", "-w", is_flag=True, help="Stay, and show every change as it happens.")
@click.option(
    "--events",
    type=click.IntRange(0, 100),
    default=8,
    show_default=True,
    metavar="N",
    help="How many of the last events to show.",
)
@json_option
def command(
    server: str | None, token: str | None, insecure: bool, watch: bool, events: int, as_json: bool
) -> None:
    """Show a server: its pool, its jobs, the pipelines at work, what has happened.

    With --watch --json every line is the whole state, whenever it changes.
    """
    from ravnest.cli import screen

    out = screen.console()
    with session_of(server, token, insecure) as session:
        if not watch:
            now = session.overview()
            if as_json:
                print_json(now)
            else:
                out.print(screen.overview(now, session.url, events=events))
        elif as_json:
            import msgspec

            for now in session.watch():
                click.echo(msgspec.json.encode(now).decode())
        else:
            from rich.live import Live

            try:
                with Live(console=out, auto_refresh=False, screen=out.is_terminal) as live:
                    for now in session.watch():
                        shown = screen.overview(now, session.url, events=events)
                        live.update(shown, refresh=True)
            finally:
                out.show_cursor(True)  # also if an interrupt came at its beginning or its end
