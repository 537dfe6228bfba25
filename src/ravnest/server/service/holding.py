"""How much of the bodies of requests may be in memory at once: of one caller, and of all.

It is held until the request is answered, for what was made of a body is at least as large. A small
body always finds room: whoever fills the rest keeps nobody from asking.
"""

from collections import Counter
from types import TracebackType

from ravnest.server.service.problems import Refusal

MOST_BYTES = 256 << 20
MOST_BYTES_EACH = 64 << 20
"""Of one caller; enough for the largest body there may be."""
_FREE_BYTES = 64 << 10
"""Of each body: as much as its connection holds in any case."""


class Holding:
    def __init__(self) -> None:
        self._of: Counter[str] = Counter()
        self._in_all = 0

    @property
    def in_all(self) -> int:
        return self._in_all

    def share(self, caller: str) -> "Share":
        """For one request, from its beginning to its end."""
        return Share(self, caller)

    def add(self, caller: str, size: int) -> None:
        """A `Refusal` if it would be too much."""
        if self._of[caller] + size > MOST_BYTES_EACH:
            whose = "the requests of this caller that are"
        elif self._in_all + size > MOST_BYTES:
            whose = "all requests that are"
        else:
            self._of[caller] += size
            self._in_all += size
            return
        raise Refusal("limited", f"{whose} being answered hold much already; try again in a while")

    def give_back(self, caller: str, size: int) -> None:
        self._in_all -= size
        self._of[caller] -= size
        if not self._of[caller]:
            del self._of[caller]


class Share:
    """What one request holds."""

    def __init__(self, holding: Holding, caller: str) -> None:
        self._holding = holding
        self._caller = caller
        self._held = 0

    def hold(self, size: int) -> None:
        """So many bytes in all."""
        more = size - _FREE_BYTES - self._held
        if more > 0:
            self._holding.add(self._caller, more)
            self._held += more

    def __enter__(self) -> "Share":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._held:
            self._holding.give_back(self._caller, self._held)
            self._held = 0
