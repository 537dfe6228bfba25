"""What a script may make of its folder, and that the folder goes nevertheless."""

import os
import stat
import subprocess
import sys
import warnings

import psutil
import pytest

from ravnest import removing
from ravnest.removing import move, remove, remove_whole

_AS_AN_ORDINARY_USER = """
import ctypes, os, sys
from pathlib import Path
class Head(ctypes.Structure): _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]
class Data(ctypes.Structure): _fields_ = [(n, ctypes.c_uint32) for n in ("eff", "per", "inh")]
if os.getuid() == 0:
    libc, head, data = ctypes.CDLL(None, use_errno=True), Head(0x20080522, 0), (Data * 2)()
    assert libc.capget(ctypes.byref(head), data) == 0
    data[0].eff &= ~0b110; data[0].per &= ~0b110
    # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    assert libc.capset(ctypes.byref(head), data) == 0
root = Path(sys.argv[1])
locked = root / "locked"
locked.mkdir(); (locked / "file").touch(); os.chmod(locked, 0)
try:
    os.listdir(locked)
    sys.exit("permissions do not count here, so this test says nothing")
except PermissionError:
    pass
"""


def as_an_ordinary_user(script, root):
    """Whom permissions stop, also where tests are run by root."""
    done = subprocess.run(
        [sys.executable, "-c", _AS_AN_ORDINARY_USER + script, str(root)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def nested(folder, name, levels):
    """Folders in each other, deeper than a path may be long."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=here)
        inner = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


def test_a_tree_deeper_than_python_recurses_is_removed(tmp_path):
    """The agent ended with a RecursionError, and again at every start."""
    top = tmp_path / "top"
    top.mkdir()
    nested(top, "d", 3 * sys.getrecursionlimit())
    descriptors = psutil.Process().num_fds()
    remove(top)
    assert list(tmp_path.iterdir()) == []
    assert psutil.Process().num_fds() == descriptors


def test_a_path_that_no_call_takes_is_in_nobodys_way(tmp_path):
    """The server removed by path, and left what was deeper for ever, without a word."""
    left = tmp_path / "left"
    left.mkdir()
    nested(left, "d" * 200, 40)
    with pytest.raises(OSError, match="too long"):
        os.stat(left / "/".join(["d" * 200] * 40))
    remove_whole(left)
    assert list(tmp_path.iterdir()) == []


def test_of_what_cannot_be_removed_the_log_tells(tmp_path, monkeypatch, caplog):
    def refused(name, **where):
        raise PermissionError(1, "Operation not permitted", name)

    (tmp_path / "left").mkdir()
    monkeypatch.setattr(os, "rmdir", refused)
    remove_whole(tmp_path / "left")
    assert f"{tmp_path / 'left'} cannot be removed" in caplog.text


def test_links_are_removed_and_what_they_lead_to_stays(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o755)
    (outside / "file").write_text("the owner's")
    top = tmp_path / "top"
    (top / "inner").mkdir(parents=True)
    for place in (top, top / "inner"):
        (place / "folder").symlink_to(outside)
        (place / "file").symlink_to(outside / "file")
        (place / "nowhere").symlink_to("/nowhere")
        os.mkfifo(place / "pipe")
    itself = tmp_path / "itself"
    itself.symlink_to(outside)
    remove(top)
    remove(itself)
    remove(tmp_path / "nothing")
    remove(tmp_path / "nothing" / "either")
    assert list(tmp_path.iterdir()) == [outside]
    assert (outside / "file").read_text() == "the owner's"
    assert outside.stat().st_mode & 0o777 == 0o755


def test_more_entries_than_are_looked_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(removing, "_AT_ONCE", 3)
    for folder in ("a", "b", "a/c"):
        (tmp_path / "top" / folder).mkdir(parents=True)
        for number in range(10):
            (tmp_path / "top" / folder / str(number)).touch()
    remove(tmp_path / "top")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_removed_is_an_error_and_the_rest_is_gone(tmp_path, monkeypatch):
    for name in ("one", "stuck", "two"):
        (tmp_path / "top" / name).mkdir(parents=True)
    rmdir = os.rmdir

    def refused(name, **where):
        if name == "stuck":
            raise PermissionError(1, "Operation not permitted", name)
        rmdir(name, **where)

    monkeypatch.setattr(os, "rmdir", refused)
    with pytest.raises(PermissionError, match="stuck"):
        remove(tmp_path / "top")
    assert [path.name for path in (tmp_path / "top").iterdir()] == ["stuck"]


def test_where_much_cannot_be_removed_it_is_given_up_after_some_of_it(tmp_path, monkeypatch):
    """A script may leave millions of files, and each that stays is remembered."""
    tried = []

    def refused(name, **where):
        tried.append(name)
        raise PermissionError(1, "Operation not permitted", name)

    for number in range(50):
        (tmp_path / str(number)).touch()
    monkeypatch.setattr(removing, "_MOST_STUCK", 3)
    monkeypatch.setattr(os, "unlink", refused)
    with pytest.raises(PermissionError):
        remove(tmp_path)
    assert len(tried) == 4


def test_where_folders_cannot_be_opened_locked_files_are_removed_by_path(tmp_path, monkeypatch):
    """As on Windows, where a file that is only to be read cannot be removed."""
    (tmp_path / "top" / "inner").mkdir(parents=True)
    (tmp_path / "top" / "inner" / "locked").touch(mode=0o400)
    unlink = os.unlink

    def refused(name, **where):
        if not os.stat(name, **where).st_mode & stat.S_IWRITE:
            raise PermissionError(13, "Access is denied", name)
        unlink(name, **where)

    monkeypatch.setattr(removing, "_BY_DESCRIPTOR", False)
    monkeypatch.setattr(os, "unlink", refused)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        remove(tmp_path / "top")
    assert list(tmp_path.iterdir()) == []


def test_folders_that_their_script_has_locked_are_removed(tmp_path):
    as_an_ordinary_user(
        """
from ravnest.removing import remove
for mode in (0, 0o500):
    for inner in ("x", "x/y", "x/y/z"):
        (root / "tree" / inner).mkdir(parents=True); (root / "tree" / inner / "file").touch()
    for inner in ("x/y/z", "x/y", "x", "."):
        os.chmod(root / "tree" / inner, mode)
    remove(root / "tree")
remove(locked)
assert list(root.iterdir()) == []
""",
        tmp_path,
    )


def test_folders_that_their_script_has_locked_are_moved(tmp_path):
    """A folder of mode 0500 could not be put away, and the agent ended at every start."""
    as_an_ordinary_user(
        """
from ravnest.removing import move
(root / "gone").mkdir(); (root / "work").mkdir()
move(locked, root / "gone" / "a")
read_only = root / "work" / "b"; read_only.mkdir(); os.chmod(read_only, 0o500)
move(read_only, root / "gone" / "b")
assert sorted(path.name for path in (root / "gone").iterdir()) == ["a", "b"]
assert (root / "gone" / "a" / "file").exists()
""",
        tmp_path,
    )


def test_a_link_is_moved_and_not_what_it_leads_to(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "link").symlink_to("outside")
    move(tmp_path / "link", tmp_path / "moved")
    assert {path.name for path in tmp_path.iterdir()} == {"outside", "moved"}
    assert (tmp_path / "moved").is_symlink()
