"""Which records and which folder belong together, so that a mistake costs nobody their files.

Both hold the same random word, made when they first met, and where the other one was then. A folder
of a release that knew nothing of this, or records that have lost their word, are judged by their
jobs: ids are random, so one that both have is proof enough.
"""

import secrets
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from ravnest.api.limits import NOT_UNDERSTOOD
from ravnest.errors import ServerError
from ravnest.server.changes import Put
from ravnest.server.folders import Folders
from ravnest.server.state.words import counted
from ravnest.server.store import Store
from ravnest.whole import PRIVATE, write_whole

_KIND, _ID = "identity", "store"


class Identity(msgspec.Struct, frozen=True):
    id: str
    other: str
    """Where the other one is: of records the folder, of a folder the records."""


def belong_together(folders: Folders, store: Store, url: str) -> None:
    """From here on they do; a `ServerError` if one of them is another's."""
    where = shown(url)
    body = store.ask(lambda db: db.record(_KIND, _ID)).result()
    of_store = None if body is None else _read(body, where)
    of_folder = None
    if folders.identity.exists():
        of_folder = _read(folders.identity.read_bytes(), str(folders.identity))
    if of_store is None or of_folder is None or of_store.id != of_folder.id:
        _refuse_strangers(folders, store, where, of_store, of_folder)
    known = of_store or of_folder
    id = secrets.token_hex(8) if known is None else known.id
    # First the records: if nothing more comes of it, they are taken for those of this folder.
    if of_store != (found := Identity(id, str(folders.root))):
        body = msgspec.json.encode(found)
        store.write([Put(_KIND, _ID, body)]).result()
    assert body is not None
    store.expect(_KIND, _ID, body)
    if of_folder != (found := Identity(id, where)):
        write_whole(folders.identity, msgspec.json.encode(found), PRIVATE)


def shown(url: str) -> str:
    """Where records are, in words that may be kept: without a password."""
    if "://" in url and not url.startswith("sqlite:"):
        try:
            parts = urlsplit(url)
            return f"PostgreSQL at {parts.hostname or 'this machine'}, database {parts.path[1:]}"
        except ValueError:  # PostgreSQL takes more than this does
            return "PostgreSQL"
    return str(Path(url.removeprefix("sqlite:///")).absolute())


def _read(content: bytes, where: str) -> Identity:
    try:
        return msgspec.json.decode(content, type=Identity)
    except NOT_UNDERSTOOD as error:
        raise ServerError(
            f"which records and which folder belong together cannot be read from {where} "
            f"({error}); restore it from a backup, or, if you are sure that they do, remove it"
        ) from error


def _refuse_strangers(
    folders: Folders,
    store: Store,
    where: str,
    of_store: Identity | None,
    of_folder: Identity | None,
) -> None:
    """Those that do not have the same word, and nothing else that would show that they match."""
    known = {id for id, _ in store.ask(lambda db: db.records("job")).result()}
    new = not known and not store.ask(lambda db: db.records("token")).result()
    there = {path.name for path in folders.jobs.iterdir() if path.is_dir()}
    if of_store is None or of_folder is None:
        if known & there:
            return
        at_stake = any(map(folders.holds_results, there)) or (new and bool(there))
        if of_folder is None and not at_stake and (of_store is None or not known):
            return
    said = f"{folders.root} holds the files of {counted(len(there), 'job')}"
    if of_folder is not None:
        said += f" and belongs to the records in {of_folder.other}"
    said += f"; this server was given those in {where}, which "
    if of_store is not None:
        said += f"belong to the folder {of_store.other}"
    else:
        said += "are new" if new else "know none of these jobs"
    raise ServerError(
        f"{said}. Give the records that belong to this folder (--store URL, or put server.sqlite "
        "back), or another folder (--data DIR): an empty one, with new records, is a new "
        f"beginning. If these do belong together, {_remedy(folders, of_folder, there)}"
    )


def _remedy(folders: Folders, of_folder: Identity | None, there: set[str]) -> str:
    if of_folder is not None:
        return f"remove {folders.identity}"
    if not there:
        return f"put the jobs back into {folders.jobs}"
    return f"move what is in {folders.jobs} elsewhere"
