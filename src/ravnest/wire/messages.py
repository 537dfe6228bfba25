"""Everything providers say to each other, as types.

A message is one of the structs below, and any number of tensors beside it. Nothing else crosses a
socket: what does not decode into one of these types, field by field and within its limits, is
refused before anybody looks at it.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

PROTOCOL = 8
"""Counts up with every change that an older provider would misunderstand."""

Count = Annotated[int, Meta(ge=0, lt=2**62)]
Text = Annotated[str, Meta(max_length=4000)]
Name = Annotated[str, Meta(max_length=1000)]
Factor = Annotated[float, Meta(gt=0.0, le=1e300)]
Shape = Annotated[tuple[Count, ...], Meta(max_length=64)]


class _Typed(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """Sent as an array that begins with the name of its type."""


# ---- at the beginning of every stream --------------------------------------------------------


class Hello(_Typed, frozen=True, kw_only=True):
    """First frame in both directions: who speaks, and what arrived before the stream broke."""

    protocol: int
    run: Name
    """The plan; both sides must mean the same."""
    node: Name
    session: Name
    """Made anew by every process; another one than before means that the peer was restarted."""
    received: Count
    """Sequence number of the last frame that arrived complete."""
    chunk_bytes: Count = 0
    """What frames for this side are best divided into: it may take in little at a time. Protocol 4
    had no such field, and is told so: a field that comes later needs a default too."""


class Refused(_Typed, frozen=True, kw_only=True):
    """Instead of a Hello: this stream will not be served, and why."""

    reason: Text


# ---- along the pipeline ----------------------------------------------------------------------


class Carried(_Typed, frozen=True, kw_only=True):
    """One value of the model on its way: the next tensor beside the message, or a plain number."""

    value: Count
    goes_to: tuple[Count, ...] = ()
    """Stages that still wait for it. A gradient has none: it goes back to where its value is."""
    number: int | float | bool | None = None
    """Set when the value is a plain number; no tensor travels then."""


class MicroBatch(_Typed, frozen=True, kw_only=True):
    """Which part of which batch; batches and updates are numbered over the whole run."""

    batch: Count
    part: Count
    parts: Count
    rows: Count
    batch_rows: Count
    update: Count
    """The optimizer step that this part contributes to."""
    closes_update: bool

    @property
    def is_last_part(self) -> bool:
        return self.part + 1 == self.parts


class Forward(_Typed, frozen=True, kw_only=True):
    """Activations for the next stage."""

    of: MicroBatch
    task: Literal["train", "validate", "predict"]
    carried: tuple[Carried, ...]
    proof: tuple[Count, ...] = ()
    """Digests of what the Root reads as this batch, for the Leaf to compare with its own."""
    tokens: Annotated[tuple[Count, ...], Meta(max_length=1000)] = ()
    """Digests of whole numbers that the model is given, with the first batches."""


class Backward(_Typed, frozen=True, kw_only=True):
    """Gradients for the stage before."""

    of: MicroBatch
    carried: tuple[Carried, ...]
    loss_scale: Factor = 1.0
    """Its gradients are so many times too large."""
    squared_norm: float = 0.0
    """Of what all later stages have accumulated, with the last part of a batch; not finite where
    one of them has gradients that are not."""
    loss: float | None = None
    """Of the whole batch, with its last part."""
    held_s: float = 0.0
    """From the arrival of the activations at the sender to this message."""
    path_s: float = 0.0
    """The least that a micro-batch takes from its arrival there until it comes back."""
    slowest_s: float = 0.0
    """What the slowest stage from the sender on computes on a micro-batch."""


class Result(_Typed, frozen=True, kw_only=True):
    """From the Leaf to the Root: a prediction, or that a batch has been judged."""

    batch: Count
    structure: bytes = b""
    """How the tensors beside this make up the model's output, as JSON; for predictions."""


class TiedGradient(_Typed, frozen=True, kw_only=True):
    """Gradients of parameters that a later stage holds copies of, for their owner: those of one
    batch."""

    names: tuple[Name, ...]
    owner: Count
    update: Count
    """The optimizer step that the batch contributes to."""
    loss_scale: Factor = 1.0
    """They are so many times too large."""


