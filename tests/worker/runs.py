"""Real workers on loopback: folders as an agent would make them, processes, what they say."""

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import torch
import zygote
from certificates import our_authority
from safetensors.torch import load_file
from torch import nn

from ravnest import clusterize
from ravnest.api.jobs import InputSpec, LossSpec, Named, Recipe, TrainingSpec
from ravnest.api.work import Assignment, End, Line, Report, Started, WorkEnd, WorkOrder
from ravnest.data.dividing import divide, rows_of_cluster
from ravnest.data.writing import write_data
from ravnest.plan import Plan
from ravnest.ports import free_ports
from ravnest.recipes.checking import input_fields, target_fields
from ravnest.rundir import RunDir
from ravnest.stage.package import load_package

WAIT_S = 90


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.middle = nn.Linear(16, 16)
        self.last = nn.Linear(16, 4)

    def forward(self, features):
        return self.last(torch.relu(self.middle(torch.relu(self.first(features)))))


def make_model():
    torch.manual_seed(5)
    return Net()


def make_data(rows=61):
    """Classes that can be learnt; not a whole number of batches."""
    generator = torch.Generator().manual_seed(3)
    weights = torch.randn(6, 4, generator=generator)
    x = torch.randn(rows, 6, generator=generator)
    return {"x": x, "y": (x @ weights).argmax(1).to(torch.uint8)}


RECIPE = Recipe(
    inputs=(InputSpec(field="x"),),
    losses=(LossSpec(name="cross_entropy", target=InputSpec(field="y")),),
    optimizer=Named(name="sgd", params={"lr": 0.2, "momentum": 0.9}),
    metrics=(Named(name="accuracy"), Named(name="perplexity")),
)
TRAINING = TrainingSpec(epochs=2, batch_size=8, seed=11, schedule="sync")


@dataclass
class Run:
    """What a server and its agents would have made of a job."""

    folder: Path
    node_data: RunDir
    plan: Plan
    folders: dict[str, Path] = field(default_factory=dict)
    """Assignment folders by node."""
    orders: dict[str, WorkOrder] = field(default_factory=dict)

    def trained(self, cluster=0):
        """The weights that the workers of a cluster have left."""
        found = {}
        for stage in self.plan.clusters[cluster].stages:
            folder = self.folders[f"node_{stage.provider.id}"]
            package = load_package(folder / "package")
            mark = json.loads((folder / "package" / "trained.json").read_bytes())
            tensors = load_file(folder / "package" / mark["files"][0]["name"])
            owned = {spec.name for spec in package.graph.tensors if spec.owner}
            found.update({name: value for name, value in tensors.items() if name in owned})
        return found


_PLANNED: dict[tuple[int, int], Path] = {}
"""Plans of the usual model that another test has made."""


def plan_run(folder, model=None, *, providers=2, clusters=1, example=None, **options):
    run = RunDir(folder / "node_data")
    known = _PLANNED.get((providers, clusters)) if model is None else None
    if known is not None:
        shutil.copytree(known, run.root)
    else:
        _plan(run, model or make_model(), example, providers, clusters, options)
    if model is None:
        _PLANNED[providers, clusters] = run.root
    plan = msgspec.json.decode(run.plan_file.read_bytes(), type=Plan)
    assert len(plan.clusters) == clusters
    return Run(folder, run, plan)


def _plan(run, model, example, providers, clusters, options):
    run.root.mkdir(parents=True)
    pool = {
        str(number): {"IP": f"provider-{number}:1", "benchmarks": {"ram": 4, "bandwidth": 1000}}
        for number in range(providers)
    }
    run.pool_file.write_text(json.dumps(pool))
    clusterize(
        model,
        (torch.zeros(8, 6) if example is None else example,),
        node_data=run.root,
        max_clusters=clusters,
        min_cluster_size=providers // clusters,
        idle_gain=1e9,
        quiet=True,
        **options,
    )


