"""Which values a stage keeps, hands on and sends back.

A value travels from the stage that makes it through its neighbours to every stage that uses it; its
gradient comes back the same way, and is added up where ways meet. So each stage talks to two
neighbours only, whatever the model's skip connections look like.

Values are known by number; payloads are tensors, or plain numbers that travel in the message. What
a stage only hands on it neither unpacks nor takes to its device.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ravnest.errors import WireError
from ravnest.provider.compute.copies import Sent, original
from ravnest.stage.graph import Wire
from ravnest.wire.codecs import Packed
from ravnest.wire.messages import Backward, Carried, Forward, Message, TiedGradient, TiedWeights


@dataclass(slots=True)
class Onward:
    """What came from the stage before and is for later ones."""

    payloads: dict[int, Any] = field(default_factory=dict)
    goes_to: dict[int, tuple[int, ...]] = field(default_factory=dict)


def are_for(message: Message, stage: int, values: Collection[int]) -> list[bool]:
    """Whether this stage, which computes with these values, will take the tensors of a message to
    its device, one after the other; those that are not mentioned it will not."""
    match message:
        case Forward(carried=carried):
            return [stage in item.goes_to for item in carried if item.number is None]
        case Backward(carried=carried):
            return [item.value in values for item in carried if item.number is None]
        case TiedGradient(owner=owner, names=names):
            return [owner == stage] * len(names)
        case TiedWeights(names=names):
            return [True] * len(names)
    return []


def unpack(
    carried: Sequence[Carried], tensors: Sequence[Any], stage: int
) -> tuple[dict[int, Any], Onward]:
    """Values for this stage, and those for later ones."""
    mine: dict[int, Any] = {}
    onward = Onward()
    for item, payload in _payloads(carried, tensors):
        if stage in item.goes_to:
            mine[item.value] = payload
        later = tuple(target for target in item.goes_to if target > stage)
        if later:
            onward.payloads[item.value] = original(payload)
            onward.goes_to[item.value] = later
    return mine, onward


def _payloads(carried: Sequence[Carried], tensors: Sequence[Any]) -> Iterable[tuple[Carried, Any]]:
    rest = iter(tensors)
    seen: set[int] = set()
    for item in carried:
        if item.value in seen:
            raise WireError(f"value {item.value} comes twice in one message")
        seen.add(item.value)
        if item.number is not None:
            yield item, item.number
            continue
        tensor = next(rest, None)
        if tensor is None:
            raise WireError("a message has fewer tensors than it speaks of")
        yield item, tensor
    if next(rest, None) is not None:
        raise WireError("a message has more tensors than it speaks of")


def pack_forward(
    sends: Sequence[Wire], known: Mapping[int, Any], onward: Onward
) -> tuple[tuple[Carried, ...], tuple[Sent, ...]]:
    """What goes to the next stage: this stage's own values, then those it hands on."""
    outgoing = [(wire.value, wire.stages, known[wire.value]) for wire in sends]
    outgoing += [
        (value, onward.goes_to[value], payload) for value, payload in onward.payloads.items()
    ]
    return _pack(outgoing)


def pack_backward(
    gradients: Mapping[int, Sent],
) -> tuple[tuple[Carried, ...], tuple[Sent, ...]]:
    return _pack([(value, (), gradient) for value, gradient in gradients.items()])


def _pack(
    outgoing: Sequence[tuple[int, tuple[int, ...], Any]],
) -> tuple[tuple[Carried, ...], tuple[Sent, ...]]:
    carried: list[Carried] = []
    tensors: list[Sent] = []
    for value, goes_to, payload in outgoing:
        if isinstance(payload, torch.Tensor | Packed):
            carried.append(Carried(value=value, goes_to=goes_to))
            tensors.append(payload)
        else:
            carried.append(Carried(value=value, goes_to=goes_to, number=payload))
    return tuple(carried), tuple(tensors)


def unpack_gradients(carried: Sequence[Carried], tensors: Sequence[Any]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for item, payload in _payloads(carried, tensors):
        if item.number is not None:
            raise WireError(f"the gradient of value {item.value} is not a tensor")
        found[item.value] = payload
    return found


def gradients_for_previous(
    own: Mapping[int, torch.Tensor],
    arrived: Mapping[int, Any],
    onward: Onward,
) -> dict[int, Sent]:
    """Gradients of everything that came from the stage before: this stage's share and the later
    stages' added up."""
    found: dict[int, Sent] = dict(own)
    for value, gradient in arrived.items():
        if value in onward.payloads:
            found[value] = own[value] + gradient.to(own[value]) if value in own else gradient
    return found