class TiedWeights(_Typed, frozen=True, kw_only=True):
    """New values of tied parameters, from their owner to the stages that hold copies."""

    names: tuple[Name, ...]


class TotalNorm(_Typed, frozen=True, kw_only=True):
    """Squared norm of the gradients of the whole model in this update, as they are applied. If it
    is not finite, the update is left out."""

    update: Count
    squared_norm: float
    loss_scale: Factor = 1.0
    """By which the gradients had been multiplied."""


Order = Literal[
    "flush", "epoch", "settle", "validation", "reset", "average", "save", "done", "goodbye"
]


class Command(_Typed, frozen=True, kw_only=True):
    """From the Root to everybody behind it, in line with the micro-batches."""

    order: Order
    number: Count = 0
    token: Name = ""
    """Tells one save from another."""

    @property
    def ends_update(self) -> bool:
        """An update that has begun is made first, with the batches there are."""
        return self.order in ("epoch", "flush", "average")


class Reply(_Typed, frozen=True, kw_only=True):
    """From the Leaf to the Root when everybody in between has done what was ordered."""

    order: Order
    number: Count = 0
    metrics: dict[Name, float] = {}


# ---- between clusters ------------------------------------------------------------------------


Members = Annotated[tuple[Count, ...], Meta(max_length=100_000)]
Lengths = Annotated[tuple[float, ...], Meta(max_length=100_000)]


class RingWish(_Typed, frozen=True, kw_only=True):
    """To the leader of a ring: how this member stands."""

    ring: Count
    member: Count
    number: Count
    """Counts what this member has said; only the latest counts."""
    complete: Count
    """The last round that is complete here."""
    settled: Count
    """The last one that is known to be complete everywhere."""
    missed: Count
    """The last one that has come to nothing here."""
    due: bool
    """It wants a round."""
    stand: Literal["trains", "waits", "ended"]
    """It stands still until the next round, or until the last one."""
    waited_long: bool = False
    """For others who do not; they are to be given up."""


class RingWho(_Typed, frozen=True, kw_only=True):
    """From the leader: say directly how you stand."""

    ring: Count
    by: Count


class RingShare(_Typed, frozen=True, kw_only=True):
    """What a member brings to a round."""

    member: Count
    weight: float
    """Rows since the last round that it has taken over."""
    rows: float
    """In the whole run so far."""
    layout: Count
    """Digest of the names and shapes of what it averages."""
    moments: Count
    """The same of its optimizer's state; 0 if there is none to average."""
    base: Count
    """What it counts its change from; 0 if from nothing. Equal numbers mean equal values."""


class RingCall(_Typed, frozen=True, kw_only=True):
    """Goes around once and collects who takes part, and with what."""

    ring: Count
    round: Count
    leader: Count
    fragment: Count
    """Which part of the ring's tensors; 0 for all of them."""
    shares: Annotated[tuple[RingShare, ...], Meta(max_length=100_000)]
    still: bool
    """Nobody trains meanwhile: all are to end with the same bytes."""
    last: bool
    """Everybody has finished training."""


class RingBegin(_Typed, frozen=True, kw_only=True):
    """Goes around after the call: the round begins."""

    ring: Count
    round: Count
    members: Members
    weights: tuple[float, ...]
    rows: tuple[float, ...]
    moments: bool
    """The optimizer's state is averaged too."""
    changes: bool
    """Changes since the common base travel, not the values themselves."""


class RingGot(_Typed, frozen=True, kw_only=True):
    """Goes around after a round of all that stand still: everybody up to here has everything."""

    ring: Count
    round: Count


class RingDone(_Typed, frozen=True, kw_only=True):
    """Goes around after that: everybody has everything."""

    ring: Count
    round: Count
    by: Count
    """Who says so, and where it ends."""


class RingCancel(_Typed, frozen=True, kw_only=True):
    """The round is off; goes both ways."""

    ring: Count
    round: Count
    reason: Text
    is_refused: bool = False
    """What has come of it is not to be taken over, and would be no other at once."""


