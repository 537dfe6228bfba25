"""What the library logs, as lines of a terminal program: steps as they are, `warning: …`.

A plan carries the warnings about it, and every way of printing a plan shows them. So a command that
prints plans holds warnings back, and at the end shows those that no plan has shown.
"""

import contextlib
import logging
import sys
import traceback
from collections.abc import Iterable
from types import TracebackType

import click

from ravnest.api.limits import plain_entry


class Messages(logging.Handler):
    """In force between `with` and its end; `show_steps` and `hold` are the command's to call."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._logger = logging.getLogger("ravnest")
        self._before = self._logger.level, self._logger.propagate
        self._held: list[str] | None = None

    def show_steps(self) -> None:
        self.setLevel(logging.INFO)

    def hold(self) -> None:
        self._held = []

    def shown_elsewhere(self, warnings: Iterable[str]) -> None:
        self._held = [text for text in self._held or [] if text not in set(warnings)]

    def emit(self, record: logging.LogRecord) -> None:
        # Whoever logs goes on whatever becomes of it: a full disk or a closed pipe ends no server.
        with contextlib.suppress(OSError, ValueError):
            self._say(record)

    def _say(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[0] is not None:
            text += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
        if record.levelno < logging.WARNING:
            _echo(text)
        elif self._held is None:
            _echo(f"warning: {text}")
        else:
            self._held.append(text)

    def __enter__(self) -> "Messages":
        self._logger.addHandler(self)
        self._logger.setLevel(logging.INFO)
        # Nor may the script's own logging, if it has any, print them again.
        self._logger.propagate = False
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._before[0])
        self._logger.propagate = self._before[1]
        with contextlib.suppress(OSError, ValueError):
            for text in self._held or []:
                _echo(f"warning: {text}")


def _echo(text: str) -> None:
    """Others have a hand in what is logged: it neither steers the terminal nor forges a line."""
    click.echo(plain_entry(text), file=sys.stderr)
