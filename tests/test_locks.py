"""One process at a time: refused while another holds the lock, free however that one ended."""

import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import filelock
import pytest

from ravnest.errors import RunDirError
from ravnest.locks import NoLocksError, only_one

HOLDS = """
import sys
from pathlib import Path
from ravnest.errors import RunDirError
from ravnest.locks import only_one
with only_one(Path(sys.argv[1]), otherwise=RunDirError("taken")):
    print("mine", flush=True)
    sys.stdin.read()
"""


def test_a_second_one_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"mine\n"
        with (
            pytest.raises(RunDirError, match="somebody is here"),
            only_one(lock, otherwise=RunDirError("somebody is here")),
        ):
            pass
        other.kill()
        other.wait(30)
        with only_one(lock, otherwise=RunDirError("still taken")):
            pass


def test_what_is_raised_inside_is_not_taken_for_a_lock_that_was_held(tmp_path: Path) -> None:
    outer, inner = tmp_path / "outer", tmp_path / "inner"
    with (
        only_one(inner, otherwise=RunDirError("unused")),
        pytest.raises(RunDirError, match="the inner one"),
        only_one(outer, otherwise=RunDirError("the outer one")),
        only_one(inner, otherwise=RunDirError("the inner one")),
    ):
        pass


@pytest.mark.parametrize(
    "said",
    [NotImplementedError("does not support flock"), OSError(errno.ENOLCK, "No locks available")],
)
def test_a_folder_without_locks_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Exception
) -> None:
    monkeypatch.setattr(filelock.FileLock, "acquire", refusing_with(said))
    with (
        pytest.raises(
            NoLocksError, match=r"lock cannot be locked .*lock.* choose a folder on a disk"
        ),
        only_one(tmp_path / "lock", otherwise=RunDirError("unused")),
    ):
        pytest.fail("went on without a lock")


def test_a_full_disk_is_not_taken_for_one_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It passes, and whoever can wait for that has to hear of it."""
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(filelock.FileLock, "acquire", refusing_with(full))
    with (
        pytest.raises(OSError, match="No space left"),
        only_one(tmp_path / "lock", otherwise=RunDirError("unused")),
    ):
        pytest.fail("went on without a lock")


def refusing_with(error: Exception) -> Callable[..., None]:
    def acquire(*_: object, **__: object) -> None:
        raise error

    return acquire
