"""Several clusters in one process: real providers and rings, only the sockets are missing."""

import contextlib
import threading
from dataclasses import dataclass

from pipelines import address_of, build, even_cuts

from ravnest.planning.search.rings import form_rings
from ravnest.planning.study import study
from ravnest.provider.averaging.settings import Averaging
from ravnest.provider.compression import Compression
from ravnest.provider.document import RingDocument, RingMember
from ravnest.provider.place import Rings
from ravnest.wire.endpoint import NetworkThread
from ravnest.wire.memory import MemoryHub


@dataclass
class Clusters:
    each: list
    rings: list

    def all(self, work):
        """Do something on all Roots at once, as their own scripts would."""
        outcomes = [None] * len(self.each)

        def run(k):
            try:
                outcomes[k] = work(self.each[k], k)
            except Exception as error:
                outcomes[k] = error

        threads = [threading.Thread(target=run, args=(k,)) for k in range(len(self.each))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "stuck"
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        return outcomes

    def states(self):
        return [cluster.state() for cluster in self.each]


@contextlib.contextmanager
def clusters(
    model, example, folder, settings, stages, averaging=None, codec=None, devices=None, **options
):
    """`settings(cluster)` gives what `build` wants; `stages` says how many each cluster has."""
    studied = study(model, example)
    graphs = [studied.stages(even_cuts(studied, count)) for count in stages]
    first = [sum(stages[:c]) for c in range(len(stages))]
    specs = {spec.name: spec for graph in graphs[0] for spec in graph.tensors}
    names = [n for n in studied.homes if specs[n].trainable or specs[n].kind == "buffer"]
    owners = [
        {spec.name: start + g.stage for g in some for spec in g.tensors if spec.owner}
        for start, some in zip(first, graphs, strict=True)
    ]
    rings = form_rings(names, owners)

    def documents(node):
        found = []
        for ring in rings:
            members = [
                RingMember(f"node_{owner}", address_of(owner), c)
                for c, owner in enumerate(ring.owners)
            ]
            places = [k for k, member in enumerate(members) if member.node == node]
            found += [RingDocument(ring.id, ring.names, tuple(members), k) for k in places]
        return Rings(tuple(found), averaging or Averaging(connect_s=30), Compression(rings=codec))

    hub, thread = MemoryHub(), NetworkThread()
    thread.start()
    made = []
    try:
        for c, some in enumerate(graphs):
            made.append(
                build(
                    model,
                    example,
                    folder / str(c),
                    settings(c),
                    hub=hub,
                    thread=thread,
                    graphs=some,
                    first=first[c],
                    rings=documents,
                    devices=() if devices is None else devices[c],
                    **options,
                )
            )
        yield Clusters(made, rings)
    finally:
        for cluster in made:
            cluster.close()
        thread.stop()
