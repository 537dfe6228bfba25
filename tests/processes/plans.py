"""A plan for providers on loopback."""

import json

import jobs

from ravnest import clusterize
from ravnest.ports import free_ports
from ravnest.rundir import RunDir


def plan(folder, model_name, providers, clusters=1):
    pool = {
        str(number): {
            "IP": f"127.0.0.1:{port}",
            "benchmarks": {"ram": 4, "bandwidth": 1000},
        }
        for number, port in enumerate(free_ports(providers))
    }
    run = RunDir(folder / "node_data")
    run.root.mkdir()
    run.pool_file.write_text(json.dumps(pool))
    batch = next(iter(jobs.loader(model_name)))
    clusterize(
        jobs.make_model(model_name),
        (batch[0],),
        node_data=run.root,
        max_clusters=clusters,
        min_cluster_size=providers // clusters,
        idle_gain=1e9,
        quiet=True,
    )
    # Providers resolve their packages from where they are started.
    return run
