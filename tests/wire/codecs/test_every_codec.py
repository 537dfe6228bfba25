"""What holds for all codecs alike, whatever the tensor: type, shape, layout, special numbers."""

import threading

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from ravnest.errors import NodeError, WireError
from ravnest.wire.codecs import CODECS, Packed, codec_named, rotation, unpack
from ravnest.wire.codecs.zstd import Zstd

LOSSY = [name for name in CODECS if name != "zstd"]
EXACT_TYPES = [torch.float64, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool]
every_codec = pytest.mark.parametrize("name", CODECS)
lossy_codec = pytest.mark.parametrize("name", LOSSY)


def raw(tensor):
    """Bytes, because NaN is not equal to itself and -0.0 is equal to 0.0."""
    flat = tensor.new_empty(tensor.numel()).copy_(tensor.detach().reshape(-1))
    return flat.view(torch.uint8).numpy().tobytes()


def there_and_back(name, values):
    packed = codec_named(name).pack(values)
    return unpack(packed) if isinstance(packed, Packed) else packed


@st.composite
def laid_out(draw):
    """A tensor of some shape, and how it lies in memory."""
    shape = draw(st.lists(st.integers(1, 40), min_size=1, max_size=4).filter(lambda s: len(s) < 4))
    dtype = draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
    torch.manual_seed(draw(st.integers(0, 10**6)))
    values = torch.randn([2 * shape[0], *shape[1:]]).to(dtype)
    match draw(st.sampled_from(["plain", "steps", "transposed", "repeated", "shifted"])):
        case "steps":
            return values[::2]
        case "transposed":
            return values.movedim(0, -1)
        case "repeated":
            return values[:1].expand(300, *shape[1:])
        case "shifted":
            return values.flatten()[1:]
    return values


@every_codec
@given(values=laid_out())
@settings(max_examples=60, deadline=None)
def test_layout_does_not_matter_and_nothing_is_written_to(name, values):
    before = values.clone()
    found = there_and_back(name, values)
    assert (found.dtype, found.shape) == (values.dtype, values.shape)
    assert raw(values) == raw(before)
    if name != "int4s":  # which rolls dice
        assert raw(found) == raw(there_and_back(name, before.contiguous()))


@every_codec
@pytest.mark.parametrize("count", [256, 257, 383, 65_537, (1 << 18) + 1, (1 << 19) + 70_000])
def test_counts_around_the_edges_of_blocks_and_tiles(name, count):
    """A wrong index at an edge shows as an error far above what the codec makes elsewhere."""
    torch.manual_seed(count)
    values = torch.randn(count)
    found = there_and_back(name, values)
    worst = {"topk": 0.95, "int4s": 0.2, "int4": 0.15}.get(name, 0.01)
    assert (found - values).norm() <= worst * values.norm()
    last = slice(-(count % 256 or 256), None)
    if name != "topk":
        assert (found - values)[last].norm() <= 3 * worst * values[-256:].norm()


@every_codec
@pytest.mark.parametrize("dtype", [*EXACT_TYPES, torch.complex64], ids=str)
def test_other_types_travel_exactly(name, dtype):
    values = torch.arange(2000).to(dtype)
    packed = codec_named(name).pack(values)
    if name != "zstd":
        assert packed is values
    else:
        assert raw(unpack(packed) if isinstance(packed, Packed) else packed) == raw(values)


@every_codec
@pytest.mark.parametrize("shape", [(), (0,), (0, 1000), (1,), (255,), (5, 51)])
def test_small_tensors_travel_as_they_are(name, shape):
    values = torch.zeros(shape)
    assert codec_named(name).pack(values) is values


