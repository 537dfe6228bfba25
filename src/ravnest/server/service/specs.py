"""Jobs as they were handed in: stored once, large, and read only when they are needed."""

import re

from ravnest.server.store import Reading

_HASH = re.compile(r'"sha256":"([0-9a-f]{64})"')


def hashes_in(spec: bytes) -> set[str]:
    """Of every file of a job, without decoding all of it."""
    return set(_HASH.findall(spec.decode()))


def hashes_needed(db: Reading) -> set[str]:
    """By any job."""
    found: set[str] = set()
    for _, body in db.records("spec"):
        found |= hashes_in(body)
    return found
