"""A thousand rounds: nothing is left behind."""

import gc
import queue
import resource
import threading

import pytest
import torch
from torch import nn

from ravnest.provider.averaging.averager import Averager
from ravnest.provider.averaging.outer import Nesterov
from ravnest.provider.averaging.settings import Averaging
from ravnest.provider.averaging.share import Rules, Share
from ravnest.provider.compression import Compression
from ravnest.provider.document import RingDocument, RingMember
from ravnest.wire.endpoint import Endpoint, NetworkThread
from ravnest.wire.memory import MemoryHub, MemoryNetwork
from ravnest.wire.peers import Patience, Peer


class Stage:
    """Two parameters, in two fragments, and a statistic."""

    def __init__(self, seed):
        torch.manual_seed(seed)
        self.parameters = {name: nn.Parameter(torch.randn(3000)) for name in ("one", "two")}
        self.variance = torch.rand(5)

    def tensors(self):
        return {**self.parameters, "variance": self.variance}


class Member:
    """A provider that only averages; its thread is the compute thread."""

    def __init__(self, hub, thread, members, place, codec, outer):
        self.stage = Stage(0)
        self.calls, inbox = queue.SimpleQueue(), queue.SimpleQueue()
        self.errors = []
        self.share = Share(self.stage, self.stage.parameters, lambda: None, Rules(1, blocking=True))
        me = members[place]

        async def connect():
            endpoint = Endpoint(MemoryNetwork(hub), run="r", node=me.node, on_event=inbox.put)
            await endpoint.listen(me.address)
            peers = [Peer(m.node, m.address) for m in members if m is not me]
            endpoint.welcome(peers, Patience())
            return endpoint

        self.endpoint = thread.call(connect())
        self.averager = Averager(
            [RingDocument(0, ("one", "two", "variance"), members, place)],
            self.share,
            Averaging(mode="blocking", fragments=2, outer=outer),
            inbox,
            reach=lambda node, met: thread.call(self.endpoint.reach(node, has_been_there=met)),
            on_compute_thread=self.calls.put,
            averaged=self.share.averaged,
            fail=self.errors.append,
            tell_cluster=lambda cluster: None,
            tell_round=lambda ring: None,
            compression=Compression(rings=codec),
        )
        self.averager.start()
        self.updates = 0

    def rounds(self, count):
        for _ in range(count):
            self.share.trained(1)
            self.updates += 1
            with torch.no_grad():
                self.stage.parameters["one"].add_(0.001)
            self.share.updated(self.updates)
            while self.share.stands_still:
                self.calls.get(timeout=30)()
                if self.share.has_news:
                    self.share.apply()


def all_at_once(members, count):
    threads = [threading.Thread(target=member.rounds, args=(count,)) for member in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
        assert not thread.is_alive()


def memory_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


@pytest.mark.parametrize(("codec", "outer"), [(None, None), ("int8", Nesterov(0.7, 0.5))])
def test_a_thousand_rounds_leave_nothing_behind(codec, outer):
    hub, thread = MemoryHub(), NetworkThread()
    thread.start()
    places = tuple(RingMember(f"node_{k}", f"127.0.0.1:{k + 1}", k) for k in range(3))
    members = [Member(hub, thread, places, k, codec, outer) for k in range(3)]
    try:
        all_at_once(members, 200)
        gc.collect()
        objects, before = len(gc.get_objects()), memory_mb()
        all_at_once(members, 800)
        gc.collect()
        assert len(gc.get_objects()) - objects < 500
        assert memory_mb() - before < 20
        assert not any(member.errors for member in members)
        first = members[0].stage.tensors()
        for member in members[1:]:
            assert all(torch.equal(t, first[name]) for name, t in member.stage.tensors().items())
        assert members[0].share.rounds == 1000
    finally:
        for member in members:
            member.averager.stop()
            thread.call(member.endpoint.close(0.2))
        thread.stop()
