"""What is shown of a run: like beside like, and nothing that is over."""

import msgspec
from state_simulation import FACTS

from ravnest.api.control import Beat
from ravnest.api.machine import Caps, Figures
from ravnest.api.work import (
    DEVICE_CONTEXT_BYTES,
    WORKER_OVERHEAD_BYTES,
    LinkBytes,
    Point,
    WorkReport,
)
from ravnest.server import changes
from ravnest.server.service.live import LiveRun
from ravnest.server.service.views import Progress, job_view, provider_view, run_view, series_view
from ravnest.server.state.records import Job, Part, Provider, Run
from ravnest.server.state.world import World


def a_world(job_state="running", part_state="training", *, run=1, epochs_done=0):
    """A job at work on two providers, the first of which is the Root."""
    world = World()
    world.jobs["j"] = Job(
        id="j",
        name="j",
        owner="t",
        owner_name="o",
        submitted_at=0,
        epochs=5,
        state=job_state,
        run=run,
        epochs_done=epochs_done,
    )
    world.runs["j"] = Run(job="j", number=run, state="running", began_at=0)
    world.of_run["j"] = [
        Part(
            id=f"j-{run}-{provider}",
            job="j",
            run=run,
            provider=provider,
            node=f"node_{provider}",
            cluster=0,
            stage=provider - 1,
            role="Root" if provider == 1 else "Leaf",
            memory_bytes=1000,
            state=part_state,
        )
        for provider in (1, 2)
    ]
    return world


def live_of(world):
    run = world.runs["j"]
    return LiveRun.of("j", run.number, world.of_run["j"])


def test_memory_that_is_planned_is_of_the_whole_worker_as_is_what_is_used():
    world = a_world()
    live = live_of(world)
    used = WORKER_OVERHEAD_BYTES + 900
    live.take(world.of_run["j"][0], WorkReport(at=1.0, memory_bytes=used))
    stage = run_view(world, world.runs["j"], live, ()).clusters[0].stages[0]
    assert (stage.memory_used_bytes, stage.memory_bytes) == (used, WORKER_OVERHEAD_BYTES + 1000)


def test_the_epoch_of_a_second_run_is_never_behind_what_is_kept():
    world = a_world(run=2, epochs_done=3)
    live = live_of(world)
    root = world.of_run["j"][0]
    live.take(root, WorkReport(at=1.0, epoch=0))
    assert job_view(world, world.jobs["j"], live).epoch == 3.0
    live.take(root, WorkReport(at=2.0, points=(Point("train/loss", 1, 3.5, 2.0, 1.0),)))
    assert job_view(world, world.jobs["j"], live).epoch == 3.5


def test_a_job_is_as_far_as_the_slowest_of_its_clusters_that_are_left():
    world = a_world()
    for part in world.of_run["j"]:  # each a cluster of its own
        part.cluster, part.stage = part.provider - 1, 0
    live = live_of(world)
    slow, fast = world.of_run["j"]
    for part, epoch in ((slow, 0.5), (fast, 4.0)):
        live.take(part, WorkReport(at=2.0, points=(Point("train/loss", 1, epoch, 2.0, 1.0),)))
    assert job_view(world, world.jobs["j"], live).epoch == 0.5
    slow.state = "failed"
    assert job_view(world, world.jobs["j"], live).epoch == 4.0


def test_the_epoch_stays_while_the_stages_are_fused():
    world = a_world("fusing", "ended")
    live = live_of(world)
    live.take(
        world.of_run["j"][0],
        WorkReport(at=2.0, points=(Point("train/loss", 1, 2.0, 2.0, 1.0),)),
    )
    assert job_view(world, world.jobs["j"], live).epoch == 2.0
    known = Progress(job="j", at=3.0, run=1, epoch=2.0)
    assert job_view(world, world.jobs["j"], None, known).epoch == 2.0


def test_how_far_a_lost_run_was_is_not_shown_of_the_next_one():
    world = a_world(run=2, epochs_done=1)
    known = Progress(job="j", at=3.0, run=1, epoch=2.4)
    assert job_view(world, world.jobs["j"], None, known).epoch == 1.0


