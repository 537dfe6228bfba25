"""What is shown of a run: like beside like, and nothing that is over."""

from ravnest.api.work import WORKER_OVERHEAD_BYTES, WorkReport
from ravnest.server.service.live import LiveRun
from ravnest.server.service.views import run_view
from ravnest.server.state.records import Job, Part, Run
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
