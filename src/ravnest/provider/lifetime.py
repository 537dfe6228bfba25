"""How a provider begins and ends.

It ends by a call, with a `with` block, by Ctrl-C, by an error of its script, or with the process
that it runs in or the one that has started it. Whichever it is, the others hear of it, and so does
the script, or its exit code tells. What a provider does in between is not known here.
"""

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator

from ravnest import exits, lifeline
from ravnest.errors import NodeError, RavnestError
from ravnest.provider.runtime import ProviderRuntime
from ravnest.provider.waiters import UserSide

logger = logging.getLogger("ravnest")


class Lifetime:
    """Of one provider, which is at work from `start` to `close`."""

    def __init__(
        self,
        name: str,
        make_runtime: Callable[[], ProviderRuntime],
        *,
        is_root: bool,
        farewell_s: float,
        owes_round: Callable[[], bool],
    ) -> None:
        self.is_root = is_root
        self._name = name
        self._make_runtime = make_runtime
        self._farewell_s = farewell_s
        self._owes_round = owes_round
        """Whether a Root has to meet the other clusters before it leaves."""
        self._runtime: ProviderRuntime | None = None
        self._latest: ProviderRuntime | None = None

    @property
    def runtime(self) -> ProviderRuntime:
        if self._runtime is None:
            raise NodeError(f"{self._name} has been closed, or was never started")
        return self._runtime

    @property
    def failure(self) -> RavnestError | None:
        """What has ended the run, if something has; also after `close`."""
        return None if self._latest is None else self._latest.user.failure

    # ---- as the script asks for it ----

    def start(self) -> None:
        if self._runtime is not None:
            return
        self._runtime = self._latest = runtime = self._make_runtime()
        try:
            runtime.start()
        except BaseException:
            self._runtime = None
            raise
        exits.close_at_exit(self)
        lifeline.watch(lambda: runtime.abort("whoever started it is gone"))

    def close(self) -> None:
        runtime, self._runtime = self._runtime, None
        if runtime is None:
            return
        exits.forget(self)
        try:
            if runtime.user.failure is None:
                if self.is_root:
                    if self._owes_round():
                        runtime.user.order("average")
                    runtime.user.order("goodbye")
                elif not runtime.user.wait_for_goodbye(self._farewell_s):
                    logger.warning(
                        "%s: nothing heard from the Root for %g s; leaving",
                        self._name,
                        self._farewell_s,
                    )
        except KeyboardInterrupt:
            runtime.abort("interrupted")
            raise
        finally:
            runtime.close()

    def leave_block(self, error: BaseException | None) -> None:
        """The end of a `with` block, by this error if there is one."""
        runtime = self._runtime
        leaves = isinstance(error, SystemExit) and not error.code
        if error is not None and not leaves:
            self.give_up(error)
        self.close()
        if error is None and runtime is not None and not runtime.user.failure_was_raised:
            runtime.user.check()

    # ---- as it comes ----

    def give_up(self, error: BaseException) -> None:
        self._abort(f"its script ended with {type(error).__name__}: {error}")

    def _abort(self, reason: str) -> None:
        """The script itself ends the run, and need not be told."""
        if self._runtime is not None and self._runtime.user.failure is None:
            self._runtime.abort(reason)
            self._runtime.user.failure_was_raised = True

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[UserSide]:
        """Ctrl-C while waiting ends the run for everybody."""
        runtime = self.runtime
        try:
            yield runtime.user
        except KeyboardInterrupt:
            self._abort("interrupted")
            raise

    def at_exit(self) -> int:
        """The interpreter ends, and nobody has closed this provider; returns the exit code to have,
        or 0 to leave it as it is."""
        runtime = self._runtime
        if runtime is None:
            return 0
        unhandled = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
        if unhandled is not None:
            self.give_up(unhandled)
        known = runtime.user.failure is not None and runtime.user.failure_was_raised
        try:
            self.close()
        except (RavnestError, KeyboardInterrupt) as error:
            logger.debug("%s: the end", self._name, exc_info=error)
        if runtime.user.failure is None or known:
            return 0
        # The script has ended without noticing; its exit code must still tell.
        logger.error("%s: %s", self._name, runtime.user.failure)
        return 1