def prepare(run, written, *, validation=None, recipe=RECIPE, training=TRAINING, **more):
    """An assignment folder for every provider of the plan."""
    clusters = len(run.plan.clusters)
    stages = [(c.id, len(c.stages), stage) for c in run.plan.clusters for stage in c.stages]
    ids = [stage.provider.id for _, _, stage in stages]
    ports = dict(zip(ids, free_ports(len(ids)), strict=True))
    for cluster, count, stage in stages:
        number = stage.provider.id
        node = f"node_{number}"
        place = run.folder / f"work-{number}"
        fields = () if stage.index else input_fields(recipe)
        fields += target_fields(recipe) if stage.index == count - 1 else ()
        part = divide(written.spec, cluster, clusters, set(fields)) if fields else None
        judged = None
        if validation is not None and cluster == 0 and fields:
            judged = divide(validation.spec, 0, 1, set(fields))
        given = {
            "recipe": recipe,
            "train": part,
            "train_rows": len(rows_of_cluster(written.spec.rows, cluster, clusters)),
            "validation": judged,
            "validates": validation is not None and cluster == 0,
            **more,
        }
        order = WorkOrder(
            assignment=Assignment(
                id=f"a{number}",
                job="job1",
                job_name="a test",
                run=1,
                provider=number,
                node=node,
                cluster=cluster,
                clusters=clusters,
                stage=stage.index,
                stages=count,
                role=stage.role,
                memory_bytes=0,
                files=(),
                training=training,
                **given,
            ),
            listen=f"127.0.0.1:{ports[number]}",
            routes={
                f"provider-{other}:1": f"127.0.0.1:{port}"
                for other, port in ports.items()
                if other != number
            },
            report_s=0.1,
        )
        _fill(place, run, cluster, stage, order)
        for source, spec in ((written, part), (validation, judged)):
            for shard in spec.data.shards if spec is not None else ():
                for file in shard.files:
                    target = place / file.path
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(source.folder / file.path, target)
        run.folders[node], run.orders[node] = place, order


def _fill(place, run, cluster, stage, order):
    number = stage.provider.id
    (place / "node_data" / "nodes").mkdir(parents=True)
    document = json.loads(run.node_data.node_file(number).read_bytes())
    document["template_path"] = "package"
    (place / "node_data" / "nodes" / f"node_{number}.json").write_text(json.dumps(document))
    package = run.node_data.package_dir(cluster, stage.provider.address)
    shutil.copytree(package, place / "package")
    keys = our_authority().keys(f"provider-{number}", dns=(f"provider-{number}",))
    (place / "tls").mkdir()
    (place / "tls" / "ca.pem").write_text(keys.authority.pem)
    (place / "tls" / "certificate.pem").write_bytes(keys.certificate)
    (place / "tls" / "key.pem").write_bytes(keys.key)
    write_order(place, order)


def write_order(place, order):
    (place / "order.json").write_bytes(msgspec.json.encode(order))


class Process:
    """One worker, and all that it says."""

    def __init__(self, folder, within=None):
        # What is put around a worker may keep it from whatever lies outside, the zygote as well.
        interpreter = zygote.python() if within is None else sys.executable
        command = [interpreter, "-P", "-m", "ravnest.worker", str(folder)]
        self.folder = Path(folder)
        self._log = (self.folder / "worker.log").open("wb")
        self.process = subprocess.Popen(
            command if within is None else within(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            # Those who run the tests may ignore it: in the background, say.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self.lines: queue.Queue[Line | None] = queue.Queue()
        self.said: list[Line] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(msgspec.json.decode(line, type=Line))
        self.lines.put(None)

    def steer(self, action):
        self.process.stdin.write(json.dumps({"action": action}).encode() + b"\n")
        self.process.stdin.flush()

    def wait_for(self, condition):
        """The first thing it says for which this holds."""
        while True:
            line = self.lines.get(timeout=WAIT_S)
            assert line is not None, self.log()
            self.said.append(line)
            if condition(line):
                return line

    def end(self) -> WorkEnd:
        found = self.wait_for(lambda line: isinstance(line, End)).end
        self.code = self.process.wait(WAIT_S)
        self.process.stdin.close()
        assert self.lines.get(timeout=WAIT_S) is None  # nothing is said after the end
        return found

    def log(self):
        return (self.folder / "worker.log").read_text(errors="replace")

    @property
    def reports(self):
        return [line.report for line in self.said if isinstance(line, Report)]

    def points(self, series):
        return [p for r in self.reports for p in r.points if p.series == series]

    def kill(self):
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self._reader.join(WAIT_S)
        self.process.stdout.close()
        self._log.close()


@contextlib.contextmanager
def started(run, within=None):
    """A process for every folder, by node; `within` puts something around its command."""
    processes = {
        node: Process(folder, within and (lambda command, folder=folder: within(command, folder)))
        for node, folder in run.folders.items()
    }
    try:
        yield processes
    finally:
        for each in processes.values():
            each.kill()


def is_started(line):
    return isinstance(line, Started)


def written(folder, data=None, split="train"):
    return write_data(data or make_data(), folder, split=split, shard_bytes=20 * 24)
