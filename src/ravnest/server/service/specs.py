"""Jobs as they were handed in: stored once, large, and read only when they are needed.

The hashes of their files are kept beside them: these are asked for whenever a job is deleted.

A job of many shards takes a second to decode, and while one call into C decodes it no other thread
runs. So it is read and written a few shards at a time, on a thread.
"""

import re
from collections.abc import Collection, Iterable

import msgspec
from msgspec import Raw

from ravnest.api.jobs import DataSpec, JobSpec, Shards, ShardSpec
from ravnest.api.limits import NOT_UNDERSTOOD
from ravnest.server.store import Reading

HASHES = "hashes"
"""The kind of those records."""
_AT_ONCE = 500
"""Shards: a few milliseconds."""
_HASH = re.compile(r'"sha256":"([0-9a-f]{64})"')


def hashes_in(spec: bytes) -> set[str]:
    """Of every file of a job, without decoding all of it."""
    return set(_HASH.findall(spec.decode()))


def noted(hashes: Collection[str]) -> bytes:
    return msgspec.json.encode(sorted(hashes))


def hashes_of(db: Reading, job: str) -> set[str]:
    body = db.record(HASHES, job)
    return set() if body is None else msgspec.json.decode(body, type=set[str])


def hashes_needed(db: Reading) -> set[str]:
    """By any job."""
    found: set[str] = set()
    for _, body in db.records(HASHES):
        found |= msgspec.json.decode(body, type=set[str])
    return found


def without_hashes(db: Reading, jobs: Iterable[str]) -> list[str]:
    noted = {id for id, _ in db.records(HASHES)}
    return [job for job in jobs if job not in noted]


def read_spec(content: bytes | bytearray) -> JobSpec:
    """As `msgspec.json.decode` would, with the same errors."""
    job = _members(content)
    shards = {}
    for name in ("train", "validation"):
        data = _members(job[name]) if name in job else {}
        try:
            pieces = msgspec.json.decode(data.get("shards", b"null"), type=list[Raw])
        except NOT_UNDERSTOOD:
            continue  # refused below, in the words that are usual for it
        if not _AT_ONCE < len(pieces) <= Shards:
            continue
        shards[name] = _read_shards(pieces, name)
        data["shards"] = Raw(b"[%s]" % pieces[0])
        job[name] = Raw(msgspec.json.encode(data))
    spec = msgspec.json.decode(msgspec.json.encode(job) if shards else content, type=JobSpec)
    whole = {
        name: msgspec.structs.replace(getattr(spec, name), shards=found)
        for name, found in shards.items()
    }
    return msgspec.structs.replace(spec, **whole)


def _members(content: bytes | bytearray | Raw) -> dict[str, Raw]:
    """What an object consists of, unread; nothing if it is none."""
    try:
        return msgspec.json.decode(content, type=dict[str, Raw])
    except NOT_UNDERSTOOD:
        return {}


def _read_shards(pieces: list[Raw], name: str) -> tuple[ShardSpec, ...]:
    decoder = msgspec.json.Decoder(ShardSpec)
    found = []
    for number, piece in enumerate(pieces):
        try:
            found.append(decoder.decode(piece))
        except msgspec.ValidationError as error:
            place, text = f"`$.{name}.shards[{number}]", str(error)
            said = text.replace("`$", place) if "`$" in text else f"{text} - at {place}`"
            raise msgspec.ValidationError(said) from None
    return tuple(found)


def write_spec(spec: JobSpec) -> bytes:
    """As `msgspec.json.encode` would."""
    members = {name: getattr(spec, name) for name in spec.__struct_fields__}
    for name in ("train", "validation"):
        if members[name] is not None:
            members[name] = _write_data(members[name])
    return msgspec.json.encode(members)


def _write_data(data: DataSpec) -> dict[str, object]:
    pieces = [
        msgspec.json.encode(data.shards[first : first + _AT_ONCE])[1:-1]
        for first in range(0, len(data.shards), _AT_ONCE)
    ]
    return {"fields": data.fields, "shards": Raw(b"[%s]" % b",".join(pieces))}
