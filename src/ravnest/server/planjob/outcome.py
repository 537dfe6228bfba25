"""What the server and its planning processes hand to each other, as files in the run's folder.

Neither torch nor a model is needed to read any of this.
"""

from typing import Literal

import msgspec

from ravnest.api.jobs import JobSpec
from ravnest.api.limits import FileRef
from ravnest.api.views import PlanView, RingView
from ravnest.plan import ProviderSpec
from ravnest.server.state.records import PlanFacts, Validation

ORDER = "planjob.json"
OUTCOME = "outcome.json"
NODE_DATA = "node_data"
MADE = "made.json"
"""Provider → the files that planning has made for it (`MadeFile`)."""
PLACES = "places.json"
PARTS = "parts"
"""These two the server makes: what each provider is assigned, and where files of a run are."""
MOST_LEFT_BYTES = 256 << 20
"""Of each of these files: all that a job may be, some times over. A process that was taken over
can leave others, which the server does not read."""
FRESH = "result"
"""What a fusion leaves in its folder."""
MEMORY = "RAVNEST_PLANJOB_MEMORY"
"""Variable: how many bytes the process may have; 0 is no limit."""
SPARE = "RAVNEST_PLANJOB_SPARE"
"""Variable: how many bytes of the disk it has to leave."""

Task = Literal["check", "plan", "fuse"]


class PlanOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done in this folder; paths are absolute."""

    task: Task
    spec: JobSpec | None = None
    owner: str = ""
    """Whose job it is: everybody gets a turn."""
    job: str = ""
    model: str = ""
    """Folder of the model as it was handed in."""
    run: int = 0
    pool: tuple[ProviderSpec, ...] = ()
    names: dict[int, str] = msgspec.field(default_factory=dict)
    """What people call the providers of the pool."""
    weights: str = ""
    """Fused weights (safetensors) to begin from; empty for those of the model."""
    epochs_done: int = 0
    reserve_bytes: int = 0
    """Of the disk, that a plan leaves for results."""
    cluster: int = 0
    results: str = ""
    """Folder with a folder of results for each provider."""
    output: str = ""


class MadeFile(msgspec.Struct, frozen=True, kw_only=True):
    """What planning has made for a provider."""

    file: FileRef
    place: str
    """In the folder of the run."""


class PlanOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How it ended. Without `error`, all files that go with the task are there."""

    error: str = ""
    unfit: bool = False
    """The error is about the pool: another one may do."""
    crashed: bool = False
    """Nothing was found out: the process died, or the server lacked something. It may go better
    another time."""
    full: bool = False
    """It was room on the disk that the server lacked."""
    facts: PlanFacts | None = None
    view: PlanView | None = None
    rings: tuple[RingView, ...] = ()
    result_bytes: int = 0
    validation: Validation | None = None
    """Of a fusion. With an `error`: it was refused for that."""
    stage: int | None = None
    """Of a fusion that failed or was refused: the stage that is at fault, if it is one alone. A
    process that was taken over blames a provider of its own job at worst."""
    warnings: tuple[str, ...] = ()
