"""Reports of a worker, no more often than the server wants them.

A worker that is somebody's script reports what it likes, as fast as it likes; a server does not
listen to providers that say too much. Of reports that come close together one is made, with the
figures of the last; what would make it too large is left out, the oldest first.
"""

import asyncio
from collections.abc import Callable

from ravnest.agent.reports import joined
from ravnest.api.work import WorkReport

_SHARE = 0.5
"""Of the time between two reports of an honest worker, whose clock is not ours."""


class Thinning:
    """`take` a report at any time; `finish` when there are no more."""

    def __init__(self, every_s: float, pass_on: Callable[[WorkReport], None]) -> None:
        self._least_s = every_s * _SHARE
        self._pass_on = pass_on
        self._held: WorkReport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def take(self, report: WorkReport) -> None:
        if self._timer is not None:
            self._held = report if self._held is None else joined(self._held, report) or report
            return
        self._timer = asyncio.get_running_loop().call_later(self._least_s, self._next)
        self._pass_on(report)

    def _next(self) -> None:
        self._timer = None
        held, self._held = self._held, None
        if held is not None:
            self.take(held)

    def finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        held, self._held = self._held, None
        if held is not None:
            self._pass_on(held)
