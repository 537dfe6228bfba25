"""What the server and its planning processes hand to each other, as files in the run's folder.

Neither torch nor a model is needed to read any of this. A foreign model was at work in a process
that leaves a `PlanOutcome` and `MadeFile`s behind: so each text, number and list in them has a
limit, and a file has one by the size of the pool when it is first read, which is here. While it is
decoded, no other thread of the server runs.
"""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ravnest.api.jobs import JobSpec
from ravnest.api.limits import (
    MOST_PROVIDERS,
    MOST_TEXT,
    NOT_UNDERSTOOD,
    Bytes,
    Count,
    FileRef,
    ProviderId,
    Text,
    Warnings,
    short,
)
from ravnest.api.views import PlanView, RingView
from ravnest.plan import ProviderSpec
from ravnest.removing import remove_whole
from ravnest.server.state.records import PlanFacts, Validation
from ravnest.whole import read_at_most

ORDER = "planjob.json"
OUTCOME = "outcome.json"
NODE_DATA = "node_data"
MADE = "made.json"
"""Provider → the files that planning has made for it (`MadeFile`)."""
PLACES = "places.json"
PARTS = "parts"
"""These two the server makes: what each provider is assigned, and where files of a run are."""
MOST_LEFT_BYTES = 256 << 20
"""Of each file that holds words of the job itself: all that it may be, some times over."""
_LEFT_BYTES, _LEFT_BYTES_EACH = 1 << 20, 8 << 10
"""Of the others, and for each provider of the pool: some times what a plan says of one."""
_MOST_FILES = 1000
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
    place: Text
    """In the folder of the run."""


Made = dict[ProviderId, Annotated[tuple[MadeFile, ...], Meta(max_length=_MOST_FILES)]]


class PlanOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How it ended. Without `error`, all files that go with the task are there."""

    error: Text = ""
    unfit: bool = False
    """The error is about the pool: another one may do."""
    crashed: bool = False
    """Nothing was found out: the process died, or the server lacked something. It may go better
    another time."""
    full: bool = False
    """It was room on the disk that the server lacked."""
    facts: PlanFacts | None = None
    view: PlanView | None = None
    rings: Annotated[tuple[RingView, ...], Meta(max_length=MOST_PROVIDERS)] = ()
    result_bytes: Bytes = 0
    validation: Validation | None = None
    """Of a fusion. With an `error`: it was refused for that."""
    stage: Count | None = None
    """Of a fusion that failed or was refused: the stage that is at fault, if it is one alone. A
    process that was taken over blames a provider of its own job at worst."""
    warnings: Warnings = ()

    def __post_init__(self) -> None:
        """What says more than its reader takes says the beginning of it."""
        msgspec.structs.force_setattr(self, "error", self.error[:MOST_TEXT])
        msgspec.structs.force_setattr(self, "warnings", short(self.warnings))


def left_outcome(folder: Path, order: PlanOrder) -> PlanOutcome:
    """How it ended, in the words of the process. What cannot be taken (an `OSError`, or one of
    `NOT_UNDERSTOOD`) is removed, since others look at what lies there later."""
    try:
        content = read_at_most(folder / OUTCOME, _most_bytes(order))
        return msgspec.json.decode(content, type=PlanOutcome)
    except (OSError, *NOT_UNDERSTOOD):
        remove_whole(folder / OUTCOME)
        raise


def left_files(folder: Path, order: PlanOrder) -> Made:
    """What it has made for each provider."""
    return msgspec.json.decode(read_at_most(folder / MADE, _most_bytes(order)), type=Made)


def _most_bytes(order: PlanOrder) -> int:
    return _LEFT_BYTES + _LEFT_BYTES_EACH * len(order.pool)
