"""`clusterize` on real small models and pools of 1 to 6 providers: what it writes and prints."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from pools import Mlp, run_clusterize, seeded, snapshot, write_pool

from ravnest.plan import Plan
from ravnest.provider.document import RingMember, read_document
from ravnest.rundir import RunDir
from ravnest.stage.package import load_package

BATCH = torch.rand(4, 32, generator=torch.Generator().manual_seed(1))
SPEEDS = (0.002, 0.001, 0.0015, 0.001, 0.001, 0.001)
POOLS = {
    "1 provider": (1,),
    "2 providers": (2,),
    "3 providers": (3,),
    "6 equal providers": (6,),
    "6 unequal providers": tuple({"gflops": speed} for speed in SPEEDS),
    "one too small": ({}, {}, {"ram": 1e-6}),
}


@pytest.fixture(scope="module", params=list(POOLS))
def planned(request, tmp_path_factory):
    folder = write_pool(tmp_path_factory.mktemp("node_data"), *POOLS[request.param])
    return run_clusterize(seeded(Mlp, 10), (BATCH,), folder)


# ---- files ------------------------------------------------------------------------------------


def test_the_pools_above_cover_what_they_should(planned, request):
    """Pipelines of 1 to 4 stages, two of different length side by side, an idle provider."""
    shapes = {
        "1 provider": ([1], 0),
        "2 providers": ([2], 0),
        "3 providers": ([3], 0),
        "6 equal providers": ([2, 2, 2], 0),
        "6 unequal providers": ([4, 2], 0),
        "one too small": ([2], 1),
    }
    found = [len(c.stages) for c in planned.plan.clusters], len(planned.plan.idle)
    assert found == shapes[request.node.callspec.params["planned"]]


def test_plan_json_is_the_plan_returned(planned):
    stored = msgspec.json.decode((planned.folder / "plan.json").read_bytes(), type=Plan)
    assert stored == planned.plan


def test_the_packages_are_where_the_files_say(planned):
    """One folder per stage, named by its address; nothing else is written."""
    expected = {"node_configs.json", "plan.json", "model.json", "nodes"}
    expected |= {f"nodes/node_{number}.json" for number in pool_ids(planned)}
    for cluster, stage in planned.stages:
        path = planned.package_folder(stage.index, cluster.id)
        folder = path.relative_to(planned.folder).as_posix()
        assert folder.replace("_8", ":8") == f"cluster_{cluster.id}/{stage.provider.address}"
        expected |= {f"cluster_{cluster.id}", folder}
        expected |= {f"{folder}/{name}" for name in PACKAGE_FILES}
        manifest = load_package(path).manifest
        facts = planned.plan.plan_id, cluster.id, stage.index
        assert (manifest.plan_id, manifest.cluster, manifest.stage) == facts
        assert planned.node(stage.provider.id)["template_path"] == path.as_posix()
    assert set(snapshot(planned.folder)) == expected


def test_a_provider_with_little_memory_is_told_to_compute_activations_again(tmp_path):
    batch = torch.rand(4096, 32)
    ample = run_clusterize(seeded(Mlp, 10), (batch,), write_pool(tmp_path / "a", 2))
    first = ample.plan.clusters[0].stages[0]
    assert (first.recompute, ample.node(first.provider.id)["recompute"]) == (False, False)
    assert "compute them again" not in ample.printed
    ram = (first.memory.total - first.memory.activations // 4) / 1e9
    tight = run_clusterize(
        seeded(Mlp, 10), (batch,), write_pool(tmp_path / "b", {"ram": ram}, {"ram": ram})
    )
    stages = tight.plan.clusters[0].stages
    assert [stage.recompute for stage in stages] == [True, False]
    assert all(stage.memory.total <= stage.provider.memory_bytes for stage in stages)
    assert tight.node(stages[0].provider.id)["recompute"] is True
    assert f"node_{stages[0].provider.id} has too little memory" in tight.printed
    assert "compute them again" in tight.printed


PACKAGE_FILES = ("manifest.json", "graph.json", "weights.safetensors")


def pool_ids(planned):
    return [*planned.plan.addresses, *(idle.provider.id for idle in planned.plan.idle)]


def test_every_provider_is_told_its_place(planned):
    """Roles, neighbours and sizes in node_<id>.json follow from the order of the stages."""
    for cluster, stage in planned.stages:
        node = planned.node(stage.provider.id)
        line, here = planned.addresses[cluster.id], stage.index
        before = line[here - 1] if here > 0 else None
        after = line[here + 1] if here + 1 < len(line) else None
        assert (node["node_id"], node["rank"]) == (stage.provider.id, cluster.id)
        assert f"{node['local_host']}:{node['local_port']}" == stage.provider.address
        assert node["ring_size"] == len(planned.plan.clusters)
        assert node["cluster_length"] == len(line)
        assert target(node, "forward") == after
        assert target(node, "backward") == before
        expected = "Root" if before is None else "Leaf" if after is None else "Stem"
        assert node["node_type"] == expected


def target(node, direction):
    host, port = node[f"{direction}_target_host"], node[f"{direction}_target_port"]
    assert (host is None) == (port is None)
    return None if host is None else f"{host}:{port}"


def test_rings_join_the_owners_of_equal_tensors(planned):
    """What a node is told about its rings agrees with the tensors that lie in the packages."""
    owner_in = [owners_by_name(planned, cluster) for cluster in planned.plan.clusters]
    for cluster, stage in planned.stages:
        node = planned.node(stage.provider.id)
        mine = [name for name, owner in owner_in[cluster.id].items() if owner == stage.provider.id]
        others = [tuple(owners[name] for owners in owner_in) for name in mine]
        starts = {name for i, name in enumerate(mine) if i == 0 or others[i] != others[i - 1]}
        assert set(node["ring_ids"].values()) == starts
        following = owner_in[(cluster.id + 1) % len(owner_in)]
        neighbours = {}
        for name in mine:
            if following[name] != stage.provider.id:
                neighbours.setdefault(planned.plan.addresses[following[name]], name)
        assert node["param_addresses"] == neighbours


def test_a_provider_reads_whom_it_averages_with(planned):
    """Names, members in ring order and its own place among them; the next one is its neighbour."""
    averaged = {}
    for cluster, stage in planned.stages:
        number = stage.provider.id
        document = read_document(RunDir(planned.folder), f"node_{number}")
        assert {str(ring.id) for ring in document.rings} == set(planned.node(number)["ring_ids"])
        for ring in document.rings:
            own = ring.members[ring.place]
            assert own == RingMember(f"node_{number}", stage.provider.address, cluster.id)
            plan = planned.plan.rings[ring.id]
            assert ring.names == plan.names
            assert tuple(member.cluster for member in ring.members) == plan.walk
            assert all(one.node == f"node_{plan.owners[one.cluster]}" for one in ring.members)
            averaged.setdefault(cluster.id, []).extend(ring.names)
            following = ring.members[(ring.place + 1) % len(ring.members)]
            if following != own:
                assert following.address in planned.node(number)["param_addresses"]
    everything = sorted(name for ring in planned.plan.rings for name in ring.names)
    assert [sorted(names) for names in averaged.values()] == [everything] * len(averaged)


def owners_by_name(planned, cluster):
    """Tensor name → id of the one provider whose package owns it, in model order."""
    owners = {}
    for stage, package in zip(cluster.stages, planned.packages(cluster.id), strict=True):
        names = {spec.name for spec in package.graph.tensors if spec.owner}
        assert not names & set(owners)
        owners |= dict.fromkeys(names, stage.provider.id)
    model_order = list(seeded(Mlp, 10).state_dict())
    assert set(owners) == set(model_order)
    return {name: owners[name] for name in model_order}


def test_an_idle_provider_is_told_why(tmp_path):
    """It has no package and no neighbours, but a file with the reason that the report shows."""
    folder = write_pool(tmp_path, *POOLS["one too small"])
    planned = run_clusterize(seeded(Mlp, 10), (BATCH,), folder)
    node = planned.node(2)
    assert node["node_type"] == "Idle"
    assert (node["node_id"], node["local_host"], node["local_port"]) == (2, "10.0.0.2", 8082)
    assert "1 kB is less than" in node["reason"]
    assert f"Idle: node_2 (10.0.0.2:8082): {node['reason']}" in planned.printed


def test_more_providers_than_the_model_has_pieces(tmp_path):
    """Everybody is used as far as the model can be cut; the script of the others ends well."""
    planned = run_clusterize(seeded(Mlp, 2), (BATCH,), write_pool(tmp_path, 3), max_clusters=1)
    (idle,) = planned.plan.idle
    assert "the model can be cut into 2 stages at most" in idle.reason
    program = f"from ravnest import Node; Node(name='node_{idle.provider.id}'); print('went on')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "RAVNEST_NODE_DATA": str(planned.folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    expected = f"node_{idle.provider.id} is idle, the plan does not use it: {idle.reason}\n"
    assert (done.stdout, done.stderr) == (expected, "")


# ---- print ------------------------------------------------------------------------------------

BLOCK = re.compile(
    r"Node\((\d+), Cluster\((\d+)\)\) \n"
    r"self\.IP\(([^)\n]+)\) \n"
    r"Ring IDs\((\{[^\n]*\})\) \n"
    r"Address2Param\((\{[^\n]*\})\)\n\n"
)


def test_the_documented_block_of_every_node_is_printed(planned):
    """In exactly the documented form, in pipeline order, with the facts of node_<id>.json."""
    found = BLOCK.findall(planned.printed)
    assert [int(number) for number, *_ in found] == list(planned.plan.addresses)
    for number, cluster, address, rings, neighbours in found:
        node = planned.node(int(number))
        assert int(cluster) == node["rank"]
        assert address == f"{node['local_host']}:{node['local_port']}"
        ring_ids = {int(ring): name for ring, name in node["ring_ids"].items()}
        assert ast.literal_eval(rings) == ring_ids
        assert ast.literal_eval(neighbours) == node["param_addresses"]


def test_one_line_separates_the_blocks_from_the_report(planned):
    lines = planned.printed.splitlines()
    assert lines.count("-" * 72) == 1
    below = lines[lines.index("-" * 72) + 1 :]
    assert below[0].startswith("Mlp: ")
    assert not [line for line in below if line.startswith(("Node(", "self.IP("))]


def test_quiet_prints_nothing(tmp_path, capsys):
    loud = run_clusterize(seeded(Mlp, 10), (BATCH,), write_pool(tmp_path / "a", 2))
    quiet = run_clusterize(seeded(Mlp, 10), (BATCH,), write_pool(tmp_path / "b", 2), quiet=True)
    assert "Verdict: " in loud.printed
    assert quiet.printed == ""
    assert quiet.plan == loud.plan
    assert capsys.readouterr() == ("", "")


# ---- the same again ---------------------------------------------------------------------------

SCRIPT = """
import sys; sys.path[:0] = {path!r}
from test_clusterize import BATCH, Mlp, run_clusterize, seeded
from pathlib import Path
run_clusterize(seeded(Mlp, 10), (BATCH,), Path({folder!r}), seed=3)
"""


def test_equal_seeds_give_equal_files_also_in_another_process(tmp_path):
    """Another process hashes strings differently; plan, graphs and weights are the same bytes."""
    first, second = (write_pool(tmp_path / name, *POOLS["6 unequal providers"]) for name in "ab")
    run_clusterize(seeded(Mlp, 10), (BATCH,), first, seed=3)
    here = str(Path(__file__).parent)
    program = SCRIPT.format(path=[here], folder=str(second))
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
    one, other = snapshot(first), snapshot(second)
    assert list(one) == list(other)
    assert [path for path in one if one[path] != other[path] and "node_" not in path] == []


def test_a_rerun_replaces_the_plan(tmp_path):
    """A smaller pool later: nothing of the earlier plan is left, and nothing is archived."""
    run_clusterize(seeded(Mlp, 10), (BATCH,), write_pool(tmp_path, *POOLS["6 unequal providers"]))
    run_clusterize(seeded(Mlp, 10), (BATCH,), write_pool(tmp_path, 2))
    again = snapshot(tmp_path)
    fresh = write_pool(tmp_path.parent / f"{tmp_path.name}-fresh", 2)
    run_clusterize(seeded(Mlp, 10), (BATCH,), fresh)
    assert set(again) == set(snapshot(fresh))
    assert again["plan.json"] == (fresh / "plan.json").read_bytes()
