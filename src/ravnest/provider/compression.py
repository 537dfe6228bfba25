"""Which codec is used where: on the edges of the pipeline, and on the rings between clusters."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ravnest.errors import NodeError
from ravnest.plan import bytes_per_s
from ravnest.provider.compute.copies import Sent
from ravnest.wire.codecs import CODECS, Codec, Packed, codec_named, unpack
from ravnest.wire.pace import Pace

SLOW_BYTES_PER_S = 1e9 / 8
"""A link of less than 1 Gbit/s is worth a codec that leaves more out."""
_GENTLE, _STRONG = "fp16", "int8"
Ready = Callable[[], None] | None
Leave = Callable[[Sequence[torch.Tensor]], tuple[tuple[torch.Tensor, ...], Ready]]


@dataclass(frozen=True)
class Compression:
    """A codec's name, "auto" for the link's speed to decide, or None."""

    edges: str | None = None
    rings: str | None = None

    @classmethod
    def of(cls, given: Any) -> "Compression":
        """From what the user says: True, a codec's name, or one for edges and one for rings."""
        if isinstance(given, cls):
            return given
        if isinstance(given, Mapping):
            if unknown := given.keys() - {"edges", "rings"}:
                raise NodeError(
                    f"compression has the key {min(unknown, key=str)!r}; known are 'edges' and "
                    "'rings'"
                )
            return cls(_for_edges(given.get("edges")), _checked(given.get("rings")))
        return cls(_for_edges(given), _checked(given))

    def for_rings(self, most_mbps: float | None) -> str | None:
        """Where rounds are held back a link is never busy, and cannot be seen to be slow."""
        if self.rings == "auto" and most_mbps is not None:
            return _STRONG if bytes_per_s(most_mbps) < SLOW_BYTES_PER_S else _GENTLE
        return self.rings

    @property
    def loosest_on_rings(self) -> str:
        return _STRONG if self.rings == "auto" else self.rings or ""


def _for_edges(given: Any) -> str | None:
    name = _checked(given)
    if name == "topk":
        raise NodeError(
            "compression='topk' is for rings, which send later what it leaves out; on the edges of "
            "the pipeline that would be lost: compression={'rings': 'topk', 'edges': 'int8'}"
        )
    return name


def _checked(given: Any) -> str | None:
    if given is None or given is False:
        return None
    if given is True:
        return "auto"
    if given == "auto":
        return "auto"
    if given in CODECS:
        codec_named(given)  # it may need something that is not installed
        return str(given)
    choices = ", ".join(repr(name) for name in CODECS)
    raise NodeError(f"compression is {given!r}; expected True, False or one of {choices}")


class Packing:
    """Packs what goes over one link."""

    def __init__(self, codec: str | None) -> None:
        self._automatic = codec == "auto"
        self._codec = codec_named(_GENTLE if codec == "auto" else codec) if codec else None

    def codec_for(self, link: Any) -> Codec | None:
        """With "auto" a fast link takes the gentlest codec, and one that holds its sender up and is
        slow takes a stronger one, from then on: relieved of the load it would look fast."""
        if self._automatic and _holds_up(link):
            self._automatic, self._codec = False, codec_named(_STRONG)
        return self._codec

    def pack(self, items: tuple[Sent, ...], link: Any) -> tuple[Sent, ...]:
        codec = self.codec_for(link)
        return items if codec is None else tuple(_packed(item, codec) for item in items)


def _packed(item: Sent, codec: Codec) -> Sent:
    """What came packed, and is only handed on, loses no more digits than it has to."""
    if isinstance(item, Packed):
        if item.codec == codec.name:
            return item
        item = unpack(item)
    return codec.pack(item.detach())


def leaving(items: Sequence[Sent], leave: Leave) -> tuple[tuple[Sent, ...], Ready]:
    """The same where they can be sent from, and what to wait for before that."""
    left, ready = leave([part for item in items for part in _parts(item)])
    rest = iter(left)
    return tuple(_with_parts(item, rest) for item in items), ready


def _parts(item: Sent) -> tuple[torch.Tensor, ...]:
    return item.parts if isinstance(item, Packed) else (item,)


def _with_parts(item: Sent, rest: Iterator[torch.Tensor]) -> Sent:
    if isinstance(item, Packed):
        return replace(item, parts=tuple(next(rest) for _ in item.parts))
    return next(rest)


def _holds_up(link: Any) -> bool:
    pace: Pace | None = getattr(link, "pace", None)
    if pace is None or not pace.holds_up:
        return False
    speed = pace.bytes_per_s
    return speed is not None and speed < SLOW_BYTES_PER_S
