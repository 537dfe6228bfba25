"""How planning ended: what is the pool's, the limit's, the machine's and the job's own fault."""

import errno
import os

import pytest

from ravnest.errors import JobError, PlanError
from ravnest.server.planjob import tasks
from ravnest.server.planjob.__main__ import _done
from ravnest.server.planjob.outcome import MEMORY, PlanOrder

NO_MEMORY = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
OF_TORCH = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")


def caused(error, cause):
    error.__cause__ = cause
    return error


def ended(monkeypatch, error, limit):
    """The verdict on planning that ends with this error."""

    def fails(order, folder):
        raise error

    monkeypatch.setattr(tasks, "plan", fails)
    monkeypatch.setenv(MEMORY, str(limit))
    outcome = _done(PlanOrder(task="plan", model="/m"), None)
    if "--plan-memory" in outcome.error:
        assert not outcome.crashed
        return "limit"
    return "unfit" if outcome.unfit else "crashed" if outcome.crashed else "hopeless"


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (PlanError("too small"), "unfit"),
        (JobError("no such operator"), "hopeless"),
        (MemoryError(), "limit"),
        (OF_TORCH, "limit"),
        (caused(PlanError("cannot be measured"), MemoryError()), "limit"),
        (caused(PlanError("cannot be measured"), OF_TORCH), "limit"),
        (caused(JobError("cannot be read"), OF_TORCH), "limit"),
        (NO_MEMORY, "crashed"),
        (caused(JobError(f"cannot be read: {NO_MEMORY}"), NO_MEMORY), "crashed"),
        (caused(PlanError(f"cannot be read: {NO_MEMORY}"), NO_MEMORY), "crashed"),
    ],
    ids=repr,
)
def test_only_memory_that_the_process_may_not_have_is_over_the_limit(monkeypatch, error, verdict):
    assert ended(monkeypatch, error, limit=1 << 30) == verdict


@pytest.mark.parametrize("error", [MemoryError(), caused(PlanError("none"), OF_TORCH)], ids=repr)
def test_without_a_limit_a_lack_of_memory_may_pass(monkeypatch, error):
    assert ended(monkeypatch, error, limit=0) == "crashed"
