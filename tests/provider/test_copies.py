"""Copies beside computing are right whatever the queues of a device do, as late as they may."""

import contextlib

import pytest
import torch
from devices import requires_toy

from ravnest.provider.compression import Packing, leaving
from ravnest.provider.compute import copies
from ravnest.provider.compute.copies import Leaving, QueuedCopies, copies_for
from ravnest.wire.codecs import Packed, codec_named, unpack

requires_toy()
from devices import toy  # noqa: E402
from devices.queues import Queue, played  # noqa: E402

ROWS, COLUMNS = 24, 32
SENDS = {
    "dense": lambda x: (x + 1,),
    "not contiguous": lambda x: ((x + 1).t(), (x * 2)[:, ::2]),
    "a slice": lambda x: ((x + 1)[3:],),
    "sparse": lambda x: (sparse(x),),
    "packed": lambda x: Packing("int8").pack((x + 1,), None),
    "half": lambda x: ((x + 1).half().t(),),
}


def sparse(x):
    """As `nn.Embedding(sparse=True)` makes gradients."""
    rows = torch.tensor([[5, 1, 5, 0]]).to(x.device)
    return torch.sparse_coo_tensor(rows, x[:4] * 2, x.shape, check_invariants=False)


def arrive(generator, codec):
    value = torch.randn(ROWS, COLUMNS, generator=generator)
    return value if codec is None else codec_named(codec).pack(value)


def sent_by(device, sends, codec=None, micro_batches=6):
    """What a stage receives, makes of it and sends, one micro-batch after the other, with three of
    them on their way in and two on their way out."""
    mover, generator = copies_for(torch.device(device)), torch.Generator().manual_seed(0)
    coming, going, found = [], [], []

    def take_one():
        items, ready = going.pop(0)
        if ready is not None:
            ready()
        parts = [item.parts if isinstance(item, Packed) else (item,) for item in items]
        found.append([part.to_dense().clone() for some in parts for part in some])

    for _ in range(micro_batches):
        while len(coming) < 2:
            coming.append(mover.set_out(arrive(generator, codec)))
        value = mover.bring({0: coming.pop(0)})[0]
        made = sends(value)
        del value
        coming.append(mover.set_out(arrive(generator, codec)))  # in the middle of a pass
        mover.finish_pass()
        going.append(leaving(made, mover.leave))
        del made
        if len(going) == 2:
            take_one()
    while going:
        take_one()
    return found


def are_equal(found, expected):
    return all(
        torch.equal(one, other)
        for ours, theirs in zip(found, expected, strict=True)
        for one, other in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize("early", [False, True], ids=["late", "early"])
@pytest.mark.parametrize("codec", [None, "int8", "int4", "fp16", "zstd"])
@pytest.mark.parametrize("sends", SENDS)
def test_what_is_sent_is_what_the_cpu_sends(sends, codec, early):
    expected = sent_by("cpu", SENDS[sends], codec)
    with played(early=early) as (player, _):
        found = sent_by("toy:0", SENDS[sends], codec)
    assert are_equal(found, expected)
    assert player.reused
    assert not player.waited_for_copies


COMES = {
    "expanded": lambda x: x[:1].expand(ROWS, COLUMNS),
    "overlapping": lambda x: x.as_strided((ROWS, COLUMNS), (1, 1)),
    "transposed": lambda x: x.t(),
    "with gaps": lambda x: x[:, ::2],
    "channels last": lambda x: x.view(2, 3, 4, -1).contiguous(memory_format=torch.channels_last),
    "conjugated": lambda x: torch.view_as_complex(x.view(-1, 2)).conj(),
    "empty": lambda x: x[:0],
    "a number": lambda x: x[0, 0],
}


@pytest.mark.parametrize("comes", COMES)
def test_what_comes_may_lie_in_memory_as_it_likes(comes):
    given = COMES[comes](torch.randn(ROWS, COLUMNS))
    with played() as (player, _):
        mover = copies_for(torch.device("toy:0"))
        found = mover.brought(mover.set_out(given)) * 2
        mover.finish_pass()
        torch.testing.assert_close(found.cpu(), given * 2, rtol=0, atol=0)
    assert not player.waited_for_copies


@pytest.mark.parametrize("has_queues", [False, True], ids=["in line", "queues"])
@pytest.mark.parametrize("codec", ["int8", "int4", "fp16", "zstd"])
def test_what_is_packed_crosses_to_the_device_packed(codec, has_queues, monkeypatch):
    """And is unpacked there, with as many bytes less for the bus; only zstd needs main memory."""
    given = torch.randn(ROWS, COLUMNS)
    packed = codec_named(codec).pack(given)
    with played() if has_queues else contextlib.nullcontext():
        player, crossed = type(toy.PLAYING[-1]), []
        copy = player.copy

        def copy_(self, source, target, non_blocking):
            if toy.is_toy(target) and not toy.is_toy(source):
                crossed.append((source.dtype, tuple(source.shape)))
            copy(self, source, target, non_blocking)

        mover = copies_for(torch.device("toy:0"))
        mover.brought(mover.set_out(packed))  # a codec has constants there, from its first use on
        monkeypatch.setattr(player, "copy", copy_)
        found = mover.brought(mover.set_out(packed))
        mover.finish_pass()
        assert found.device.type == "toy"
        assert torch.equal(found.cpu(), unpack(packed))
    moved = (given,) if codec == "zstd" else packed.parts
    assert crossed == [(part.dtype, tuple(part.shape)) for part in moved]


class _DenseBeside(QueuedCopies):
    """Makes dense what leaves on the queue that copies it."""

    def _download(self, plain):
        return super()._download(plain.to_dense().contiguous())


class _SentAtOnce(QueuedCopies):
    def leave(self, tensors):
        return Leaving(super().leave(tensors).tensors)


def _never_waits(player, patch):
    patch.setattr(Queue, "wait_event", lambda self, event: None)


def _waits_for_nothing(player, patch):
    patch.setattr(Queue, "wait_stream", lambda self, other: None)


def _records_for(is_kept):
    def change(player, patch):
        record = player.record

        def some(tensor, queue):
            if is_kept(queue in player.computing):
                record(tensor, queue)

        patch.setattr(torch.Tensor, "record_stream", some)

    return change


def _dense_beside(player, patch):
    patch.setattr(copies, "QueuedCopies", _DenseBeside)
    patch.setattr(copies, "_plain", lambda tensor: tensor)


def _sent_at_once(player, patch):
    patch.setattr(copies, "QueuedCopies", _SentAtOnce)


_in_records = _records_for(lambda computing: not computing)
_out_records = _records_for(lambda computing: computing)
FAULTS = {
    "the computing does not wait for what comes": (_never_waits, "dense", "late"),
    "a copy does not wait for the computing": (_waits_for_nothing, "not contiguous", "early"),
    "what has come is not recorded": (_in_records, "dense", "early"),
    "what leaves is not recorded": (_out_records, "dense", "late"),
    "the copying queue makes a transposed value dense": (_dense_beside, "not contiguous", "late"),
    "the copying queue makes a sparse gradient dense": (_dense_beside, "sparse", "late"),
    "it is sent before it is there": (_sent_at_once, "dense", "late"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_copies_is_found(fault):
    """What the tests above are worth: each thing that may be forgotten gives other numbers."""
    seed, sends, how = FAULTS[fault]
    expected = sent_by("cpu", SENDS[sends])
    with played(early=how == "early") as (player, patch):
        seed(player, patch)
        found = sent_by("toy:0", SENDS[sends])
    assert not are_equal(found, expected)