def test_a_run_that_has_ended_shows_no_speeds():
    world = a_world()
    live = live_of(world)
    for at, sent in ((1.0, 0), (2.0, 5000)):
        links = (LinkBytes(node="node_2", sent=sent, received=0),)
        report = WorkReport(at=at, samples_per_second=7.0, busy=0.5, links=links)
        live.take(world.of_run["j"][0], report)

    def speeds():
        view = run_view(world, world.runs["j"], live, ())
        cluster, link = view.clusters[0], view.links[0]
        job = job_view(world, world.jobs["j"], live)
        return (
            job.samples_per_second,
            cluster.samples_per_second,
            cluster.stages[0].busy,
            link.forward_bytes_per_s,
        )

    assert speeds() == (7.0, 7.0, 0.5, 5000.0)
    world.jobs["j"].state = "paused"
    assert speeds()[:2] == (0.0, 0.0), "what was measured before the pause"
    for part in world.of_run["j"]:
        part.state = "ended"
    world.jobs["j"].state = "stopping"
    assert speeds() == (0.0, 0.0, 0.0, 0.0)


def test_machines_of_one_name_are_told_apart_in_a_pipeline():
    world = a_world()
    for id in (1, 2):
        world.providers[id] = Provider(id=id, name="vm", digest="", facts=FACTS, caps=Caps())
        world.namesakes["vm"] += 1
    stages = run_view(world, world.runs["j"], None, ()).clusters[0].stages
    assert [stage.name for stage in stages] == ["vm #1", "vm #2"]


def curve(*points):
    """Of (step, epoch, value), in the order in which they came."""
    found = series_view(
        changes.Point(number, "j", "train/loss", 0, step, epoch, float(number), value)
        for number, (step, epoch, value) in enumerate(points)
    )
    return [(point[0], point[3]) for point in found.points["train/loss@0"]]


def test_points_of_a_lost_run_go_as_far_as_they_were_trained_anew():
    lost = ((10, 1.0, 5.0), (20, 2.0, 4.0), (30, 3.0, 3.0))
    assert curve(*lost) == [(10, 5.0), (20, 4.0), (30, 3.0)]
    assert curve(*lost, (20, 2.0, 9.0)) == [(10, 5.0), (20, 9.0)]
    assert curve(*lost, (15, 1.5, None)) == [(10, 5.0)]


def test_points_of_a_run_with_fewer_clusters_stay():
    # Two clusters share the batches of an epoch, so that steps begin lower than they ended.
    assert curve((100, 1.0, 5.0), (200, 2.0, 4.0), (150, 3.0, 3.0)) == [
        (100, 5.0),
        (200, 4.0),
        (150, 3.0),
    ]


def test_a_pause_of_a_provider_at_work_is_seen():
    world = World()
    world.providers[1] = provider = Provider(id=1, name="p", digest="", facts=FACTS, caps=Caps())
    heard = world.heard_of(1)
    heard.connected, heard.state = True, "training"
    assert provider_view(world, 1).doing == "training"
    provider.paused = True
    view = provider_view(world, 1)
    assert (view.state, view.paused, view.doing) == ("training", True, "training, then paused")
    heard.state = "idle"
    assert provider_view(world, 1).doing == "paused"
    provider.paused, heard.state = False, "training"
    heard.beat = Beat(state="training", paused=True)
    assert provider_view(world, 1).doing == "training, then paused", "as the machine itself says"


def test_what_a_worker_takes_is_compared_with_what_a_worker_may_take():
    world = World()
    figures = Figures(memory_bytes=1000, gflops=1.0, up_mbps=1.0, down_mbps=1.0, latency_ms=1.0)
    world.providers[1] = Provider(
        id=1, name="p", digest="", facts=FACTS, caps=Caps(), figures=figures
    )
    view = provider_view(world, 1)
    assert (view.memory_bytes, view.worker_limit_bytes) == (1000, 1000 + WORKER_OVERHEAD_BYTES)
    # Of a card's memory, Python and torch take none; the libraries that drive it do.
    card = msgspec.structs.replace(FACTS, device="cuda:0", device_memory_bytes=8 << 30)
    world.providers[1].facts = card
    view = provider_view(world, 1)
    assert (view.memory_bytes, view.worker_limit_bytes) == (1000, 1000 + DEVICE_CONTEXT_BYTES)
