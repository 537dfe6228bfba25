"""A neighbour that does not answer, on a virtual clock; and a real one that is stuck."""

import math
import threading
import time

import pytest
import torch
from pipelines import pipeline
from test_pipeline import SGD, settings_for
from torch import nn

from ravnest.errors import PeerError
from ravnest.provider.place import Place
from ravnest.provider.runtime import ProviderRuntime
from ravnest.provider.stall import StallWatch
from ravnest.wire.memory import MemoryNetwork
from ravnest.wire.messages import Reply


def test_a_long_wait_is_reported_and_ends():
    watch = StallWatch(report_s=60, give_up_s=150, now=0)
    assert watch.look_again_s(0) == 60
    assert watch.look(59, "node_1") is None
    assert watch.look(60, "node_1") == "nothing heard for 60 s; waiting for node_1"
    assert watch.look_again_s(60) == 60
    watch.look(120, "node_1")
    assert watch.look_again_s(120) == 30
    with pytest.raises(PeerError, match="150 s while waiting for node_1"):
        watch.look(150, "node_1")


def test_who_hears_something_or_waits_for_nothing_begins_again():
    watch = StallWatch(report_s=60, give_up_s=150, now=0)
    watch.heard(100)
    assert watch.look(249, "node_1") is not None
    assert watch.look(249, None) is None
    assert watch.look(398, "node_1") == "nothing heard for 149 s; waiting for node_1"


def test_a_stage_that_is_stuck_is_given_up_by_the_others(tmp_path):
    """Its compute thread is in the user's code and does not return."""
    stuck = threading.Event()
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    batches = [torch.randn(3, 4) for _ in range(4)]

    def criterion(outputs, batch):
        stuck.wait(30)
        return outputs.square().mean()

    settings = settings_for(batches, criterion, SGD)
    with pipeline(model, (batches[0],), tmp_path, settings, stages=2) as cluster:
        for runtime in cluster.runtimes:
            runtime.unheard_s = 0.5
            runtime.watch_for_stalls(report_s=0.2, give_up_s=1.0)
        cluster.train(batches[0])
        with pytest.raises(PeerError, match=r"1 micro-batch from node_1") as caught:
            cluster.order("epoch")
        assert caught.value.node == "node_1"
        # The one that is stuck learns of it although its compute thread cannot be told.
        deadline = time.monotonic() + 10
        while cluster.runtimes[1].user.failure is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert "node_0 failed" in str(cluster.runtimes[1].user.failure)
        stuck.set()


class Looking(StallWatch):
    """Tells when it has looked so often that it would have given up."""

    def __init__(self):
        super().__init__(report_s=0.02, give_up_s=0.05, now=time.monotonic())
        self.often = threading.Event()
        self._looks = 0

    def look(self, now, awaited):
        self._looks = 0 if awaited is not None else self._looks + 1
        if self._looks >= 8:
            self.often.set()
        return super().look(now, awaited)


def test_a_pause_is_not_a_stall(tmp_path):
    """The Root feeds nothing for longer than anybody would wait for an answer."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    batches = [torch.randn(4, 4) for _ in range(4)]
    settings = settings_for(batches, lambda outputs, batch: outputs.square().mean(), SGD)
    options = {"stages": 3, "parts": 2, "update_frequency": 3}
    with pipeline(model, (batches[0],), tmp_path, settings, **options) as cluster:
        for batch in batches[:2]:
            cluster.train(batch)
        for runtime in cluster.runtimes:
            runtime.user.ask(lambda runtime=runtime: setattr(runtime, "_stall", Looking()))
        for runtime in cluster.runtimes:
            assert runtime._stall.often.wait(30)
        for batch in batches[2:]:
            cluster.train(batch)
        cluster.order("epoch")
        assert len(cluster.losses) == 4


def test_a_provider_may_wait_for_the_goodbye_without_end():
    place = Place(run="run", node="node_1", listen="", previous=None, next=None)
    runtime = ProviderRuntime(place, MemoryNetwork, lambda runtime: None)
    goodbye = threading.Timer(0.1, runtime.user.replied, [Reply(order="goodbye")])
    goodbye.start()
    assert runtime.user.wait_for_goodbye(math.inf)
