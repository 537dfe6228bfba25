"""Files of an assignment that come slowly, in pieces, or not at all."""

import asyncio
import hashlib
import types

import pytest
from made import assignment

from ravnest.agent import fetching
from ravnest.agent.folders import AssignmentFolder
from ravnest.agent.keeping import KeptFiles
from ravnest.api.limits import FileRef
from ravnest.client.http import BrokenOffError

ROWS = b"0123456789"
FILE = FileRef(path="data/train/0.bin", sha256=hashlib.sha256(ROWS).hexdigest(), size=len(ROWS))


class SlowServer:
    """Sends some bytes, or none, in five minutes; then the line breaks."""

    def __init__(self, monkeypatch, bytes_at_once):
        self.now, self.sent, self.bytes_at_once = 0.0, 0, bytes_at_once
        clock = types.SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr(fetching, "time", clock)
        monkeypatch.setattr(fetching, "delay_s", lambda _: 0.0)
        monkeypatch.setattr(fetching, "download", self.download)

    def download(self, client, path, target, *, sha256, size, progress, attempts):
        assert attempts == 1, "tried again in two places, and far more often than either says"
        self.now += 300.0
        if self.bytes_at_once:
            self.sent += self.bytes_at_once
            progress(self.sent)
        if self.sent < size:
            raise BrokenOffError("the line is broken")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(ROWS)


def fetch(tmp_path, on_share=lambda _: None, *, bucket=None, name="a1"):
    folder = AssignmentFolder(tmp_path / "work" / name)
    folder.path.mkdir(parents=True, exist_ok=True)
    kept, given = KeptFiles(tmp_path), assignment(files=(FILE,))
    asyncio.run(fetching.fetch(None, given, folder, kept, on_share=on_share, bucket=bucket))
    return folder.path / FILE.path


def test_a_file_may_take_as_long_as_it_keeps_coming(tmp_path, monkeypatch):
    slow = SlowServer(monkeypatch, bytes_at_once=1)
    assert fetch(tmp_path).read_bytes() == ROWS
    assert slow.now == 3000.0


def test_without_a_byte_it_is_given_up(tmp_path, monkeypatch):
    slow = SlowServer(monkeypatch, bytes_at_once=0)
    with pytest.raises(BrokenOffError, match="the line is broken"):
        fetch(tmp_path)
    assert slow.now == 900.0


def test_bytes_that_come_twice_are_not_more_than_all(tmp_path, monkeypatch):
    """What a disk has lost is fetched again."""

    def download(client, path, target, *, progress, **_):
        for so_far in (8, 3, 10):
            progress(so_far)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(ROWS)

    shares = []
    monkeypatch.setattr(fetching, "download", download)
    fetch(tmp_path, shares.append)
    assert shares == [0.8, 0.8, 1.0]


def test_only_what_comes_over_the_line_takes_of_its_speed(tmp_path, monkeypatch):
    """Files that were there already, or kept, waited as if they were fetched again."""
    SlowServer(monkeypatch, bytes_at_once=10)
    taken, shares = [], []
    bucket = types.SimpleNamespace(take=lambda size: taken.append(size) or 0.0)
    # Fetched, there already, and kept of another assignment of the job.
    for name in ("a1", "a1", "a2"):
        fetch(tmp_path, shares.append, bucket=bucket, name=name)
        assert taken == [10]
    assert shares == [1.0, 1.0, 1.0]
