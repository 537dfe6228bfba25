"""`--config FILE`: what a command can be told, in a TOML file instead of its line.

Keys are the command's own options without their dashes (`max-upload` or `max_upload`). What is
typed wins over the environment, and that over the file. Values are read as if they had been typed,
so that a file can say nothing that the command line could not.
"""

import difflib
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_READ_FROM = "ravnest.cli.settings_file"


def config_option(function: F) -> F:
    """Adds --config; the command itself sees nothing of it but its other options' values."""
    return click.option(
        "--config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_take,
        help="Options from a TOML file, for example: name = 'office'. What is typed wins.",
    )(function)


def read_from(ctx: click.Context, name: str) -> Path | None:
    """The file that this parameter's value comes from."""
    if ctx.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT_MAP:
        return None
    path: Path | None = ctx.meta.get(_READ_FROM)
    return path


def _take(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    known = {one.name: one for one in ctx.command.params if one.name and one is not param}
    values = dict(_one(key, given, known, path) for key, given in _table(path).items())
    ctx.meta[_READ_FROM] = path
    ctx.default_map = values


def _table(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise click.UsageError(f"{path} is no TOML: {error}") from None


def _one(key: str, given: Any, known: dict[str, click.Parameter], path: Path) -> tuple[str, Any]:
    name = key.replace("-", "_")
    if name not in known:
        raise click.UsageError(_unknown(key, known, path))
    param = known[name]
    several = given if isinstance(given, list) else [given]
    if any(isinstance(one, dict | list) for one in several):
        raise click.UsageError(f"{path}: {key} is a table or nested; expected {key} = value")
    if isinstance(given, list) and not param.multiple:
        raise click.UsageError(f"{path}: {key} is a list; it takes one value only")
    texts = [_as_typed(one, param, path) for one in several]
    return name, texts if param.multiple else texts[0]


def _as_typed(value: Any, param: click.Parameter, path: Path) -> str:
    text = str(value)
    if isinstance(param.type, click.Path):
        # As seen from the file, which may be read from anywhere.
        return str(path.parent / Path(text).expanduser())
    return text


def _unknown(key: str, known: dict[str, click.Parameter], path: Path) -> str:
    names = sorted(name.replace("_", "-") for name in known)
    close = difflib.get_close_matches(key.replace("_", "-"), names, n=1, cutoff=0.5)
    meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
    return f"{path} sets {key!r}, which is no option; {meant}"
