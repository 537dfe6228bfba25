"""What the Trainer of a script reports to the worker that has started it: lines through a pipe.

The script is somebody's program and may write there what it likes. Only what is a report is passed
on, and only as large as reports may be; whoever gets it checks it as that of any worker.
"""

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType

import msgspec

from ravnest.api.limits import NOT_UNDERSTOOD
from ravnest.api.work import MOST_LINE_BYTES, MOST_METRICS, Line, Report

logger = logging.getLogger("ravnest.worker")
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


class ReportsTo(msgspec.Struct, frozen=True):
    """Where a script's Trainer reports to: the value of RAVNEST_REPORTS, as JSON."""

    descriptor: int
    """An open pipe, for lines."""
    every_s: float
    clock_offset_s: float


class Hearing:
    """`begin` once the script has the other end of the pipe; `join` when it has ended."""

    def __init__(self, pass_on: Callable[[Report], None]) -> None:
        self._pass_on = pass_on
        self.descriptor: int | None = None
        """For the script; None where it cannot be given one."""
        self._read: int | None = None
        self._thread = threading.Thread(target=self._listen, name="hearing", daemon=True)
        self.has_heard = False
        self.epochs = 0
        """Whole ones, as it last said."""
        self.scores: dict[str, float] = {}
        """Of the last validation, by series."""

    def __enter__(self) -> "Hearing":
        if sys.platform != "win32":
            self._read, self.descriptor = os.pipe()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._let_go()
        if self._thread.ident is None and self._read is not None:
            os.close(self._read)

    def begin(self) -> None:
        """From now on the script alone holds the end that is written to: it ends with it."""
        self._let_go()
        if self._read is not None:
            self._thread.start()

    def join(self, seconds: float) -> None:
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _let_go(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def _listen(self) -> None:
        assert self._read is not None
        with contextlib.suppress(OSError), os.fdopen(self._read, "rb") as lines:
            while line := lines.readline(MOST_LINE_BYTES):
                self._hear(line)

    def _hear(self, line: bytes) -> None:
        try:
            said = _decoder.decode(line)
        except NOT_UNDERSTOOD as error:
            logger.warning("the script reports what is not understood: %s", error)
            return
        if not isinstance(said, Report):
            return
        self.has_heard, self.epochs = True, said.report.epoch
        for point in said.report.points:
            known = point.series in self.scores or len(self.scores) < MOST_METRICS
            if point.series.startswith("eval/") and point.value is not None and known:
                self.scores[point.series] = point.value
        self._pass_on(said)
