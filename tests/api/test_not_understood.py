"""Whoever reads what others have written expects all three ways in which that may go wrong."""

from pathlib import Path

import pytest

from ravnest.agent import identity
from ravnest.api.limits import NOT_UNDERSTOOD
from ravnest.client import known
from ravnest.client.stream import ServerEvent
from ravnest.data.own import own_part
from ravnest.errors import RavnestError
from ravnest.planning.fusion import fuse_cluster
from ravnest.provider.document import read_document
from ravnest.rundir import RunDir
from ravnest.server import belonging
from ravnest.server.planjob.outcome import OUTCOME, PlanOrder
from ravnest.server.service import reading, work
from ravnest.server.state.records import Job
from ravnest.session.following import decoded
from ravnest.worker.orders import read_order

SRC = Path(__file__).parents[2] / "src" / "ravnest"


def written(folder, path, content):
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(content)
    return folder / path


def fuse(folder, content):
    written(folder, "plan.json", content)
    fuse_cluster(folder, 0, folder / "trained")


def part_of(folder, content):
    written(folder, "order.json", content)
    own_part(folder=folder)


READERS = {
    "which records belong to a folder": (lambda _, it: belonging._read(it, "here"), "id"),
    "a record": (lambda _, it: reading._decoded("job", "j1", it, Job), "id"),
    "who a provider is": (lambda to, it: identity._read(written(to, "i.json", it)), "name"),
    "servers that were used": (
        lambda to, it: known.read_known(written(to, "servers.json", it).parent),
        "servers",
    ),
    "news": (lambda _, it: decoded(ServerEvent("overview", it)), "jobs"),
    "a node's document": (
        lambda to, it: read_document(
            RunDir(written(to, "nodes/node_0.json", it).parents[1]), "node_0"
        ),
        "local_host",
    ),
    "a plan": (fuse, "plan_id"),
    "a script's data": (part_of, "listen"),
    "an order": (lambda to, it: read_order(written(to, "order.json", it).parent), "listen"),
}


@pytest.mark.parametrize("damage", [b'{"%s": "\xff"}', b'{"no %s": ' + b"[" * 100_000])
@pytest.mark.parametrize(("read", "field"), READERS.values(), ids=list(READERS))
def test_what_is_damaged_is_told_in_a_sentence(tmp_path, read, field, damage):
    with pytest.raises(RavnestError):
        read(tmp_path, damage % field.encode())


def test_what_a_process_leaves_may_be_damaged(tmp_path):
    """It ends as the outcome of its own job (`tests/server/test_takeover.py`), and is read once."""
    (tmp_path / OUTCOME).write_bytes(b'{"new": ' + b"[" * 100_000)
    with pytest.raises(NOT_UNDERSTOOD):
        work._outcome(tmp_path, PlanOrder(task="check"), None)
    assert work._outcome(tmp_path, PlanOrder(task="check"), None).crashed


def test_nobody_expects_only_one_of_them():
    """`NOT_UNDERSTOOD` is all three."""
    partly = [
        str(path.relative_to(SRC))
        for path in SRC.rglob("*.py")
        if "msgspec.DecodeError" in path.read_text()
    ]
    assert partly == ["api/limits.py"]
