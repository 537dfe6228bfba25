"""How far from the original each codec may be, and what it is on average."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from ravnest.wire.codecs import Packed, codec_named, unpack
from ravnest.wire.codecs.rotation import BLOCK, hadamard, signs

SLACK = 1 + 1e-5
"""Bounds are for exact arithmetic; single precision adds its own last digit."""


@st.composite
def spread(draw):
    """Numbers of very different sizes, between subnormal and large, with zeros among them."""
    torch.manual_seed(draw(st.integers(0, 10**6)))
    values = torch.randn(draw(st.integers(256, 1500)))
    wide = draw(st.sampled_from([0, 1, 8, 30]))
    exponents = torch.randn(len(values)) * wide + draw(st.integers(-140, 100))
    values = values * torch.exp2(exponents.clamp(-149, 110))
    values[torch.rand(len(values)) < draw(st.sampled_from([0, 0.1, 0.9]))] = 0
    return values.clamp(-1e36, 1e36)


def there_and_back(name, values):
    packed = codec_named(name).pack(values)
    assert isinstance(packed, Packed)
    return unpack(packed).double()


def in_blocks(values, size):
    padded = torch.nn.functional.pad(values, (0, -len(values) % size))
    return padded.view(-1, size)


def hadamard_matrix():
    rows = [[(-1.0) ** (i & j).bit_count() for j in range(BLOCK)] for i in range(BLOCK)]
    return torch.tensor(rows, dtype=torch.float64)


@given(values=spread())
@settings(max_examples=150, deadline=None)
def test_fp16(values):
    error = (there_and_back("fp16", values) - values.double()).abs()
    smallest = max(values.abs().max().item() * 2.0**-39, 2.0**-149)
    assert (error <= (values.double().abs() * 2.0**-11).clamp(min=smallest) * SLACK).all()


@given(values=spread())
@settings(max_examples=100, deadline=None)
def test_bf16(values):
    error = (there_and_back("bf16", values) - values.double()).abs()
    assert (error <= values.double().abs() * 2.0**-8 + 2.0**-133).all()


@given(values=spread())
@settings(max_examples=150, deadline=None)
def test_int8(values):
    error = (there_and_back("int8", values) - values.double()).abs()
    largest = in_blocks(values.double().abs(), 256).amax(1, keepdim=True)
    assert (in_blocks(error, 256) <= (largest / 254).clamp(min=2.0**-127) * SLACK).all()


@pytest.mark.parametrize(("name", "steps"), [("int4s", 1.0), ("int4", 0.5)])
@given(values=spread())
@settings(max_examples=100, deadline=None)
def test_int4(name, steps, values):
    error = in_blocks(there_and_back(name, values) - values.double(), BLOCK)
    turned = in_blocks(values.double(), BLOCK) * signs(values.device) @ hadamard_matrix()
    step = (turned.abs().amax(1) / 7.5 * 1.009).clamp(min=2.0**-117)
    assert (error.norm(dim=1) <= steps * step * 1.001).all()


def test_outliers_cost_their_neighbours_less():
    torch.manual_seed(1)
    values = torch.randn(1 << 14)
    values[::BLOCK] = 10
    error = there_and_back("int4", values) - values
    # One step for the whole block as it is would be 10 / 7.5, and the error 0.29 of that.
    assert error.square().mean().sqrt() < 0.5 * 10 / 7.5 * 0.29


@given(values=spread())
@settings(max_examples=100, deadline=None)
def test_topk_keeps_the_largest(values):
    found, kept = there_and_back("topk", values), -(-len(values) // 32)
    peak = values.abs().max().double()
    weakest = values.double().abs().topk(kept).values[-1]
    error = (found - values.double()).abs()
    close = (values.double().abs() * 2.0**-11).clamp(min=max(peak * 2.0**-39, 2.0**-149)) * SLACK
    left_out = error > close
    assert (values.double().abs()[left_out] <= weakest).all()
    assert (found[left_out] == 0).all()
    assert (found != 0).sum() <= kept


def test_topk_has_a_budget_for_each_neighbourhood():
    values = torch.arange(65_536 + 320).float()
    found = there_and_back("topk", values)
    assert (found[:65_536] != 0).sum() == 2048
    assert (found[65_536:] != 0).nonzero().flatten().tolist() == list(range(310, 320))


def biases(name, values, times):
    """The mean error of each element, in standard deviations of such a mean."""
    codec = codec_named(name)
    errors = torch.stack([unpack(codec.pack(values)) - values for _ in range(times)]).double()
    return errors.mean(0) / (errors.std(0) / times**0.5).clamp(min=1e-12)


def test_int4s_is_right_on_average_and_int4_is_not():
    torch.manual_seed(5)
    values = torch.randn(512)
    values[::100] *= 50
    fair = biases("int4s", values, 3000)
    assert fair.abs().max() < 6
    assert 0.8 < fair.square().mean().sqrt() < 1.25
    assert biases("int4", values, 10).abs().max() > 6


def test_int4_errors_cancel_when_many_are_summed():
    torch.manual_seed(6)
    values, codec = torch.randn(4096), codec_named("int4s")
    once = (unpack(codec.pack(values)) - values).norm()
    mean = torch.stack([unpack(codec.pack(values)) for _ in range(100)]).mean(0)
    assert (mean - values).norm() < 0.13 * once


def test_int4_leaves_the_users_dice_alone():
    before = torch.get_rng_state()
    codec_named("int4s").pack(torch.ones(1000))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_rotation_is_the_hadamard_matrix():
    blocks = torch.randint(-15, 16, (50, BLOCK)).float()
    expected = blocks.double() @ hadamard_matrix()
    found, _ = hadamard(blocks, torch.empty_like(blocks))
    assert torch.equal(found.double(), expected)


def test_int4_unpacks_to_the_same_bits_everywhere():
    """Whatever order a machine adds in: the result is one exact sum, rounded once."""
    torch.manual_seed(7)
    packed = codec_named("int4s").pack(torch.randn(BLOCK * 9) * 1e-3)
    nibbles, scales = packed.parts
    low, high = nibbles.view(-1, 64) & 15, nibbles.view(-1, 64) >> 4
    codes = torch.cat([low, high], 1).double() * 2 - 15
    exact = codes @ hadamard_matrix() * signs(codes.device) * scales.double().unsqueeze(1)
    assert torch.equal(unpack(packed), exact.float().view(-1))


def test_int8_unpacks_to_the_same_bits_everywhere():
    packed = codec_named("int8").pack(torch.randn(2560))
    codes, scales = packed.parts
    exact = codes.double().view(-1, 256) * scales.double().unsqueeze(1)
    assert torch.equal(unpack(packed), exact.float().view(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex128])
def test_zstd_keeps_every_bit(dtype):
    torch.manual_seed(8)
    values = (torch.randn(3001) * 100).to(dtype)
    packed = codec_named("zstd").pack(values)
    assert isinstance(packed, Packed)
    assert torch.equal(unpack(packed), values)


def test_zstd_gives_noise_back_as_it_is():
    values = torch.randint(0, 256, (5000,), dtype=torch.uint8)
    assert codec_named("zstd").pack(values) is values
