"""`ravnest dashboard`: the server's pages in a browser of this machine, without typing a token."""

import click

from ravnest.cli.serverside import server_options, session_of


@click.command("dashboard")
@server_options
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default="a free one",
    help="Port on 127.0.0.1.",
)
@click.option("--steer", is_flag=True, help="The page may do what the token may, not only look.")
@click.option("--no-browser", is_flag=True, help="Print the link, and open nothing.")
def command(
    server: str | None, token: str | None, insecure: bool, port: int, steer: bool, no_browser: bool
) -> None:
    """Open the dashboard of a server: on this machine, or wherever your token is good.

    Prints a link to 127.0.0.1 that works once, opens it, and stays until Ctrl-C. The page may look;
    with --steer also stop and pause jobs, as far as the token may.
    """
    import webbrowser

    from ravnest.client.dashboard_proxy import LINK_S, DashboardProxy
    from ravnest.client.known import who_is
    from ravnest.errors import TokenError

    with session_of(server, token, insecure) as session:
        me = who_is(session.client)
        if me.role == "provider":
            raise TokenError(
                "this token is for machines that join; looking takes a viewer token, from "
                "`ravnest token make viewer` on the server's machine"
            )
        try:
            proxy = DashboardProxy(session.client, me, port=port, steer=steer)
        except OSError as error:
            raise click.ClickException(
                f"cannot listen on 127.0.0.1:{port}: {error.strerror}; choose another --port"
            ) from error
        with proxy:
            click.echo(f"Dashboard of {session.url} (good once, for {LINK_S / 60:.0f} minutes):")
            click.echo(f"    {proxy.link}")
            click.echo("Ctrl-C ends it.")
            if not no_browser:
                webbrowser.open(proxy.link)
            proxy.serve_forever()