class RingGone(_Typed, frozen=True, kw_only=True):
    """One member has given up another, or itself if it leaves; goes both ways."""

    ring: Count
    member: Count
    by: Count
    after: Count
    """The last round in which it has done all that others need of it."""
    is_late: bool = False
    """It may live, but the others have waited for it as long as they may."""
    is_caught: bool = False
    """It has been seen to do what it may not."""


class RingChunk(_Typed, frozen=True, kw_only=True):
    """A chunk of a ring's vector on its way around; the tensor beside it is its content."""

    ring: Count
    round: Count
    vector: Count
    """Which of the vectors of this round, in the order that all members know."""
    is_mean: bool
    segment: Count
    chunk: Count
    passed: Count
    """Members whose share is in it, or who have the mean."""


class RingPledge(_Typed, frozen=True, kw_only=True):
    """What a member says of itself before any chunk of a round is sent. Goes around once."""

    ring: Count
    round: Count
    by: Count
    chunks: Annotated[tuple[Lengths, ...], Meta(max_length=100_000)]
    """How long its change is, by vector and chunk."""
    rows: float
    usual: Lengths
    sizes: Lengths
    has_ended: bool
    codec: Name
    key: Annotated[bytes, Meta(max_length=16)]
    """For MACs of what the member before this one is given to hand on: for the member before that
    one, which hands the pledge on without it."""
    lock: Annotated[bytes, Meta(max_length=32)]
    """Digest of that key, by which all tell that they have heard of the same one."""


class RingTerms(_Typed, frozen=True, kw_only=True):
    """To the next member, before the first chunk: digest of all pledges and weights, which are to
    be the same for all."""

    ring: Count
    round: Count
    terms: Annotated[bytes, Meta(max_length=32)]


class RingWitness(_Typed, frozen=True, kw_only=True):
    """What a member was given to hand on in a round, from the one that gave it to the one behind.
    Goes back around the ring, and so never through the member that it is about."""

    ring: Count
    round: Count
    of: Count
    means: Count
    """Sum of the MACs."""


class RingClear(_Typed, frozen=True, kw_only=True):
    """The member before this one has done in the round what it may. Goes around once."""

    ring: Count
    round: Count
    by: Count


RingMessage = (
    RingWish
    | RingWho
    | RingCall
    | RingBegin
    | RingGot
    | RingDone
    | RingCancel
    | RingGone
    | RingChunk
    | RingPledge
    | RingTerms
    | RingWitness
    | RingClear
)


class ClusterLeft(_Typed, frozen=True, kw_only=True):
    """Along the pipeline, both ways: another cluster is ending, as one of its providers has said.

    Whoever has not heard of its own partner there need not wait for it to come up.
    """

    cluster: Count


class RingWentOn(_Typed, frozen=True, kw_only=True):
    """Along the pipeline, both ways: a round of this ring has been taken over."""

    ring: Count


# ---- at the end ------------------------------------------------------------------------------


class Failed(_Typed, frozen=True, kw_only=True):
    """The run is over for everybody; the first one to fail says why."""

    node: Name
    reason: Text
    culprit: Name = ""
    """Whose failure it was that this one came of, if it was not its own."""


Message = (
    Hello
    | Refused
    | Forward
    | Backward
    | Result
    | TiedGradient
    | TiedWeights
    | TotalNorm
    | Command
    | Reply
    | RingMessage
    | ClusterLeft
    | RingWentOn
    | Failed
)


class TensorMeta(_Typed, frozen=True, kw_only=True):
    """One tensor beside a message: how to read its bytes.

    A packed tensor has none of its own. Its parts follow, each one a plain tensor.
    """

    dtype: Name
    shape: Shape
    codec: Name = ""
    """How it was packed; empty for a plain tensor."""
    parts: Annotated[int, Meta(ge=0, le=8)] = 0


class Envelope(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The header of a frame."""

    message: Message
    tensors: Annotated[tuple[TensorMeta, ...], Meta(max_length=100_000)] = ()
