"""What is not as the server has left it is named in a sentence, or does not matter."""

import errno
import os
import sqlite3
from pathlib import Path

import pytest
from servers import running_server

from ravnest.api.limits import encode
from ravnest.errors import ServerError
from ravnest.server.changes import Put
from ravnest.server.folders import Folders
from ravnest.server.state.records import Run
from ravnest.server.store import open_store


@pytest.fixture
def folders(tmp_path):
    """Of a server that has been there."""
    with running_server(tmp_path):
        return Folders(tmp_path)


def put(folders, kind, id, body):
    store = open_store(folders.database)
    store.write([Put(kind, id, body)]).result()
    store.close()


@pytest.mark.parametrize("kind", ["provider", "job", "run", "part", "token", "killer"])
@pytest.mark.parametrize("body", [b"{nonsense", b"[]", b"{}"])
def test_a_damaged_record_is_named_with_what_can_be_done(folders, kind, body):
    put(folders, kind, "x1", body)
    said = f"record of {kind} 'x1' is damaged .*backup.*kind = '{kind}' AND id = 'x1'"
    with pytest.raises(ServerError, match=said), running_server(folders.root):
        pass
    with sqlite3.connect(folders.database) as connection:
        connection.execute(f"DELETE FROM ravnest_records WHERE kind = '{kind}' AND id = 'x1'")
    connection.close()
    with running_server(folders.root):
        pass


def test_what_is_left_of_a_job_whose_record_was_removed_does_no_harm(folders, caplog):
    run = Run(job="x1", number=1, began_at=1.0)
    put(folders, "run", "x1", encode(run))
    with running_server(folders.root) as server:
        assert server.ready.service.world.runs == {}
    assert "the record of run x1 is of no job" in caplog.text


def test_how_far_a_job_was_is_not_worth_a_server(folders, caplog):
    put(folders, "progress", "x1", b"!")
    with running_server(folders.root) as server:
        assert server.ready.service.reports.progress == {}
    assert "the progress of job x1 cannot be read" in caplog.text


def test_records_that_are_not_text_are_named(folders):
    with sqlite3.connect(folders.database) as connection:
        connection.execute(
            "INSERT INTO ravnest_records VALUES ('job', 'x1', CAST(x'fffe' AS TEXT))"
        )
    connection.close()
    with (
        pytest.raises(ServerError, match=r"server\.sqlite cannot be read.*backup"),
        running_server(folders.root),
    ):
        pass


def test_an_operator_token_that_is_not_even_text_is_made_anew(folders):
    folders.operator_token.write_bytes(b"\xff\xfe")
    with running_server(folders.root) as server, server.client(server.operator) as client:
        assert client.get("tokens").status_code == 200


def test_links_that_lead_nowhere_and_folders_among_files_are_left_alone(folders):
    (folders.blobs / "ab" / "folder").mkdir(parents=True)
    os.symlink("/nowhere", folders.blobs / "ab" / "link")
    with running_server(folders.root) as server:
        files = server.ready.service.files
        assert files.held_bytes == 0
        assert files.forget_old(set(), float("inf")) == 0
    assert {path.name for path in (folders.blobs / "ab").iterdir()} == {"folder", "link"}


@pytest.mark.parametrize("name", ["blobs", "jobs"])
def test_a_folder_of_two_file_systems_is_not_served(tmp_path, monkeypatch, name):
    """Files could not be moved from where they are received; all of each would come in vain."""
    replace = Path.replace

    def as_the_system_does(path, target):
        if tmp_path / name in Path(target).parents:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", as_the_system_does)
    said = f"{name} is on another file system than .*incoming"
    with pytest.raises(ServerError, match=said), running_server(tmp_path):
        pass
    assert not [*(tmp_path / "incoming").iterdir(), *(tmp_path / name).iterdir()]


def test_a_disk_that_is_full_at_the_start_is_not_taken_for_two(tmp_path, monkeypatch):
    def full(path, **_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folders = Folders(tmp_path)
    folders.make()
    monkeypatch.setattr(Path, "touch", full)
    folders.must_be_one()
