"""No more than so many bytes a second. Pure."""


class Pacer:
    """Says when the next message may go. One may always go at once after a pause."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    def wait_s(self, now: float) -> float:
        return max(0.0, self._free_at - now)

    def sent(self, size: int, now: float) -> None:
        self._free_at = max(now, self._free_at) + size / self._bytes_per_s
