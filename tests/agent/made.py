"""Structures for tests, as small as they may be."""

from ravnest.api.jobs import InputSpec, LossSpec, Named, Recipe, ScriptSpec, TrainingSpec
from ravnest.api.limits import FileRef
from ravnest.api.machine import Caps, Figures, MachineFacts
from ravnest.api.work import Assignment, WorkEnd, WorkReport

FACTS = MachineFacts(
    hostname="here",
    system="test",
    python="3",
    torch="2",
    ravnest="0",
    cores=2,
    memory_bytes=8 << 30,
)
CAPS = Caps()
FIGURES = Figures(memory_bytes=1 << 30, gflops=50.0, up_mbps=10.0, down_mbps=20.0, latency_ms=3.0)
FILE = FileRef(path="trained.json", sha256="0" * 64, size=3)
RECIPE = Recipe(
    inputs=(InputSpec(field="x"),),
    losses=(LossSpec(name="mse", target=InputSpec(field="y")),),
    optimizer=Named(name="sgd"),
)
SCRIPT = ScriptSpec(file=FileRef(path="script.py", sha256="1" * 64, size=3))


def assignment(name="a1", *, provider=7, files=(), script=False, **changes):
    what = {"script": SCRIPT} if script else {"recipe": RECIPE}
    values = {
        "id": name,
        "job": "j1",
        "job_name": "digits",
        "run": 1,
        "provider": provider,
        "node": f"node_{provider}",
        "cluster": 0,
        "clusters": 1,
        "stage": 0,
        "stages": 2,
        "role": "Root",
        "memory_bytes": 1000,
        "files": tuple(files),
        "training": TrainingSpec(epochs=3),
        **what,
    }
    return Assignment(**{**values, **changes})


def report(epoch=0, **changes):
    return WorkReport(at=1.0, epoch=epoch, **changes)


def end(outcome="done", **changes):
    return WorkEnd(outcome=outcome, **changes)
