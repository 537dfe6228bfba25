"""`--allow-operator`: operators that the owner of a machine allows besides those of the list.

The names go into a variable of the environment, because the processes that load packages (a worker,
the server's planning) are started by this one and read them there, each when it starts.
"""

import os
import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ravnest.api.work import ALLOWED_OPERATORS

F = TypeVar("F", bound=Callable[..., Any])
_NAME = re.compile(r"[A-Za-z_]\w*\.[A-Za-z_]\w*\.[A-Za-z_]\w*", re.ASCII)


def _allow(ctx: click.Context, param: click.Parameter, names: tuple[str, ...]) -> None:
    for name in names:
        if not _NAME.fullmatch(name):
            raise click.BadParameter(f"{name!r}: expected a name such as aten.logdet.default")
    if names:
        os.environ[ALLOWED_OPERATORS] = ",".join(names)


def allow_operator_option(command: F) -> F:
    """May be given several times; also RAVNEST_ALLOW_OPERATORS, with commas between names."""
    return click.option(
        "--allow-operator",
        multiple=True,
        metavar="NAME",
        callback=_allow,
        expose_value=False,
        help="Let models use this operator although it is not on the list, such as "
        f"aten.binomial.default. Also {ALLOWED_OPERATORS}.",
    )(command)
