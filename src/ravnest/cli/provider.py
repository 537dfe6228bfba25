"""`ravnest provider`: the owner of a machine steers its provider, also from another terminal."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ravnest.agent.identity import Identity
    from ravnest.client.address import ServerAddress
    from ravnest.client.http import HttpClient

    _Found = tuple[list[Identity], ServerAddress]


@click.command("provider")
@click.argument("action", type=click.Choice(["status", "pause", "resume", "leave"]))
@click.argument("url", required=False)
@click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    show_default="~/.ravnest/provider",
    metavar="DIR",
    help="The folder that `ravnest join` was given.",
)
@click.option("--insecure", is_flag=True, help="Talk to a server that runs without TLS.")
def command(action: str, url: str | None, home: Path | None, insecure: bool) -> None:
    """Pause, resume or take back this machine, all of its devices; URL only if it has joined
    several servers.

    pause: no new work after the present one. leave: the present run is saved and goes on elsewhere,
    and the server forgets this machine; coming back takes a token.
    """
    identities, address = _find(url, home, insecure)
    for identity in identities:
        with identity.client(address) as client:
            _act(action, identity, client)


def _act(action: str, identity: "Identity", client: "HttpClient") -> None:
    from ravnest.agent.identity import forget
    from ravnest.api.machine import provider_name
    from ravnest.api.requests import ProviderAction
    from ravnest.api.views import ProviderView

    if action == "leave":
        client.post("/leave", None, type(None))
        forget(identity)
        click.echo(f"{provider_name(identity.provider)} leaves {client.address}")
    elif action == "status":
        _show_status(identity, client)
    else:
        wanted = ProviderAction(action="pause" if action == "pause" else "resume")
        client.post("/providers/me/action", wanted, type(None))
        now = client.get("/providers/me", ProviderView)
        done = _paused(now.job) if action == "pause" else "takes work again"
        click.echo(f"{provider_name(identity.provider)} {done}")


def _paused(job: str | None) -> str:
    """What has begun goes on, for others wait for it."""
    return "is paused" if job is None else f"will be paused after its part of job {job}"


def _find(url: str | None, home: Path | None, insecure: bool) -> "_Found":
    from ravnest.agent.identity import identities_of, known_identities
    from ravnest.client.known import home as our_home
    from ravnest.errors import ServerError

    folder = home or our_home() / "provider"
    known = known_identities(folder)
    if url is None and len(known) != 1:
        if not known:
            raise ServerError(
                f"this machine has joined no server yet (looked in {folder}): ravnest join URL "
                "--token …; if it has joined with --home DIR, say the same here"
            )
        listed = ", ".join(str(each) for each in known)
        raise ServerError(f"this machine has joined {len(known)} servers, say which: {listed}")
    return identities_of(folder, url or str(known[0]), insecure=insecure or url is None)


def _show_status(identity: "Identity", client: "HttpClient") -> None:
    from ravnest.api.machine import provider_name
    from ravnest.api.views import ProviderView
    from ravnest.planning.figures import plain

    view = client.get("/providers/me", ProviderView)
    at = f" on job {view.job}" if view.job else ""
    click.echo(f"{view.name} ({provider_name(view.id)}) at {client.address}: {view.doing}{at}")
    rates = "".join(f" ({rate:.0f} in {name})" for name, rate in view.rates.items())
    click.echo(
        f"offers {view.worker_limit_bytes / 1e9:.1f} GB, {view.gflops:.0f} GFLOP/s{rates}, "
        f"{plain(view.up_mbps)} Mbit/s up, {plain(view.down_mbps)} Mbit/s down"
    )
