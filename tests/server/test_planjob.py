"""How planning ended: what is the pool's, the limit's, the machine's and the job's own fault."""

import errno
import os

import pytest
from safetensors import SafetensorError

from ravnest.errors import JobError, PlanError
from ravnest.server.planjob import tasks
from ravnest.server.planjob.__main__ import _done
from ravnest.server.planjob.outcome import MEMORY, PlanOrder

NO_MEMORY = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
NO_ROOM = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
NO_QUOTA = OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
NO_ROOM_OF_SAFETENSORS = SafetensorError(
    "Error while serializing: I/O error: No space left on device (os error 28)"
)
OF_TORCH = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")


def caused(error, cause):
    error.__cause__ = cause
    return error


def after(error, first):
    error.__context__ = first
    return error


NO_ROOM_OF_TORCH = after(
    RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"),
    RuntimeError("basic_ios::clear: iostream error"),
)


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


@pytest.mark.parametrize(
    "error",
    [
        NO_ROOM,
        NO_QUOTA,
        NO_ROOM_OF_SAFETENSORS,
        NO_ROOM_OF_TORCH,
        caused(JobError(f"cannot be written: {NO_ROOM}"), NO_ROOM),
    ],
    ids=repr,
)
def test_a_lack_of_room_is_told_as_such_whoever_has_met_it(monkeypatch, error):
    def fails(order, folder):
        raise error

    monkeypatch.setattr(tasks, "fuse", fails)
    outcome = _done(PlanOrder(task="fuse", model="/m"), None)
    assert (outcome.full, outcome.crashed, outcome.unfit) == (True, True, False)


def test_nothing_else_is_a_lack_of_room(monkeypatch):
    monkeypatch.setattr(tasks, "fuse", lambda order, folder: os.listdir("/not/there"))
    outcome = _done(PlanOrder(task="fuse", model="/m"), None)
    assert (outcome.full, outcome.crashed) == (False, True)
