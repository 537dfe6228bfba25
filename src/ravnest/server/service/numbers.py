"""The highest number that a provider was ever given, also if the records do not know it any more.

A certificate says `provider-7`, and is good for months: after an old backup of the records another
machine must not become number 7. So the number is beside them too, in the server's folder.
"""

import contextlib
from pathlib import Path

from ravnest.server.state.effects import Effects
from ravnest.server.state.world import World


class Numbers:
    def __init__(self, file: Path, world: World) -> None:
        self._file = file
        self._highest = 0
        with contextlib.suppress(OSError, ValueError):  # the records know as well
            self._highest = int(file.read_text())
        world.last_provider = self._highest
        self._note(max(world.providers, default=0))

    def touch(self, effects: Effects) -> None:
        self._note(max(effects.providers, default=0))

    def _note(self, number: int) -> None:
        # Not synced, and not insisted on if the disk is full: it is in the records too, and it
        # takes two misfortunes to miss it.
        with contextlib.suppress(OSError):
            if number > self._highest:
                self._file.write_text(str(number))
                self._highest = number
