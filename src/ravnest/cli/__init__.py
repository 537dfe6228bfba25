"""The `ravnest` command: turns words typed in a terminal into calls of the library.

Each subcommand is a file of its own in this folder, named like the subcommand, holding one click
command called `command`. Those files import the library inside the command's body, never at the
top: torch takes seconds to load, and neither `--help` nor a mistyped option should wait for it.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted; `run` and `demo` that are ended by
another signal while providers run, 128 + its number.
"""

import importlib
import io
import re
from collections.abc import Sequence
from typing import Any

import click

from ravnest import __version__
from ravnest.api.limits import plain
from ravnest.cli.messages import Messages
from ravnest.cli.settings_file import read_from
from ravnest.errors import RavnestError

COMMANDS = (
    "dashboard",
    "demo",
    "doctor",
    "fuse",
    "job",
    "join",
    "plan",
    "provider",
    "run",
    "server",
    "status",
    "submit",
    "token",
)

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


class Failure(click.ClickException):
    """A deliberate error of the library, shown as one block without a traceback."""

    exit_code = EXIT_FAILED

    def show(self, file: Any = None) -> None:
        click.echo(f"error: {plain(self.message)}", file=file, err=file is None)


class LazyGroup(click.Group):
    """Imports a subcommand when it is asked for; translates the library's errors."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"ravnest.cli.{cmd_name}").command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with Messages() as ctx.obj:
                return super().invoke(ctx)
        except (RavnestError, OSError) as error:
            if ctx.params["debug"]:
                raise
            raise Failure(_in_words(error)) from error


def _in_words(error: RavnestError | OSError) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


@click.group(
    cls=LazyGroup,
    context_settings={
        "auto_envvar_prefix": "RAVNEST",
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda token: token.replace("_", "-"),
    },
)
@click.version_option(__version__, prog_name="ravnest", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show the full traceback of an error.")
def cli(debug: bool) -> None:
    """Train one PyTorch model across many unequal machines.

    Every option can also be set by an environment variable: RAVNEST_<COMMAND>_<OPTION>, for
    example RAVNEST_PLAN_MAX_CLUSTERS=3. The command line wins. `server` and `join` also read them
    from a file (--config).
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        result = cli.main(args=argv, prog_name="ravnest", standalone_mode=False)
    except click.ClickException as error:
        _show(_with_its_place(error))
        return error.exit_code
    except click.Abort as abort:
        # click also raises Abort at the end of input, when a question stays unanswered.
        return EXIT_FAILED if isinstance(abort.__cause__, EOFError) else EXIT_INTERRUPTED
    return result if isinstance(result, int) else 0


def _show(error: click.ClickException) -> None:
    """As click does, but errors begin as all others of this program do."""
    shown = io.StringIO()
    error.show(shown)
    text = re.sub(r"^Error: ", "error: ", shown.getvalue(), flags=re.MULTILINE)
    click.echo(text, nl=False, err=True)


def _with_its_place(error: click.ClickException) -> click.ClickException:
    """A value nobody typed: say which environment variable or file it came from."""
    if type(error) is not click.BadParameter or error.ctx is None or error.param is None:
        return error
    ctx, name = error.ctx, error.param.name or ""
    if ctx.get_parameter_source(name) is click.core.ParameterSource.ENVIRONMENT:
        place = f"the environment variable {ctx.auto_envvar_prefix}_{name.upper()}"
    elif (path := read_from(ctx, name)) is not None:
        place = str(path)
    else:
        return error
    text = f"{error.message} It was taken from {place}."
    return click.BadParameter(text, ctx, error.param, error.param_hint)