@pytest.mark.parametrize("name", ["fp16", "bf16"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_not_halved(name, dtype):
    values = torch.ones(1000, dtype=dtype)
    assert codec_named(name).pack(values) is values


@every_codec
@pytest.mark.parametrize("special", [float("nan"), float("inf"), -float("inf"), 3.4e38])
@pytest.mark.parametrize("place", [0, 299, 70_000, 300_010])
def test_special_numbers_survive(name, special, place):
    values = torch.randn(300_011)
    values[place] = special
    assert raw(there_and_back(name, values)) == raw(values)


@every_codec
@pytest.mark.parametrize("payload", [0x7F800001, 0x7FFFFFFF, -1])
def test_every_kind_of_nan_survives(name, payload):
    values = torch.zeros(1000)
    values.view(torch.int32)[500] = payload
    assert raw(there_and_back(name, values)) == raw(values)


@lossy_codec
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_was_finite_stays_finite(name, dtype):
    for largest in (torch.finfo(dtype).max, 65_504.0, 1e30, 1e-30, 1e-38, 1e-44):
        if largest <= torch.finfo(dtype).max:
            signs = torch.randint(0, 2, (5000,)) * 2.0 - 1.0
            values = (signs * largest).to(dtype)
            assert there_and_back(name, values).isfinite().all()


@every_codec
def test_zeros_stay_zeros(name):
    assert not there_and_back(name, torch.zeros(5000)).abs().any()


@every_codec
def test_what_is_packed_is_plain_contiguous_and_free_of_gradients(name):
    values = torch.zeros(40, 100, requires_grad=True) * 2
    packed = codec_named(name).pack(values)
    assert isinstance(packed, Packed)
    assert (packed.codec, packed.dtype, packed.shape) == (name, torch.float32, (40, 100))
    assert all(part.is_contiguous() and not part.requires_grad for part in packed.parts)
    assert packed.nbytes == sum(len(raw(part)) for part in packed.parts)
    assert not unpack(packed).requires_grad


@every_codec
def test_unpacking_makes_a_new_tensor(name):
    packed = codec_named(name).pack(torch.zeros(1000))
    unpack(packed).fill_(1)
    assert not unpack(packed).any()


@pytest.mark.parametrize(
    ("name", "times"),
    [("fp16", 1.99), ("bf16", 2), ("int8", 3.9), ("int4s", 7.7), ("int4", 7.7), ("topk", 31)],
)
def test_how_much_smaller(name, times):
    packed = codec_named(name).pack(torch.randn(1 << 16))
    assert (1 << 18) / packed.nbytes >= times


@lossy_codec
def test_sparse_tensors_are_made_dense(name):
    values = torch.eye(40).to_sparse()
    assert not there_and_back(name, values).is_sparse


@lossy_codec
def test_autocast_changes_nothing(name):
    values = torch.randn(3000)
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        packed = codec_named(name).pack(values)
        inside = unpack(packed)
    assert raw(inside) == raw(unpack(packed))
    assert inside.dtype == torch.float32
    if name != "int4s":
        again = codec_named(name).pack(values)
        assert [raw(part) for part in packed.parts] == [raw(part) for part in again.parts]


@every_codec
def test_torchs_global_settings_change_nothing(name):
    rotation.signs.cache_clear()
    rotation._base.cache_clear()
    packed = codec_named(name).pack(torch.randn(3000))
    expected = raw(unpack(packed))
    rotation.signs.cache_clear()
    rotation._base.cache_clear()
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.inference_mode():
            assert raw(unpack(packed)) == expected
            again = codec_named(name).pack(torch.randn(3000, dtype=torch.float32))
            assert [p.dtype for p in again.parts] == [p.dtype for p in packed.parts]
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")
    weights = torch.ones(3000, requires_grad=True)
    (weights * unpack(packed)).sum().backward()


@every_codec
def test_threads_do_not_disturb_each_other(name):
    torch.manual_seed(3)
    inputs = [torch.randn(30_000) * 10**n for n in range(4)]
    failed = []

    def work(values):
        for _ in range(20):
            error = (there_and_back(name, values) - values).norm() / values.norm()
            if not error < 0.95:
                failed.append(float(error))

    threads = [threading.Thread(target=work, args=(values,)) for values in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_an_unknown_name_is_the_users_error_or_the_senders():
    with pytest.raises(NodeError, match="no codec 'zip'; there are: fp16, bf16"):
        codec_named("zip")
    with pytest.raises(WireError, match="no codec 'zip'"):
        unpack(Packed("zip", torch.float32, (300,), ()))


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(NodeError, match="pip install zstandard"):
        Zstd()
