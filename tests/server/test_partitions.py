"""A provider can read the rows of its own cluster, and no others: by its files, over HTTP."""

import asyncio

import pytest
import torch
from a_job import ROWS, make_job, submit, upload
from fake_work import fetch
from safetensors.torch import load_file
from servers import running_server
from test_jobs import pool

from ravnest.api.control import Assign
from ravnest.data.dividing import rows_of_cluster
from ravnest.server.service.problems import Refusal
from ravnest.server.service.runfiles import _inside


def rows_in(folder, field):
    """All of them that are on a provider's disk, whatever the assignment says of them."""
    files = sorted(folder.glob(f"data/train/{field}-*"))
    return torch.cat([load_file(file)[field] for file in files]) if files else None


def test_a_provider_gets_the_rows_of_its_cluster_and_no_others(tmp_path):
    spec, files = make_job(tmp_path / "job", planning={"min_cluster_size": 2, "idle_gain": 1.0})
    whole = {
        field.name: torch.cat(
            [load_file(files[shard.files[place].sha256])[field.name] for shard in spec.train.shards]
        )
        for place, field in enumerate(spec.train.fields)
    }

    async def story(server, requester):
        async with pool(server, 6) as agents:
            submit(requester, spec)
            work = {agent: (await agent.expect(Assign, 90)).assignment for agent in agents}
            for agent, assignment in work.items():
                await fetch(agent, assignment, tmp_path / assignment.id)
            clusters = {assignment.clusters for assignment in work.values()}
            assert clusters == {3}
            for agent, assignment in work.items():
                own = rows_of_cluster(ROWS, assignment.cluster, 3)
                is_root = assignment.role == "Root"
                for field, has in (("x", is_root), ("y", assignment.role == "Leaf")):
                    found = rows_in(tmp_path / assignment.id, field)
                    if has:
                        assert torch.equal(found, whole[field][own.start : own.stop])
                    else:
                        assert found is None
                assert sum(s.rows for s in assignment.train.data.shards) == len(own)
                async with agent.http() as client:
                    theirs = {f.sha256 for other in work.values() for f in other.files}
                    handed_in = {f.sha256 for f in spec.files().values()}
                    for sha256 in (theirs | handed_in) - {f.sha256 for f in assignment.files}:
                        path = f"assignments/{assignment.id}/files/{sha256}"
                        assert (await client.get(path)).status_code == 404

    with (
        running_server(tmp_path / "server") as server,
        server.client(server.token("requester")) as requester,
    ):
        upload(requester, files)
        asyncio.run(story(server, requester))


@pytest.mark.parametrize("name", ["../../../operator.token", "link", "folder/file", "/etc/passwd"])
def test_planning_cannot_have_a_file_of_the_server_handed_out(tmp_path, name):
    run = tmp_path / "jobs" / "j" / "run"
    (run / "node_data").mkdir(parents=True)
    (tmp_path / "operator.token").write_text("secret")
    (run / "link").symlink_to(tmp_path / "operator.token")
    (run / "folder").symlink_to(tmp_path)
    (tmp_path / "file").write_text("secret")
    (run / "node_data" / "plan.json").write_text("{}")
    assert _inside(run, "node_data/plan.json").read_text() == "{}"
    with pytest.raises(Refusal, match="not in the folder of its run"):
        _inside(run, name)
