"""What a stage is, as data: the JSON that travels inside a stage package.

Values are numbered across the whole model, so that the stage that makes value 17 and the stage that
receives value 17 mean the same thing. The first numbers are the leaves of the user's inputs; they
are fed to stage 0, which passes on those that later stages ask for.

A model behaves differently in training and in evaluation (dropout, BatchNorm, auxiliary heads), so
a stage has one graph for each mode over one table of tensors.

Ranges and lengths stated in the types hold for what is decoded; a field nobody knows is refused,
because a reader that skips it might compute something else. What needs more than one field to be
judged is in checking.py.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

GRAPH_FORMAT = 1

Mode = Literal["train", "eval"]
MODES: tuple[Mode, ...] = ("train", "eval")
TensorKind = Literal["parameter", "buffer", "constant"]
Number = Annotated[int, Meta(ge=0, lt=2**31)]
"""Of a value, a stage or a context."""
Shape = Annotated[tuple[Annotated[int, Meta(ge=0, lt=2**48)], ...], Meta(max_length=64)]
OpenShape = Annotated[tuple[Annotated[int, Meta(ge=-1, lt=2**48)], ...], Meta(max_length=64)]
"""-1 where a size follows the batch size."""
Name = Annotated[str, Meta(max_length=1000)]


class Strict(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Data that is read from files made by others."""


class Versioned(msgspec.Struct):
    """Read first, so that a file of another format is called that and not malformed."""

    format: int


class TensorSpec(Strict, frozen=True, kw_only=True):
    """A parameter, buffer or constant that this stage holds, under the user's own name."""

    name: Name
    kind: TensorKind
    dtype: Name
    shape: Shape
    trainable: bool = False
    owner: bool = True
    """The one stage whose copy counts when the model is averaged and fused."""
    stages: tuple[Number, ...] = ()
    """All stages that hold a copy, when there are several; trainable ones sum their gradients."""
    hidden: Literal["matrix", "stack", "no"] | None = None
    """What `matrices.py` says of a trainable one, of which only the whole model tells. None is in
    packages that are older."""


class Context(Strict, frozen=True, kw_only=True):
    """Grad mode or autocast around an operator, as the user's code had it."""

    grad: bool | None = None
    autocast_dtype: Name | None = None
    autocast_enabled: bool | None = None
    cast_once: Number | None = None
    """Operators of one number share what autocast casts: a weight that several of them use is cast
    once, and its gradients are added up in the lower precision."""


class Operation(Strict, frozen=True, kw_only=True):
    """One operator call. Arguments are JSON as defined in `operators.py`."""

    out: Number
    op: Name
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    context: Number | None = None


class Wire(Strict, frozen=True, kw_only=True):
    """A value that enters or leaves a stage."""

    value: Number
    stages: tuple[Number, ...]
    """Where it comes from (one stage) or goes to (several)."""
    dtype: Name | None = None
    """None: a plain number travels, not a tensor."""
    shape: OpenShape = ()
    grad: bool = False


class ModeGraph(Strict, frozen=True, kw_only=True):
    """What the stage computes in one mode."""

    operations: tuple[Operation, ...]
    receives: tuple[Wire, ...] = ()
    sends: tuple[Wire, ...] = ()
    result: Any = None
    """Structure of the model's output over value numbers; on the last stage only."""
    least_rows: Number = 1
    most_rows: Number | None = None
    """Batches outside these limits take another way through the model than the captured one."""


class Argument(Strict, frozen=True, kw_only=True):
    """One argument of the user's forward: its name and the structure of value numbers inside."""

    name: Name
    structure: Any
    positional: bool = False


class StageGraph(Strict, frozen=True, kw_only=True, omit_defaults=False):
    """Everything a provider needs to compute its stage, apart from the weights."""

    format: int = GRAPH_FORMAT
    stage: Number
    stages: Number
    tensors: tuple[TensorSpec, ...]
    contexts: tuple[Context, ...] = ()
    train: ModeGraph
    eval: ModeGraph
    arguments: tuple[Argument, ...] = ()
    """How the user's call becomes values; on stage 0 only."""
    inputs: tuple[Wire, ...] = ()
    """The leaves of the user's inputs, in order; on stage 0 only."""
    static_batch: Number | None = None
    """Set when the model could only be captured for one batch size."""

    def mode(self, mode: Mode) -> ModeGraph:
        return self.train if mode == "train" else self.eval

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.stages - 1


class FileEntry(Strict, frozen=True, kw_only=True):
    """A file of the package, pinned by size and hash."""

    name: Name
    size: Annotated[int, Meta(ge=0)]
    sha256: Name


class Manifest(Strict, frozen=True, kw_only=True):
    """First file read, first file checked: what the package claims to be."""

    format: int
    plan_id: Name
    cluster: Number
    stage: Number
    stages: Number
    torch: Name
    files: tuple[FileEntry, ...]
    save_id: Name = ""
    """Of trained weights: which save of the cluster this stage's are part of."""
