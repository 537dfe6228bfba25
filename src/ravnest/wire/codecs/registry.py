"""The codecs by their names, as users choose them and tensors carry them."""

import functools
from collections.abc import Callable
from typing import Protocol

import torch

from ravnest.errors import NodeError, WireError
from ravnest.wire.codecs.half import Bf16, Fp16
from ravnest.wire.codecs.int4 import Int4
from ravnest.wire.codecs.int8 import Int8
from ravnest.wire.codecs.noise import Noise
from ravnest.wire.codecs.packed import Packed
from ravnest.wire.codecs.topk import TopK
from ravnest.wire.codecs.zstd import Zstd


class Codec(Protocol):
    """One way to make tensors smaller. Both halves may be called from any thread."""

    name: str

    def pack(self, values: torch.Tensor) -> Packed | torch.Tensor:
        """Never writes to the tensor; returns it as it is where this codec does not apply."""

    def unpack(self, packed: Packed) -> torch.Tensor:
        """A new tensor; `WireError` if the parts are not what `pack` makes of such a tensor."""


_MAKERS: dict[str, Callable[[], Codec]] = {
    "fp16": Fp16,
    "bf16": Bf16,
    "int8": Int8,
    "int4s": lambda: Int4("int4s", Noise()),
    "int4": lambda: Int4("int4", None),
    "topk": TopK,
    "zstd": Zstd,
}
CODECS = tuple(_MAKERS)


@functools.cache
def codec_named(name: str) -> Codec:
    """For users: a codec that does not exist, or needs a package that does not, is their error."""
    if name not in _MAKERS:
        raise NodeError(f"there is no codec {name!r}; there are: {', '.join(CODECS)}")
    return _MAKERS[name]()


def is_for_main_memory(packed: Packed) -> bool:
    """Whether it has to be unpacked there. All others are unpacked wherever their parts are."""
    return packed.codec == Zstd.name


def unpack(packed: Packed) -> torch.Tensor:
    """For what arrived: whatever is wrong is the sender's error."""
    try:
        codec = codec_named(packed.codec)
    except NodeError as error:
        raise WireError(f"a tensor cannot be unpacked: {error}") from error
    return codec.unpack(packed)
