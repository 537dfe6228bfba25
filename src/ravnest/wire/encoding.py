"""Messages and the tensors beside them as header and body of a frame.

Tensors are neither copied nor joined when they are encoded: the body refers to their memory, so a
tensor that was handed over to be sent must not be written to any more. Decoded tensors are views
of the received body.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import torch

from ravnest.errors import WireError
from ravnest.wire.framing import Buffer, Frame
from ravnest.wire.messages import Envelope, Message, TensorMeta

ALIGNMENT = 64
"""Every tensor begins at a multiple of this in the body, as vector instructions like it."""

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.complex64,
        torch.complex128,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)


@dataclass(frozen=True, slots=True)
class Parcel:
    """A message with its tensors."""

    message: Message
    tensors: tuple[torch.Tensor, ...] = ()
    ready: Callable[[], None] | None = None
    """Returns when the tensors hold what is to be sent; may block."""


def encode(parcel: Parcel, sequence: int) -> Frame:
    metas: list[TensorMeta] = []
    body: list[Buffer] = []
    for tensor in parcel.tensors:
        name = _NAMES.get(tensor.dtype)
        if name is None:
            raise WireError(f"a tensor of type {tensor.dtype} cannot be sent")
        metas.append(TensorMeta(dtype=name, shape=tuple(tensor.shape)))
        body += _bytes_of(tensor)
    header = _encoder.encode(Envelope(parcel.message, tuple(metas)))
    return Frame(sequence, header, body, parcel.ready)


def decode(frame: Frame) -> Parcel:
    try:
        envelope = _decoder.decode(frame.header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"a message cannot be understood: {error}") from error
    (body,) = frame.body or (bytearray(),)
    return Parcel(envelope.message, _tensors(envelope.tensors, body))


def _bytes_of(tensor: torch.Tensor) -> Sequence[Buffer]:
    # Gradients of an embedding may be sparse; on the way they are not.
    dense = tensor.detach().to_dense().resolve_conj().resolve_neg()
    plain = dense.to("cpu").contiguous().reshape(-1)
    if not plain.numel():
        return ()
    view = plain.view(torch.uint8).numpy().data
    padding = -len(view) % ALIGNMENT
    return (view, bytes(padding)) if padding else (view,)


def _tensors(metas: Sequence[TensorMeta], body: Buffer) -> tuple[torch.Tensor, ...]:
    tensors, start = [], 0
    for meta in metas:
        dtype = _DTYPES.get(meta.dtype)
        if dtype is None:
            raise WireError(f"a tensor has the unknown type {meta.dtype[:50]!r}")
        count = math.prod(meta.shape)
        stop = start + count * dtype.itemsize
        if stop > len(body):
            raise WireError(f"a tensor of shape {list(meta.shape)} does not fit into its message")
        try:
            if count:
                flat = torch.frombuffer(body, dtype=dtype, count=count, offset=start)
            else:
                flat = torch.empty(0, dtype=dtype)
            tensors.append(flat.view(meta.shape))
        except (RuntimeError, OverflowError) as error:
            shown = list(meta.shape[:8])
            raise WireError(f"there can be no tensor of shape {shown}") from error
        start = stop + (-stop % ALIGNMENT)
    if start != len(body):
        raise WireError(f"a message has {len(body)} bytes of tensors and explains {start} of them")
    return tuple(tensors)
