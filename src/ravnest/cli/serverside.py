"""What all commands that talk to a server have in common: which one, with which token, as JSON."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ravnest.session import Session

F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def server_options(function: F) -> F:
    """Adds --server, --token and --insecure; `session_of` takes what they were given."""
    for decorate in (
        click.option(
            "--insecure", is_flag=True, help="Talk to a server that runs without encryption."
        ),
        click.option(
            "--token",
            envvar="RAVNEST_TOKEN",
            metavar="TOKEN",
            show_default="what was used last",
            help="What the server's operator has given you; also RAVNEST_TOKEN.",
        ),
        click.option(
            "--server",
            envvar="RAVNEST_SERVER",
            metavar="URL",
            show_default="used last, or on this machine",
            help="The server; also RAVNEST_SERVER.",
        ),
    ):
        function = decorate(function)
    return function


def session_of(server: str | None, token: str | None, insecure: bool) -> "Session":
    """A session; what was typed, later commands will find without being told."""
    from ravnest.session import Session

    source, kinds = click.get_current_context().get_parameter_source, click.core.ParameterSource
    # A token from the environment is not written to a file: that may be why it is there.
    is_private = source("token") is kinds.ENVIRONMENT
    remember = source("server") is kinds.COMMANDLINE and not is_private
    return Session(server, token, insecure=insecure, remember=remember)


def print_json(value: Any) -> None:
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
