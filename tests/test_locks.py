"""One process at a time: refused while another holds the lock, free however that one ended."""

import subprocess
import sys
from pathlib import Path

import pytest

from ravnest.errors import RunDirError
from ravnest.locks import only_one

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
