"""Files that others made, read without trust: plain, small enough, and what the manifest says.

Sizes are looked at before bytes are read, hashes before bytes are parsed. A link, a pipe or a
folder is refused: a link would let a package name what lies elsewhere.
"""

import hashlib
import stat
from pathlib import Path
from typing import TypeVar

import msgspec

from ravnest.api.limits import NOT_UNDERSTOOD
from ravnest.errors import PackageError
from ravnest.stage.graph import FileEntry, Versioned

_Document = TypeVar("_Document", bound=msgspec.Struct)


def plain_file(path: Path) -> int:
    """Its size, if it is a file of its own and not a link, a pipe or a directory."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        raise PackageError(f"{path.name} is missing") from None
    if not stat.S_ISREG(status.st_mode):
        raise PackageError(f"{path.name} is not a plain file")
    return status.st_size


def read_document(
    path: Path, kind: type[_Document], *, format: int, limit: int, entry: FileEntry | None = None
) -> _Document:
    """A JSON file as data; with `entry`, only if it is the file the manifest speaks of."""
    if plain_file(path) > limit:
        raise PackageError(f"{path.name} is larger than the {limit} bytes allowed")
    content = path.read_bytes()
    if entry is not None:
        _compare(entry, len(content), hashlib.sha256(content).hexdigest())
    try:
        version = msgspec.json.decode(content, type=Versioned).format
        if version != format:
            raise PackageError(f"{path.name} has format {version}; this release reads {format}")
        return msgspec.json.decode(content, type=kind)
    except NOT_UNDERSTOOD as error:
        raise PackageError(f"{path.name} is not a valid {kind.__name__}: {error}") from error


def check_file(path: Path, entry: FileEntry, limit: int) -> None:
    """Refuse a file that is too large or not the one the manifest speaks of."""
    size = plain_file(path)
    if size > limit:
        raise PackageError(f"{entry.name} has {size} bytes, more than the {limit} allowed")
    _compare(entry, size, sha256_of(path) if size == entry.size else "")


def _compare(entry: FileEntry, size: int, sha256: str) -> None:
    if size != entry.size:
        raise PackageError(f"{entry.name} has {size} bytes, the manifest says {entry.size}")
    if sha256 != entry.sha256:
        raise PackageError(f"{entry.name} does not have the hash in the manifest")


def entry_of(path: Path) -> FileEntry:
    """The file as a manifest pins it."""
    return FileEntry(name=path.name, size=path.stat().st_size, sha256=sha256_of(path))


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
