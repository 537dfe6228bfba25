"""Every bit kept: bytes of equal significance put side by side, and those compressed.

The first bytes of neighbouring numbers are much alike, signs and exponents, while the last ones
are noise. Side by side, the compressor finds the former and skips the latter quickly.

Works in main memory, wherever the tensor is.
"""

from typing import Any

import numpy as np
import torch

from ravnest.errors import NodeError, WireError
from ravnest.wire.codecs.checks import count_in, parts_of
from ravnest.wire.codecs.flat import SMALLEST, blocks_in, flattened
from ravnest.wire.codecs.packed import Packed
from ravnest.wire.dtypes import NAMES

_LEVEL = 1
_MOST = 1024
"""How many bytes one byte may become. Zeros would compress better, but then a few bytes from a
stranger could fill the memory; so what is smaller than this is filled up with bytes nobody reads.
"""


class Zstd:
    name = "zstd"

    def __init__(self) -> None:
        self._library = _zstandard()

    def pack(self, values: torch.Tensor) -> Packed | torch.Tensor:
        if values.dtype not in NAMES or values.numel() < SMALLEST:
            return values
        raw = flattened(values).to("cpu").view(torch.uint8).view(values.numel(), -1)
        planes = torch.empty(raw.shape[::-1], dtype=torch.uint8, device="cpu")
        for place, plane in enumerate(planes):
            plane.copy_(raw[:, place])
        # A compressor of its own for each call: they may not be shared between threads.
        compressor = self._library.ZstdCompressor(level=_LEVEL)
        content = bytearray(compressor.compress(planes.numpy().data))
        content += bytes(max(0, blocks_in(raw.numel(), _MOST) - len(content)))
        if len(content) >= raw.numel():
            return values
        part = torch.frombuffer(content, dtype=torch.uint8)
        return Packed(self.name, values.dtype, tuple(values.shape), (part,))

    def unpack(self, packed: Packed) -> torch.Tensor:
        count = count_in(packed, NAMES.keys())
        size = count * packed.dtype.itemsize
        sent = packed.parts[0].numel() if packed.parts else 0
        (part,) = parts_of(packed, (torch.uint8, sent))
        if size > sent * _MOST:
            raise WireError(f"{sent} bytes cannot become a tensor of {size} bytes")
        content = self._decompressed(part.to("cpu").contiguous(), size)
        planes = np.frombuffer(content, dtype=np.uint8).reshape(-1, count)
        raw = torch.empty(count, len(planes), dtype=torch.uint8, device="cpu")
        for place, plane in enumerate(planes):
            raw.numpy()[:, place] = plane
        return raw.view(-1).view(packed.dtype).view(packed.shape)

    def _decompressed(self, part: torch.Tensor, size: int) -> bytes:
        data = part.numpy().data
        try:
            # The library makes room for whatever the first bytes announce.
            if self._library.frame_content_size(data) != size:
                raise WireError(f"compressed bytes are not those of a tensor of {size} bytes")
            found: bytes = self._library.ZstdDecompressor().decompress(data, max_output_size=size)
        except self._library.ZstdError as error:
            raise WireError(f"compressed bytes are damaged: {error}") from error
        if len(found) != size:
            raise WireError(f"compressed bytes hold {len(found)} bytes instead of {size}")
        return found


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise NodeError(
            "compression with zstd needs the package zstandard: pip install zstandard"
        ) from error
    return zstandard
