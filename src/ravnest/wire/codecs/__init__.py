"""Tensors made smaller for the way: each codec is a file, `registry` knows them all by name.

Knows nothing about messages: what a codec makes is a `Packed`, and `wire.encoding` carries those.
"""

from ravnest.wire.codecs.packed import Packed
from ravnest.wire.codecs.registry import (
    CODECS,
    Codec,
    codec_named,
    is_for_main_memory,
    unpack,
)

__all__ = ["CODECS", "Codec", "Packed", "codec_named", "is_for_main_memory", "unpack"]
