"""Jobs as they were handed in: stored once, large, and read only when they are needed.

The hashes of their files are kept beside them: these are asked for whenever a job is deleted.
"""

import re
from collections.abc import Collection, Iterable

import msgspec

from ravnest.server.store import Reading

HASHES = "hashes"
"""The kind of those records."""
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
