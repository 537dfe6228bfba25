"""Hand-written transformers, and those made of ``nn.Transformer*`` blocks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.entry import ZooEntry, constant, floats, inputs, integers

_VOCABULARY = 53


class CausalBlock(nn.Module):
    """Pre-norm attention with an explicit mask held in a non-persistent buffer."""

    mask: Tensor

    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(approximate="tanh"), nn.Linear(2 * width, width)
        )
        self.drop = nn.Dropout(0.1)
        lower = torch.ones(context, context, dtype=torch.bool).tril()
        self.register_buffer("mask", lower, persistent=False)

    def attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = (batch, length, 3, self.heads, width // self.heads)
        query, key, value = self.qkv(x).view(split).permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-1, -2) / (width // self.heads) ** 0.5
        scores = scores.masked_fill(~self.mask[:length, :length], float("-inf"))
        mixed = self.drop(scores.softmax(dim=-1)) @ value
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attend(self.norm1(x)))
        return x + self.drop(self.feed(self.norm2(x)))


class TinyGPT(nn.Module):
    """Token embedding and output layer share one weight; a loss comes out with targets."""

    def __init__(self, width: int = 32, layers: int = 3, context: int = 16) -> None:
        super().__init__()
        self.tokens = nn.Embedding(_VOCABULARY, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(CausalBlock(width, 4, context) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, _VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class EncoderDecoder(nn.Module):
    """``nn.Transformer`` with cross attention, a causal mask and key padding.

    Without ``tgt_is_causal`` the decoder compares the mask with a causal one at run time, which no
    capture can follow; ``refused.py`` has that variant.
    """

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(_VOCABULARY, width), nn.Embedding(40, width)
        self.transformer = nn.Transformer(
            width,
            4,
            num_encoder_layers=1,
            num_decoder_layers=2,
            dim_feedforward=48,
            dropout=0.1,
            batch_first=True,
        )
        self.head = nn.Linear(width, 40)

    def forward(self, source: Tensor, target: Tensor, source_padding: Tensor) -> Tensor:
        length = target.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=target.device).triu(1)
        hidden = self.transformer(
            self.source(source),
            self.target(target),
            tgt_mask=causal,
            tgt_is_causal=True,
            src_key_padding_mask=source_padding,
            memory_key_padding_mask=source_padding,
        )
        return self.head(hidden)


class SequenceEncoder(nn.Module):
    """``nn.TransformerEncoder`` over continuous features."""

    def __init__(self, width: int = 24, *, norm_first: bool = False) -> None:
        super().__init__()
        self.project = nn.Linear(6, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 48, dropout=0.1, activation="gelu", batch_first=True, norm_first=norm_first
        )
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.project(x)).mean(dim=1))


class SharedMaskAttention(nn.Module):
    """An input without a batch dimension: one (length, length) mask for the whole batch."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.project = nn.Linear(6, width)
        self.attend1 = nn.MultiheadAttention(width, 4, dropout=0.1, batch_first=True)
        self.attend2 = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor, blocked: Tensor) -> tuple[Tensor, Tensor]:
        x = self.project(x)
        x = x + self.attend1(x, x, x, attn_mask=blocked, need_weights=False)[0]
        mixed, weights = self.attend2(x, x, x, attn_mask=blocked)
        return self.head(self.norm(x + mixed)), weights


class RotaryGrouped(nn.Module):
    """Rotary positions computed in forward, grouped-query attention through the fused kernel."""

    def __init__(self, width: int = 32, heads: int = 4, groups: int = 2) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.embed = nn.Embedding(_VOCABULARY, width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, groups * self.size, bias=False)
        self.value = nn.Linear(width, groups * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.head = nn.Linear(width, _VOCABULARY, bias=False)

    def rotate(self, x: Tensor) -> Tensor:
        half = self.size // 2
        steps = torch.arange(x.shape[-2], device=x.device).float()
        rates = 100.0 ** (-torch.arange(half, device=x.device).float() / half)
        angle = torch.outer(steps, rates)
        a, b = x.chunk(2, dim=-1)
        return torch.cat(
            [a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], dim=-1
        )

    def split(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, self.size)).transpose(1, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        query = self.rotate(self.split(self.query(x), self.heads))
        key = self.rotate(self.split(self.key(x), self.groups))
        value = self.split(self.value(x), self.groups)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.head(x + self.out(mixed.transpose(1, 2).flatten(2)))


class DetectedCausalMask(nn.Module):
    """``nn.TransformerDecoder`` compares the mask with a causal one to pick a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        length = target.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=target.device).triu(1)
        return self.transformer(source, target, tgt_mask=causal)


def post_norm_encoder() -> nn.Module:
    return SequenceEncoder()


def pre_norm_encoder() -> nn.Module:
    return SequenceEncoder(norm_first=True)


_LENGTH = 7
_CAUSAL = constant(torch.ones(_LENGTH, _LENGTH, dtype=torch.bool).triu(1))


def _source_padding(batch: int) -> Tensor:
    """A padding mask that hides the last two source tokens of every row."""
    return (torch.arange(10) >= 8).expand(batch, 10).clone()


ENTRIES = (
    ZooEntry("tiny_gpt", TinyGPT, inputs(integers(_VOCABULARY, 12))),
    ZooEntry(
        "tiny_gpt_with_loss",
        TinyGPT,
        inputs(integers(_VOCABULARY, 12), targets=integers(_VOCABULARY, 12)),
    ),
    ZooEntry(
        "encoder_decoder",
        EncoderDecoder,
        inputs(integers(_VOCABULARY, 10), integers(40, 6), _source_padding),
    ),
    ZooEntry("transformer_encoder", post_norm_encoder, inputs(floats(8, 6))),
    ZooEntry("transformer_encoder_pre_norm", pre_norm_encoder, inputs(floats(8, 6))),
    ZooEntry("shared_mask_attention", SharedMaskAttention, inputs(floats(_LENGTH, 6), _CAUSAL)),
    ZooEntry("detected_causal_mask", DetectedCausalMask, inputs(floats(5, 8), floats(6, 8))),
    ZooEntry("rotary_grouped", RotaryGrouped, inputs(integers(_VOCABULARY, 11))),
)
