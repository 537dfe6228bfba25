"""The records that a server begins with, every one of them looked at: a damaged one has a name."""

import logging
from typing import TypeVar

import msgspec

from ravnest.api.limits import NOT_UNDERSTOOD
from ravnest.errors import ServerError
from ravnest.server.access import TokenRecord
from ravnest.server.service.views import Progress
from ravnest.server.state.records import Job, Killer, Part, Provider, Run
from ravnest.server.store import Store

logger = logging.getLogger("ravnest.server")

_Record = TypeVar("_Record", bound=msgspec.Struct)

_NEEDED: dict[str, type[msgspec.Struct]] = {
    "provider": Provider,
    "job": Job,
    "run": Run,
    "part": Part,
    "token": TokenRecord,
    "killer": Killer,
}
_SHOWN: dict[str, type[msgspec.Struct]] = {"progress": Progress}
"""What nothing follows from."""


def read_all(store: Store) -> dict[str, list[bytes]]:
    """Bodies by kind. A `ServerError` if one cannot be read: what a server that begins without it
    would do to a job, or to those who take part in it, is worse than not beginning."""
    found: dict[str, list[bytes]] = {}
    jobs: set[str] = set()
    for kind, type in {**_NEEDED, **_SHOWN}.items():
        found[kind] = []
        for id, body in _ask(store, kind):
            record = _decoded(kind, id, body, type)
            if isinstance(record, Job):
                jobs.add(record.id)
            # Somebody has removed a damaged record, and with it what these are of.
            if isinstance(record, Run | Part) and record.job not in jobs:
                logger.warning("the record of %s %s is of no job, and is left out", kind, id)
            elif record is not None:
                found[kind].append(body)
    return found


def _ask(store: Store, kind: str) -> list[tuple[str, bytes]]:
    return store.ask(lambda db: db.records(kind)).result()


def _decoded(kind: str, id: str, body: bytes, type: type[_Record]) -> _Record | None:
    try:
        return msgspec.json.decode(body, type=type)
    except NOT_UNDERSTOOD as error:
        if kind in _NEEDED:
            raise ServerError(
                f"the record of {kind} {id!r} is damaged ({error}); restore the records from a "
                "backup, or do without it: DELETE FROM ravnest_records WHERE "
                f"kind = '{kind}' AND id = '{id}'"
            ) from error
        logger.warning("the %s of job %s cannot be read: %s", kind, id, error)
        return None
