"""Whole pipelines in one process: every provider with its own threads' worth of state, one network.

Providers are real (`ProviderRuntime`, `StageRunner`), only the sockets are missing.
"""

import contextlib
from dataclasses import dataclass

import torch
from torch import nn

from ravnest.planning.study import study
from ravnest.provider.assembly import StageSettings, build_runner
from ravnest.provider.inputs import BatchInputs
from ravnest.provider.numbering import BatchNumbers
from ravnest.provider.options import usable_device
from ravnest.provider.place import Place
from ravnest.provider.proof import proof_of
from ravnest.provider.runtime import ProviderRuntime
from ravnest.stage.package import load_package, write_package
from ravnest.wire import messages
from ravnest.wire.endpoint import NetworkThread
from ravnest.wire.memory import MemoryHub, MemoryNetwork
from ravnest.wire.peers import Patience, Peer

QUICK = Patience(connect_s=10, resume_s=1.0, nobody_s=0.3, retry_s=0.02, report_s=5)


def even_cuts(studied, stages):
    places = [p for p, place in enumerate(studied.places) if place is not None][1:-1]
    return [places[len(places) * k // stages] for k in range(1, stages)]


@dataclass
class Cluster:
    """All providers of one pipeline, and what a Root has besides."""

    hub: MemoryHub
    thread: NetworkThread
    runtimes: list
    packages: list
    losses: list
    inputs: BatchInputs
    numbers: BatchNumbers

    @property
    def root(self):
        return self.runtimes[0]

    def train(self, *inputs, item=None):
        """One batch, as Node.forward_compute sends it."""
        values, rows = self.inputs.bind(inputs, {}, "train")
        for of, first, last in self.numbers.training(rows):
            proof = proof_of(inputs if item is None else item) if of.part == 0 else ()
            message = messages.Forward(of=of, task="train", carried=(), proof=proof)
            self.root.user.submit(message, self.inputs.rows(values, first, last, rows))

    def order(self, order):
        reply = self.root.user.order(order)
        if order == "epoch":
            self.numbers.update_ended()
        return reply

    def state(self):
        """Every tensor from the stage that owns it."""
        found = {}
        for runtime in self.runtimes:
            stage = runtime.runner._passes.stage
            tensors = runtime.user.ask(
                lambda stage=stage: {
                    n: t.detach().cpu().clone() for n, t in stage.tensors().items()
                }
            )
            for spec in stage.graph.tensors:
                if spec.owner:
                    found[spec.name] = tensors[spec.name]
        return found

    def close(self):
        for runtime in self.runtimes:
            runtime.close(0.5)


def build(
    model,
    example,
    folder,
    settings,
    *,
    stages=3,
    cuts=None,
    parts=1,
    update_frequency=1,
    hub,
    thread,
    graphs=None,
    first=0,
    rings=lambda node: None,
    telemetry=lambda node: None,
    devices=(),
):
    studied = study(model, example)
    if graphs is None:
        graphs = studied.stages(cuts if cuts is not None else even_cuts(studied, stages))
    weights = {name: held.tensor for name, held in studied.held.items()}
    numbers_used = range(first, first + len(graphs))
    peers = [Peer(f"node_{number}", address_of(number)) for number in numbers_used]
    packages, losses = [], []
    for k, graph in enumerate(graphs):
        write_package(folder / str(k), graph, weights, plan_id="p", cluster=0)
        packages.append(load_package(folder / str(k)))

    def make(k):
        def runner(runtime):
            device = usable_device(devices[k] if devices else "cpu")
            stage = packages[k].module(device, model=model)
            return build_runner(
                packages[k], stage, settings(k), runtime.user, telemetry=telemetry(peers[k].node)
            )

        place = Place(
            run="run",
            node=peers[k].node,
            listen=peers[k].address,
            previous=peers[k - 1] if k else None,
            next=peers[k + 1] if k + 1 < len(peers) else None,
        )
        return ProviderRuntime(
            place,
            lambda: MemoryNetwork(hub),
            runner,
            patience=QUICK,
            queue_limit=4 * parts + 4,
            on_batch=(lambda of, loss: losses.append(loss)) if k == 0 else None,
            rings=rings(peers[k].node),
            network_thread=thread,
            telemetry=telemetry(peers[k].node),
        )

    numbers = BatchNumbers(
        micro_batches=parts,
        update_frequency=update_frequency,
        least_rows=graphs[0].train.least_rows,
    )
    inputs = BatchInputs(graphs[0])
    cluster = Cluster(hub, thread, [], packages, losses, inputs, numbers)
    for k in range(len(graphs)):
        runtime = make(k)
        runtime.start()
        cluster.runtimes.append(runtime)
    return cluster


def address_of(number):
    return f"127.0.0.1:{number + 1}"


@contextlib.contextmanager
def pipeline(*args, **kwargs):
    hub, thread = MemoryHub(), NetworkThread()
    thread.start()
    cluster = build(*args, hub=hub, thread=thread, **kwargs)
    try:
        yield cluster
    finally:
        cluster.close()
        thread.stop()


def settings_for(labels, criterion, update, **more):
    """The same settings for every stage, as one script gives them."""
    from ravnest.provider.leaf import LeafSettings

    leaf = LeafSettings(criterion=criterion, labels=labels, **more.pop("leaf", {}))
    settings = StageSettings(update=update, leaf=leaf, **more)
    return lambda k: settings


class TiedModel(nn.Module):
    """Words in, words out, with one embedding for both ends and a skip past the middle."""

    def __init__(self, words=11, width=8):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.position = nn.Parameter(torch.randn(5, width) * 0.1)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words):
        first = x = self.embed(words) + self.position
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(self.norm(x + first))
