"""Files that are written whole or not at all."""

import os
import stat
import time

import pytest

from ravnest import whole
from ravnest.whole import PRIVATE, must_be_plain, write_whole


def test_two_processes_may_write_a_file_at_once(tmp_path, monkeypatch):
    """One moved what the other had begun to write to its place, and the other found nothing."""
    fsync, others, path = os.fsync, [b"other"], tmp_path / "file"

    def meanwhile(descriptor):
        fsync(descriptor)
        if others:
            write_whole(path, others.pop())

    monkeypatch.setattr(whole.os, "fsync", meanwhile)
    write_whole(path, b"one")
    assert path.read_bytes() == b"one"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_a_killed_process_was_writing_does_not_stay_for_good(tmp_path):
    path, now = tmp_path / "key.pem", time.time()
    left, writing = tmp_path / ".key.pem.0123abcd", tmp_path / ".key.pem.4567abcd"
    others = [
        tmp_path / name for name in (".key.pem.old", ".other.pem.0123abcd", "key.pem.0123abcd")
    ]
    for each in (left, writing, *others):
        each.write_text("secret")
        os.utime(each, (now, now if each == writing else now - 3600))
    write_whole(path, b"new", PRIVATE)
    assert stat.S_IMODE(path.stat().st_mode) == PRIVATE
    assert set(tmp_path.iterdir()) == {path, writing, *others}


def test_a_link_on_the_way_is_found_below_the_folders_of_the_root(tmp_path):
    (tmp_path / "disk" / "one").mkdir(parents=True)
    (tmp_path / "jobs").symlink_to("disk")
    must_be_plain(tmp_path / "jobs" / "one" / "new", tmp_path)
    (tmp_path / "disk" / "two").symlink_to("one")
    with pytest.raises(OSError, match="a link on the way"):
        must_be_plain(tmp_path / "jobs" / "two" / "new", tmp_path)
