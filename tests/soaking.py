"""What `python3 dev.py test` leaves to `python3 dev.py soak`.

A test that takes a share of many similar cases asks here which kind of run it is in. The share is
fixed, not drawn, so that a failure is there again in the next run.
"""

import os
from collections.abc import Sequence
from typing import TypeVar

SOAK = "RAVNEST_SOAK" in os.environ

Case = TypeVar("Case")


def examples(usual: int, soak: int) -> int:
    """How many examples a property is tried with."""
    return soak if SOAK else usual


def share(cases: Sequence[Case], every: int) -> list[Case]:
    """All cases in a soak, else the first and each one that is `every` places behind the last."""
    return list(cases if SOAK else cases[::every])
