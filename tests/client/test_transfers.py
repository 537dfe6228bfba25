"""Files up and down: whole, resumed, damaged, given up."""

import hashlib
import threading

import pytest
from scripted import Scripted, body_of, break_off, say

from ravnest.client import transfers
from ravnest.client.http import BrokenOffError, hash_file
from ravnest.client.transfers import download, upload, upload_blob
from ravnest.errors import ServerError

CONTENT = bytes(range(256)) * 4096
HASH = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Attempts follow each other without a pause."""
    monkeypatch.setattr(transfers, "_FIRST_DELAY_S", 0.0)


@pytest.fixture
def server():
    with Scripted() as running:
        yield running


class Shelf:
    """Serves a file with ranges; `breaks` says after how many bytes each of the answers ends."""

    def __init__(self, content=CONTENT, breaks=(), ranges=True):
        self.content, self.breaks, self.ranges = content, list(breaks), ranges
        self.starts = []

    def __call__(self, handler):
        asked = handler.headers.get("Range", "")
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.ranges else 0
        self.starts.append(start)
        if start > len(self.content):
            say(handler, 416, "")
            return
        rest = self.content[start:]
        handler.send_response(206 if asked and self.ranges else 200)
        handler.send_header("Content-Length", str(len(rest)))
        handler.end_headers()
        if self.breaks:
            handler.wfile.write(rest[: self.breaks.pop(0)])
            break_off(handler)
        else:
            handler.wfile.write(rest)


def test_a_file_arrives_whole_and_in_its_place(server, tmp_path):
    server.answers["GET", "/api/v1/f"] = Shelf()
    target, told = tmp_path / "deep" / "file", []
    with server.client() as client:
        download(client, "/f", target, sha256=HASH, size=len(CONTENT), progress=told.append)
    assert target.read_bytes() == CONTENT
    assert told[-1] == len(CONTENT)
    assert [path.name for path in target.parent.iterdir()] == ["file"]


def test_what_broke_off_is_taken_up_where_it_was(server, tmp_path):
    shelf = server.answers["GET", "/api/v1/f"] = Shelf(breaks=[300_000, 0, 500_000])
    with server.client() as client:
        download(client, "/f", tmp_path / "file", sha256=HASH, size=len(CONTENT))
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert shelf.starts[0] == 0
    assert len(shelf.starts) == 4
    assert shelf.starts == sorted(shelf.starts)
    assert shelf.starts[-1] > 0


def test_a_later_call_goes_on_with_the_part_that_is_there(server, tmp_path):
    shelf = server.answers["GET", "/api/v1/f"] = Shelf()
    (tmp_path / "file.part").write_bytes(CONTENT[:1000])
    with server.client() as client:
        download(client, "/f", tmp_path / "file", sha256=HASH, size=len(CONTENT))
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert shelf.starts == [1000]


@pytest.mark.parametrize("damaged", [b"\0" * 1000, bytes(len(CONTENT))])
def test_a_part_that_was_damaged_costs_nothing_but_time(server, tmp_path, damaged):
    """The server was blamed for what a disk had lost."""
    shelf = server.answers["GET", "/api/v1/f"] = Shelf()
    (tmp_path / "file.part").write_bytes(damaged)
    with server.client() as client:
        download(client, "/f", tmp_path / "file", sha256=HASH, size=len(CONTENT))
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert shelf.starts[-1] == 0


def test_a_part_that_is_complete_already_needs_no_request(server, tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT)
    with server.client() as client:
        download(client, "/f", tmp_path / "file", sha256=HASH, size=len(CONTENT))
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.seen == []


def test_an_empty_file_is_a_file(server, tmp_path):
    server.answers["GET", "/api/v1/f"] = Shelf(b"")
    with server.client() as client:
        download(client, "/f", tmp_path / "file", sha256=hashlib.sha256(b"").hexdigest(), size=0)
    assert (tmp_path / "file").read_bytes() == b""


def test_a_server_without_ranges_begins_again(server, tmp_path):
    server.answers["GET", "/api/v1/f"] = Shelf(breaks=[300_000], ranges=False)
    with server.client() as client:
        download(client, "/f", tmp_path / "file", sha256=HASH, size=len(CONTENT))
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_part_of_something_longer_is_thrown_away(server, tmp_path):
    server.answers["GET", "/api/v1/f"] = Shelf(CONTENT[:500])
    (tmp_path / "file.part").write_bytes(b"x" * 1000)
    with server.client() as client:
        download(client, "/f", tmp_path / "file", sha256=hashlib.sha256(CONTENT[:500]).hexdigest())
    assert (tmp_path / "file").read_bytes() == CONTENT[:500]


@pytest.mark.parametrize("size", [len(CONTENT), None])
def test_another_content_is_refused_and_nothing_is_kept(server, tmp_path, size):
    server.answers["GET", "/api/v1/f"] = Shelf(CONTENT[:-1] + b"x")
    with server.client() as client, pytest.raises(ServerError, match="another content"):
        download(client, "/f", tmp_path / "file", sha256=HASH, size=size)
    assert list(tmp_path.iterdir()) == []


def test_more_than_was_announced_is_not_taken(server, tmp_path):
    server.answers["GET", "/api/v1/f"] = Shelf()
    with server.client() as client, pytest.raises(ServerError, match="larger than the 1000"):
        download(client, "/f", tmp_path / "file", sha256=HASH, size=1000)


def test_the_hash_may_come_with_the_answer(server, tmp_path):
    server.answers["GET", "/api/v1/f"] = lambda handler: say(handler, 200, b"x", X_Sha256=HASH)
    with server.client() as client, pytest.raises(ServerError, match="another content"):
        download(client, "/f", tmp_path / "file")


def test_nothing_new_for_several_attempts_is_the_end(server, tmp_path):
    shelf = server.answers["GET", "/api/v1/f"] = Shelf(breaks=[1000] + [0] * 100)
    with server.client() as client, pytest.raises(BrokenOffError):
        download(client, "/f", tmp_path / "file", sha256=HASH, size=len(CONTENT))
    assert len(shelf.starts) < 10


def test_progress_may_end_a_download_which_goes_on_later(server, tmp_path):
    shelf = server.answers["GET", "/api/v1/f"] = Shelf()

    def enough(done):
        raise InterruptedError

    with server.client() as client:
        with pytest.raises(InterruptedError):
            download(client, "/f", tmp_path / "file", sha256=HASH, progress=enough)
        assert not (tmp_path / "file").exists()
        download(client, "/f", tmp_path / "file", sha256=HASH)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert shelf.starts[1] > 0


def test_a_file_is_sent_with_its_hash(server, tmp_path):
    got = []

    def take(handler):
        got.append((body_of(handler), handler.headers["X-Sha256"]))
        say(handler, 200, "")

    server.answers["PUT", "/api/v1/f"] = take
    (tmp_path / "file").write_bytes(CONTENT)
    told = []
    with server.client() as client:
        found = upload(client, "/f", tmp_path / "file", progress=told.append)
    assert found == (HASH, len(CONTENT)) == hash_file(tmp_path / "file")
    assert got == [(CONTENT, HASH)]
    assert told[-1] == len(CONTENT)


def test_an_upload_that_breaks_is_tried_again_and_a_refusal_is_not(server, tmp_path):
    (tmp_path / "file").write_bytes(CONTENT)
    turns = []

    def take(handler):
        turns.append(1)
        if len(turns) == 1:
            break_off(handler)
            return
        body_of(handler)
        say(handler, 413, '{"error": "too much", "code": "too_large"}')

    server.answers["PUT", "/api/v1/f"] = take
    with server.client() as client, pytest.raises(ServerError, match="too much"):
        upload(client, "/f", tmp_path / "file")
    assert len(turns) == 2


def test_an_upload_that_the_server_lost_patience_with_is_tried_again(server, tmp_path):
    (tmp_path / "file").write_bytes(CONTENT)
    turns = []

    def take(handler):
        body_of(handler)
        turns.append(1)
        if len(turns) == 1:
            say(handler, 408, '{"error": "nothing has come for 60 seconds", "code": "late"}')
        else:
            say(handler, 204, "")

    server.answers["PUT", "/api/v1/f"] = take
    with server.client() as client:
        upload(client, "/f", tmp_path / "file")
    assert len(turns) == 2


def test_what_the_server_has_is_not_sent_again(server, tmp_path):
    (tmp_path / "file").write_bytes(CONTENT)
    server.answers["HEAD", f"/api/v1/blobs/{HASH}"] = lambda handler: say(handler, 200, "")
    with server.client() as client:
        assert upload_blob(client, tmp_path / "file") == (HASH, len(CONTENT))
    assert [method for method, _, _ in server.seen] == ["HEAD"]


def test_a_download_can_be_ended_after_its_first_byte(server, tmp_path):
    """The server kept the rest to itself, and nobody got to say that it is not wanted."""
    ended = threading.Event()

    def drip(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b"1")
        handler.wfile.flush()
        ended.wait(30)

    class EndedError(Exception):
        pass

    def progress(so_far):
        raise EndedError(so_far)

    server.answers["GET", "/api/v1/f"] = drip
    with server.client() as client, pytest.raises(EndedError, match="1"):
        download(client, "/f", tmp_path / "file", size=1000, progress=progress)
    assert not ended.is_set()
    ended.set()


def test_whoever_tries_again_itself_is_told_of_the_first_failure(server, tmp_path):
    shelf = server.answers["GET", "/api/v1/f"] = Shelf(breaks=[10, 10])
    with server.client() as client:
        for _ in range(2):
            with pytest.raises(BrokenOffError):
                download(client, "/f", tmp_path / "f", sha256=HASH, attempts=1)
        download(client, "/f", tmp_path / "f", sha256=HASH, attempts=1)
    assert shelf.starts == [0, 10, 20]
