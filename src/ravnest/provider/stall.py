"""Nothing has come back for a long time: say so, and in the end stop waiting. Pure.

A neighbour that dies is noticed by its link. This is for one that lives and does not answer: it may
just be slow, so that the wait is long, but it is not for ever and not in silence.
"""

from ravnest.errors import PeerError


class StallWatch:
    """Watches one provider's wait for the others. Times are given by the caller."""

    def __init__(
        self, report_s: float, give_up_s: float, now: float, whom: str | None = None
    ) -> None:
        """`whom` is the node that is waited for."""
        self._whom = whom
        self._report_s = report_s
        self._give_up_s = give_up_s
        self.heard(now)

    def heard(self, now: float) -> None:
        """Something has come, or there is nothing to wait for."""
        self._since = self._reported = now

    def look_again_s(self, now: float) -> float:
        """Until when there is nothing to say."""
        due = min(self._reported + self._report_s, self._since + self._give_up_s)
        return max(0.0, due - now)

    def look(self, now: float, awaited: str | None) -> str | None:
        """What to log, if something; `PeerError` when it has been too long."""
        if awaited is None:
            self.heard(now)
            return None
        silence = now - self._since
        if silence >= self._give_up_s:
            raise PeerError(
                f"nothing was heard for {silence:.0f} s while waiting for {awaited}. If it is only "
                "slow, be more patient: Node(…, patience=Patience(stall_s=…))",
                node=self._whom,
            )
        if now - self._reported < self._report_s:
            return None
        self._reported = now
        return f"nothing heard for {silence:.0f} s; waiting for {awaited}"
