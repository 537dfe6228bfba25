"""What lies in the folder of a model that was handed over, and what the JSON files in it say.

    card.json              what the model is, with size and SHA-256 of every other file
    manifest.json          ┐
    graph.json             │ the whole model as a package of one stage (see stage/package.py)
    weights.safetensors    ┘ left out if the model was planned without weights
    outline.json           which module each operator is from; names; what only the capture knew
    model.json             the keys of its state_dict, for fusion
    example.safetensors    the example batch, one tensor per leaf: `leaf_0`, `leaf_1`, …

Knows the form of these files and the limits of what they may say, not how they come about.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from ravnest.rundir import StateEntry
from ravnest.stage.graph import FileEntry, Name, Number, Shape, Strict
from ravnest.stage.package import GRAPH, MANIFEST, WEIGHTS

HANDOVER_FORMAT = 1

CARD = "card.json"
OUTLINE = "outline.json"
INDEX = "model.json"
EXAMPLE = "example.safetensors"
ALWAYS = (MANIFEST, GRAPH, OUTLINE, INDEX)
"""Files that every handed over model has."""
SOMETIMES = (WEIGHTS, EXAMPLE)
"""Files that hold values, which a model on the meta device does not have."""

Text = Annotated[str, Meta(max_length=4000)]
Amount = Annotated[int, Meta(ge=0, lt=2**62)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e12)]


class Leaf(Strict, frozen=True, kw_only=True):
    """One tensor of the example batch. How the leaves make up the call is in the graph."""

    dtype: Name
    shape: Shape


class ModelCard(Strict, frozen=True, kw_only=True):
    """First file read: what the model claims to be."""

    format: int
    name: Annotated[str, Meta(min_length=1, max_length=200)]
    class_name: Annotated[str, Meta(max_length=200)]
    parameters: Amount
    """How many numbers training can change or has to hold."""
    parameter_bytes: Amount
    batch_size: Annotated[int, Meta(ge=1, lt=2**31)]
    """Rows of the example batch."""
    example: Annotated[tuple[Leaf, ...], Meta(max_length=10_000)]
    rows_mix: Text
    """Why batches must stay whole; "" if they may be divided."""
    checked: bool
    """Whether the graph was compared with the model itself, on its owner's machine."""
    warnings: Annotated[tuple[Text, ...], Meta(max_length=100)] = ()
    files: Annotated[tuple[FileEntry, ...], Meta(max_length=len(ALWAYS) + len(SOMETIMES))]


class Measured(Strict, frozen=True, kw_only=True):
    """What a real pass over the example has shown of one operator (`pass_data=True`)."""

    forward_flops: Amount
    backward_flops: Amount
    seconds: Seconds
    forward_s: Seconds
    kept_arguments: tuple[Number, ...] = ()
    keeps_result: bool = False
    kept_bytes: Amount = 0
    working_bytes: Amount = 0
    calls: Annotated[int, Meta(ge=0, le=1000)] = 0


class ModeOutline(Strict, frozen=True, kw_only=True):
    """What a graph of one mode does not say about its operators and inputs, in their order."""

    paths: tuple[Number, ...]
    """Module of each operator, as a number of `Outline.paths`."""
    regions: tuple[Number, ...]
    """Operators of one number share a grad or autocast scope; 0 is no scope."""
    open: tuple[bool, ...]
    """Whether the first size of each input follows the batch."""
    dynamic: bool


class Outline(Strict, frozen=True, kw_only=True):
    """What planning needs to know beyond the graph."""

    format: int
    paths: tuple[Name, ...]
    train: ModeOutline
    eval: ModeOutline
    names: tuple[tuple[Name, Name], ...]
    """Every name of a parameter or buffer with the first name of the same tensor, in the model's
    order."""
    measured: tuple[Measured, ...] = ()
    """For each operator of the train graph; empty if costs are to be predicted."""


class Index(Strict, frozen=True, kw_only=True):
    """`rundir.ModelIndex` before there is a plan."""

    format: int
    state: tuple[StateEntry, ...]
    versions: dict[str, Annotated[int, Meta(ge=0, lt=2**31)]] = msgspec.field(default_factory=dict)
