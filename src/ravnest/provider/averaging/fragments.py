"""A ring's tensors in parts that are averaged in turn, and what is remembered about each."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import xxhash

from ravnest.provider.averaging.outer import Momentum, Nesterov
from ravnest.provider.averaging.settings import Averaging
from ravnest.provider.averaging.vectors import Layout, Vectors, averaged, numbered
from ravnest.wire.codecs import Codec

_EXACT_ENOUGH = {"fp16", "bf16", "zstd"}
"""Codecs that leave out no more of a change than rounding does to weights of half precision."""


def divided(sizes: Mapping[str, int], parts: int) -> list[list[str]]:
    """Names in order, in so many runs of about equal size; fewer if there are fewer names."""
    parts = max(1, min(parts, len(sizes)))
    total = sum(sizes.values())
    found: list[list[str]] = [[]]
    passed = 0
    for position, (name, size) in enumerate(sizes.items()):
        left = len(sizes) - position
        full = passed + size / 2 > total * len(found) / parts
        if found[-1] and len(found) < parts and (full or left == parts - len(found)):
            found.append([])
        found[-1].append(name)
        passed += size
    return found


def fragments_of(
    tensors: Mapping[str, torch.Tensor],
    parameters: Collection[str],
    settings: Averaging,
) -> "list[Fragment]":
    """A ring's tensors as the settings want them, with their present values as the first base."""
    sizes = {name: tensor.nbytes for name, tensor in averaged(tensors).items()}
    runs = divided(sizes, settings.fragments)
    return [
        Fragment.starting_from(Layout.of(some, parameters), some, outer=settings.outer)
        for some in ({name: tensors[name] for name in names} for names in runs)
    ]


@dataclass
class Fragment:
    """One of them. Lives on the averager's thread; only `layout` is looked at elsewhere."""

    layout: Layout
    base: Vectors
    """What changes of parameters are counted from: equal bytes for all members with the same
    `base_id`."""
    base_id: int = 0
    residual: Vectors | None = None
    """What compression has left out so far of what this member was to send."""
    compressed_by: str = ""
    """The codec that has left it out."""
    momenta: list[Momentum] = field(default_factory=list)
    _may_be: tuple[bool, bool] | None = None
    """Some models keep NaN, or infinities (masks), in a buffer from the beginning; None before the
    first look."""

    @classmethod
    def starting_from(
        cls,
        layout: Layout,
        tensors: Mapping[str, torch.Tensor],
        *,
        outer: Nesterov | None = None,
    ) -> "Fragment":
        whole = layout.gather(tensors)
        base = Vectors(*(v[:n].clone() for v, n in zip(whole, layout.trained(), strict=True)))
        momenta = [] if outer is None else [Momentum(outer) for _ in base]
        content = [xxhash.xxh3_64_intdigest(vector.numpy().data) for vector in base]
        return cls(layout, base, numbered(layout.digest, content), momenta=momenta)

    def remember_for(self, codec: Codec | None) -> None:
        """From now on what codecs leave out is made up for, if this one leaves out much."""
        if codec is None or codec.name in _EXACT_ENOUGH:
            return
        self.compressed_by = codec.name
        if self.residual is None:
            self.residual = Vectors(*(torch.zeros_like(vector) for vector in self.base))

    def fault_in(self, vectors: Vectors) -> str:
        """What in these values must not be averaged; empty if nothing."""
        split = list(zip(vectors, self.layout.trained(), strict=True))
        names, count = self.layout.names, self.layout.parameters
        if not all(is_finite(vector[:trained]) for vector, trained in split):
            return (
                f"there are weights that are not finite (NaN or infinite) among {names[0]!r} and "
                "those after it"
            )
        rest = [vector[trained:] for vector, trained in split]
        has_nan = any(bool(vector.isnan().any()) for vector in rest)
        has_infinities = any(bool(vector.isinf().any()) for vector in rest)
        if self._may_be is None:
            self._may_be = has_nan, has_infinities
        for has, may, what in zip(
            (has_nan, has_infinities), self._may_be, ("NaN", "an infinity"), strict=True
        ):
            if has and not may:
                return f"there is {what} in buffers among {names[count]!r} and those after it"
        return ""

    def completed(self, number: int, members: Sequence[int], *, changes: bool) -> None:
        """A round of this fragment is over, and the base is what it has agreed upon."""
        before = self.base_id if changes else 0
        self.base_id = numbered(before, self.layout.digest, number, *members)
        if not changes:
            self._begin_anew()

    def failed(self) -> None:
        """A round has come to nothing: the base may be half changed."""
        self.base_id = 0
        self._begin_anew()

    def _begin_anew(self) -> None:
        for momentum in self.momenta:
            momentum.forget()
        for vector in self.residual or ():
            vector.zero_()


def is_finite(vector: torch.Tensor) -> bool:
    return not vector.numel() or bool(torch.stack(torch.aminmax(vector)).isfinite().all())
