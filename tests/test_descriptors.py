"""How many files a server and an agent may have open, and how those of strangers are opened."""

import os
import resource

import pytest

from ravnest.descriptors import allow_many_files, for_callers, open_plain


def test_a_process_may_open_as_many_files_as_the_system_allows():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        allow_many_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_callers_get_half_of_what_a_process_may_open():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (600, hard))
        assert for_callers() == 300
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_is_no_file_is_not_opened_and_not_waited_for(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        with open_plain(tmp_path / "file") as file, open_plain("file", within=folder) as same:
            assert file.read() == same.read() == b"content"
        for name, why in {
            "folder": "folder is not a file",
            "link": "link is a link|symbolic links",
            "pipe": "pipe is not a file",
            "missing": "No such file",
        }.items():
            with pytest.raises(OSError, match=why):
                open_plain(tmp_path / name)
            with pytest.raises(OSError, match=why):
                open_plain(name, within=folder)
    finally:
        os.close(folder)


def test_no_byte_is_taken_for_the_end_of_a_line(tmp_path, monkeypatch):
    """Windows does, unless it is told that the file is no text."""
    (tmp_path / "file").touch()
    opened, binary, really = [], 1 << 30, os.open

    def open_(path, flags, **options):
        opened.append(flags)
        return really(path, flags & ~binary, **options)

    monkeypatch.setattr(os, "O_BINARY", binary, raising=False)
    monkeypatch.setattr(os, "open", open_)
    open_plain(tmp_path / "file").close()
    assert [flags & binary for flags in opened] == [binary]
