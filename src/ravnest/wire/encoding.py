"""Messages and the tensors beside them as header and body of a frame.

Tensors are neither copied nor joined when they are encoded: the body refers to their memory, so a
tensor that was handed over to be sent must not be written to any more. Decoded tensors are views
of the received body.

Packed tensors stay packed here, on both sides: to pack and to unpack takes time, which is not
taken from the thread that serves the network.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import torch

from ravnest.api.limits import NOT_UNDERSTOOD
from ravnest.errors import WireError
from ravnest.wire.codecs.packed import Packed
from ravnest.wire.codecs.registry import CODECS, unpack
from ravnest.wire.dtypes import DTYPES, NAMES
from ravnest.wire.framing import Buffer, Frame
from ravnest.wire.messages import Envelope, Message, TensorMeta

ALIGNMENT = 64
"""Every tensor begins at a multiple of this in the body, as vector instructions like it."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)


@dataclass(frozen=True, slots=True)
class Parcel:
    """A message with its tensors."""

    message: Message
    tensors: tuple[torch.Tensor | Packed, ...] = ()
    ready: Callable[[], None] | None = None
    """Returns when the tensors hold what is to be sent; may block."""


def opened(parcel: Parcel) -> tuple[torch.Tensor, ...]:
    """The tensors of a parcel, unpacked."""
    return tuple(unpack(t) if isinstance(t, Packed) else t for t in parcel.tensors)


def encode(parcel: Parcel, sequence: int) -> Frame:
    metas: list[TensorMeta] = []
    body: list[Buffer] = []
    for tensor in parcel.tensors:
        metas.append(_meta_of(tensor))
        for part in tensor.parts if isinstance(tensor, Packed) else ():
            metas.append(_meta_of(part))
            body += _bytes_of(part)
        if isinstance(tensor, torch.Tensor):
            body += _bytes_of(tensor)
    header = _encoder.encode(Envelope(parcel.message, tuple(metas)))
    return Frame(sequence, header, body, parcel.ready)


def decode(frame: Frame) -> Parcel:
    try:
        envelope = _decoder.decode(frame.header)
    except NOT_UNDERSTOOD as error:
        raise WireError(f"a message cannot be understood: {error}") from error
    (body,) = frame.body or (bytearray(),)
    return Parcel(envelope.message, _tensors(envelope.tensors, body))


def _meta_of(tensor: torch.Tensor | Packed) -> TensorMeta:
    name = NAMES.get(tensor.dtype)
    if name is None:
        raise WireError(f"a tensor of type {tensor.dtype} cannot be sent")
    shape = tuple(tensor.shape)
    if isinstance(tensor, torch.Tensor):
        return TensorMeta(dtype=name, shape=shape)
    return TensorMeta(dtype=name, shape=shape, codec=tensor.codec, parts=len(tensor.parts))


def _bytes_of(tensor: torch.Tensor) -> Sequence[Buffer]:
    plain = tensor.detach()
    if not _lies_plainly(plain):
        # Gradients of an embedding may be sparse; on the way they are not.
        plain = plain.to_dense().resolve_conj().resolve_neg().to("cpu").contiguous()
    if not plain.numel():
        return ()
    # Not reshaped: a single element counts as contiguous with any stride, and keeps it.
    flat = plain.as_strided((plain.numel(),), (1,))
    view = flat.view(torch.uint8).numpy().data
    padding = -len(view) % ALIGNMENT
    return (view, bytes(padding)) if padding else (view,)


def _lies_plainly(tensor: torch.Tensor) -> bool:
    """Asked first, because every operator lets other threads in, whether it has work or not."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.is_conj()
        and not tensor.is_neg()
        and tensor.is_contiguous()
    )


def _tensors(metas: Sequence[TensorMeta], body: Buffer) -> tuple[torch.Tensor | Packed, ...]:
    tensors: list[torch.Tensor | Packed] = []
    reader, remaining = _Reader(body), iter(metas)
    for meta in remaining:
        if meta.codec or meta.parts:
            tensors.append(_packed(meta, remaining, reader))
        else:
            tensors.append(reader.tensor(meta))
    if reader.position != len(body):
        raise WireError(
            f"a message has {len(body)} bytes of tensors and explains {reader.position} of them"
        )
    return tuple(tensors)


def _packed(meta: TensorMeta, following: Iterator[TensorMeta], reader: "_Reader") -> Packed:
    if meta.codec not in CODECS:
        raise WireError(f"a tensor is packed in the unknown way {meta.codec[:50]!r}")
    parts = list(itertools.islice(following, meta.parts))
    if not parts or len(parts) != meta.parts:
        raise WireError(f"a tensor packed as {meta.codec} has {len(parts)} parts")
    if any(part.codec or part.parts for part in parts):
        raise WireError("a part of a packed tensor is packed itself")
    tensors = tuple(reader.tensor(part) for part in parts)
    return Packed(meta.codec, _dtype_of(meta), meta.shape, tensors)


def _dtype_of(meta: TensorMeta) -> torch.dtype:
    dtype = DTYPES.get(meta.dtype)
    if dtype is None:
        raise WireError(f"a tensor has the unknown type {meta.dtype[:50]!r}")
    return dtype


class _Reader:
    """Reads tensors off a body, one after the other."""

    def __init__(self, body: Buffer) -> None:
        self._body = body
        self.position = 0

    def tensor(self, meta: TensorMeta) -> torch.Tensor:
        dtype, count = _dtype_of(meta), math.prod(meta.shape)
        start, stop = self.position, self.position + count * dtype.itemsize
        if stop > len(self._body):
            raise WireError(f"a tensor of shape {list(meta.shape)} does not fit into its message")
        self.position = stop + (-stop % ALIGNMENT)
        try:
            if count:
                flat = torch.frombuffer(self._body, dtype=dtype, count=count, offset=start)
            else:
                flat = torch.empty(0, dtype=dtype)
            return flat.view(meta.shape)
        except (RuntimeError, OverflowError) as error:
            shown = list(meta.shape[:8])
            raise WireError(f"there can be no tensor of shape {shown}") from error
