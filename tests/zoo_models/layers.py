"""What ordinary models are made of and the zoo happens not to use: layers, functions, idioms.

Each program is captured, never trained or cut: it only shows which operators capture makes of
ordinary code, so that a model that uses them is not refused (see tools/list_operators.py). A
program takes tensors of 4 rows and returns a list of whatever it computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.entry import TensorMaker, flags, floats, integers


class Layers(nn.Module):
    """Modules that all take the same tensor."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> list[Any]:
        return [layer(x.clone()) for layer in self.layers]


class Function(nn.Module):
    """A plain function of tensors."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def activations() -> Layers:
    kinds = (
        nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.SiLU, nn.Mish, nn.Hardtanh,
        nn.Hardswish, nn.Hardsigmoid, nn.RReLU,
    )  # fmt: skip
    others = (
        nn.GELU(), nn.GELU("tanh"), nn.Sigmoid(), nn.Tanh(), nn.LogSigmoid(), nn.Softplus(),
        nn.Softsign(), nn.Softshrink(), nn.Hardshrink(), nn.Tanhshrink(), nn.PReLU(), nn.GLU(),
        nn.Softmax(-1), nn.Softmin(-1), nn.LogSoftmax(-1), nn.Threshold(0.1, 0.0), nn.Identity(),
        nn.Threshold(0.1, 0.0, inplace=True),
    )  # fmt: skip
    return Layers(*(kind(inplace=flag) for kind in kinds for flag in (False, True)), *others)


def pools(dims: int) -> Layers:
    kinds = ("AvgPool", "MaxPool", "AdaptiveAvgPool", "AdaptiveMaxPool")
    pools = [getattr(nn, f"{kind}{dims}d")(2) for kind in kinds]
    pools += [getattr(nn, f"MaxPool{dims}d")(2, return_indices=True)]
    pools += [] if dims == 3 else [getattr(nn, f"LPPool{dims}d")(2, 2)]
    return Layers(*pools)


def norms_and_dropouts(dims: int) -> Layers:
    batch, instance = getattr(nn, f"BatchNorm{dims}d"), getattr(nn, f"InstanceNorm{dims}d")
    dropout = getattr(nn, f"Dropout{dims}d")
    norms = [batch(4), batch(4, affine=False), batch(4, track_running_stats=False), instance(4)]
    norms += [instance(4, affine=True, track_running_stats=True), nn.GroupNorm(2, 4)]
    norms += [nn.LayerNorm(8), nn.RMSNorm(8), nn.LocalResponseNorm(2)]
    dropouts = [nn.Dropout(0.5), nn.Dropout(0.5, inplace=True), dropout(0.5)]
    return Layers(*norms, *dropouts, nn.AlphaDropout(0.5), nn.FeatureAlphaDropout(0.5))


def convolutions(dims: int) -> Layers:
    plain, transposed = getattr(nn, f"Conv{dims}d"), getattr(nn, f"ConvTranspose{dims}d")
    modes = [plain(4, 4, 3, padding=1, padding_mode=mode) for mode in ("reflect", "circular")]
    same = plain(4, 2, 3, padding="same")
    return Layers(plain(4, 2, 3, groups=2), transposed(4, 2, 3), same, *modes)


def paddings(dims: int) -> Layers:
    kinds = ("ReflectionPad", "ReplicationPad", "ZeroPad", "ConstantPad", "CircularPad")
    more = {"ConstantPad": (0.5,)}
    return Layers(*(getattr(nn, f"{kind}{dims}d")(1, *more.get(kind, ())) for kind in kinds))


def resizing(x: Tensor) -> list[Tensor]:
    linear = {3: "linear", 4: "bilinear", 5: "trilinear"}[x.dim()]
    modes = ["nearest", "nearest-exact", "area", linear, *(["bicubic"] if x.dim() == 4 else [])]
    found = [F.interpolate(x, scale_factor=2, mode=mode) for mode in modes if mode != "area"]
    size = [5] * (x.dim() - 2)
    found += [F.interpolate(x, size=size, mode=mode) for mode in modes]
    if x.dim() == 4:
        found += [F.interpolate(x, size=5, mode=m, antialias=True) for m in modes[3:]]
        found += [F.pixel_shuffle(x, 2), F.pixel_unshuffle(x, 2), F.channel_shuffle(x, 2)]
        found += [F.fold(F.unfold(x, 3, padding=1), x.shape[-2:], 3, padding=1)]
        grid = F.affine_grid(x.new_ones(x.shape[0], 2, 3), list(x.shape), align_corners=False)
        for mode in ("bilinear", "nearest", "bicubic"):
            for padding in ("zeros", "border", "reflection"):
                found.append(F.grid_sample(x, grid, mode, padding, align_corners=False))
    return found


def recurrent_cells() -> Callable[[Tensor], list[Any]]:
    return Layers(nn.RNNCell(6, 4), nn.RNNCell(6, 4, nonlinearity="relu"), nn.GRUCell(6, 4),
                  nn.LSTMCell(6, 4))  # fmt: skip


def recurrent_layers() -> Layers:
    return Layers(
        nn.LSTM(6, 4, batch_first=True),
        nn.LSTM(6, 4, num_layers=2, dropout=0.5, bidirectional=True),
        nn.LSTM(6, 4, proj_size=2),
        nn.GRU(6, 4, num_layers=2, batch_first=True),
        nn.RNN(6, 4),
        nn.RNN(6, 4, nonlinearity="relu", bias=False),
    )


class Embeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            [
                nn.Embedding(9, 4),
                nn.Embedding(9, 4, padding_idx=0),
                nn.Embedding(9, 4, max_norm=1.0),
            ]
        )
        self.bags = nn.ModuleList(nn.EmbeddingBag(9, 4, mode=m) for m in ("sum", "mean", "max"))
        self.bilinear = nn.Bilinear(4, 4, 3)

    def forward(self, ids: Tensor) -> list[Tensor]:
        found = [table(ids) for table in self.tables] + [bag(ids) for bag in self.bags]
        hot = F.one_hot(ids, 9)
        return [*found, hot, self.bilinear(found[0], found[1]), hot.float().argmax(-1)]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
        self.layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x: Tensor, keep: Tensor) -> list[Any]:
        mask = torch.triu(torch.full((x.shape[1], x.shape[1]), float("-inf")), diagonal=1)
        heads = x.unflatten(-1, (2, 4)).transpose(1, 2)
        return [
            self.attention(x, x, x, attn_mask=mask, key_padding_mask=~keep),
            self.attention(x, x, x, need_weights=False),
            self.layer(x, x, tgt_mask=mask),
            F.scaled_dot_product_attention(heads, heads, heads, is_causal=True),
            F.scaled_dot_product_attention(heads, heads, heads, keep[:, None, None, :], 0.1),
            torch.baddbmm(x.new_zeros(1), x, x.transpose(1, 2), beta=0.5, alpha=0.5),
            torch.bmm(x, x.mT),
            torch.tril(torch.ones(3, 3, dtype=torch.bool)),
        ]


def losses(x: Tensor, y: Tensor, labels: Tensor) -> list[Tensor]:
    """Models that compute their own loss."""
    p, q = x.sigmoid(), y.sigmoid()
    sign = torch.ones_like(labels)
    found = [F.cross_entropy(x, labels, label_smoothing=0.1), F.cross_entropy(x, q)]
    found += [F.nll_loss(x.log_softmax(-1), labels), F.mse_loss(x, y), F.l1_loss(x, y)]
    found += [F.smooth_l1_loss(x, y), F.huber_loss(x, y), F.binary_cross_entropy(p, q)]
    found += [F.binary_cross_entropy_with_logits(x, q), F.kl_div(x.log_softmax(-1), q)]
    found += [F.poisson_nll_loss(x, p), F.soft_margin_loss(x, y)]
    found += [F.cosine_embedding_loss(x, y, sign), F.margin_ranking_loss(p[:, 0], q[:, 0], sign)]
    found += [F.triplet_margin_loss(x, y, p), F.hinge_embedding_loss(x, y)]
    found += [F.multi_margin_loss(x, labels), F.multilabel_soft_margin_loss(x, q)]
    images = x.view(-1, 3, 2, 1)
    found += [F.cross_entropy(images, labels.view(-1, 1, 1).expand(-1, 2, 1), reduction="none")]
    return [*found, F.cosine_similarity(x, y), F.pairwise_distance(x, y), F.normalize(x)]


def losses_of_sequences(x: Tensor, labels: Tensor) -> list[Tensor]:
    """Labels padded, and one behind the other; how many there are is counted or known."""
    found = x.transpose(0, 1).log_softmax(-1)
    frames = torch.full((x.shape[0],), x.shape[1])
    said = labels > 0
    return [
        F.ctc_loss(found, labels, frames, said.sum(-1), zero_infinity=True),
        F.ctc_loss(found, labels[said], frames, said.sum(-1), reduction="sum"),
        F.ctc_loss(found[:, :4], labels[:4], [8] * 4, [2] * 4, reduction="none"),
    ]


def elementwise(x: Tensor, y: Tensor) -> list[Tensor]:
    p, n = x.abs() + 0.1, x.clamp(-0.9, 0.9)
    found = [
        x + y,
        x - y,
        x * y,
        x / p,
        x + 1,
        1 - x,
        x - 1,
        2 * x,
        1 / p,
        x / 2,
        -x,
        x.abs(),
        x**2,
    ]
    found += [p**0.5, 2**x, p**y, x.exp(), x.expm1(), torch.exp2(x), p.log(), p.log1p(), p.log2()]
    found += [p.log10(), p.sqrt(), p.rsqrt(), x.square(), p.reciprocal(), x.sin(), x.cos(), x.tan()]
    found += [n.asin(), n.acos(), x.atan(), torch.atan2(x, y), x.sinh(), x.cosh(), x.tanh()]
    found += [n.atanh(), x.asinh(), (p + 1).acosh(), x.erf(), x.erfc(), n.erfinv(), p.lgamma()]
    found += [p.digamma(), n.sigmoid().logit(), x.sign(), x.floor(), x.ceil(), x.round(), x.trunc()]
    found += [x.frac(), torch.sinc(x), torch.logaddexp(x, y), torch.hypot(x, y), x.lerp(y, 0.3)]
    found += [x.lerp(y, p), torch.addcmul(x, x, y), torch.addcdiv(x, x, p), torch.xlogy(x, p)]
    found += [x.clamp(min=0), x.clamp(max=0), x.clamp(-1, 1), x.clamp_min(0.1), x.clamp_max(0.1)]
    found += [torch.maximum(x, y), torch.minimum(x, y), torch.fmax(x, y), torch.fmin(x, y)]
    found += [x.clip(-1, 1), torch.clamp(x, y - 1, y + 1), x.nan_to_num(), x.round(decimals=2)]
    found += [torch.div(x, p, rounding_mode="floor"), torch.div(x, p, rounding_mode="trunc")]
    found += [x // p, x // 2, x % p, x % 2, torch.fmod(x, 2), torch.remainder(x, p), x.copysign(y)]
    found += [
        torch.special.entr(p),
        torch.heaviside(x, y),
        torch.rsub(x, 1),
        torch.rsub(x, y),
        torch.add(x, y, alpha=2),
    ]
    found += [torch.div(x, 2, rounding_mode="floor"), torch.ldexp(x, y), torch.deg2rad(x)]
    return found


def in_place(x: Tensor, y: Tensor, at: Tensor) -> list[Tensor]:
    z = x.clone()
    z += y
    z -= y
    z *= 2
    z /= 3
    z += 1
    z -= 1
    z *= y
    z /= y.abs() + 1
    z.add_(y, alpha=2).mul_(0.5).sub_(y).div_(2).neg_().abs_().clamp_(-1, 1).clamp_min_(0.1)
    z.sqrt_().exp_().log_().tanh_().sigmoid_().relu_().pow_(2).square_().floor_().round_()
    z.masked_fill_(y > 0, 0.5).copy_(y).lerp_(x, 0.5).addcmul_(x, y).addcdiv_(x, y.abs() + 1)
    z[:, 0] = 1
    z[:, 1:] = y[:, 1:]
    z[y > 0] = 0
    z[at] = 1.0
    z.index_add_(0, at, y).index_copy_(0, at, y).index_fill_(1, at[:1], 0.0)
    z.scatter_(1, at[:, None], 1.0).scatter_add_(1, at[:, None], y).zero_().fill_(2)
    z.clamp_max_(1.0).reciprocal_().cumsum_(0).sin_().cos_().erf_().rsqrt_().softmax(-1)
    mask = y > 0
    mask &= x > 0
    mask |= x > 1
    return [z, mask, x.clone().unsqueeze_(0).squeeze_(0).transpose_(0, 1)]


def comparisons(x: Tensor, y: Tensor, ids: Tensor) -> list[Tensor]:
    a, b = x > y, x < 0
    found = [a & b, a | b, a ^ b, ~a, x >= y, x <= y, x == y, x != y, x > 0, x >= 0, x <= 0, x == 0]
    found += [x != 0, a.logical_and(b), a.logical_or(b), a.logical_not(), a.logical_xor(b), a.any()]
    found += [a.all(), a.any(dim=1), a.all(dim=1), x.isnan(), x.isinf(), x.isfinite()]
    found += [
        torch.where(a, x, y),
        torch.where(a, x, 0.0),
        torch.where(a, 0.0, x),
        torch.isclose(x, y),
    ]
    found += [torch.where(a, 1.0, 0.0), x.masked_fill(a, 0.0), x.masked_fill(a, y[0, 0]), ids & 1]
    found += [ids // 2, ids % 2, ids << 1, ids >> 1, ids | 1, ids ^ 1, ids * 2 + 1, ids.float()]
    found += [ids.long(), ids.int(), ids.bool(), x.half(), x.double(), x.to(y), x.type_as(y)]
    found += [ids.div(2, rounding_mode="floor"), ids.remainder(3), torch.bitwise_not(ids), ids == 2]
    found += [ids.unsqueeze(1) == ids.unsqueeze(0), x.bfloat16().float(), torch.isin(ids, ids[:1])]
    return found


def reductions(x: Tensor) -> list[Any]:
    found = [x.sum(), x.sum(1), x.sum((0, 1), keepdim=True), x.mean(), x.mean(1), x.mean((0, 1))]
    found += [x.std(), x.std(1), x.var(), x.var(1, unbiased=False), torch.var_mean(x, 1), x.prod()]
    found += [torch.std_mean(x, 1), x.prod(1), x.max(), x.min(), x.max(1), x.min(1), x.amax(1)]
    found += [x.amin(1), x.argmax(), x.argmax(1), x.argmin(1), x.median(), x.median(1), x.norm()]
    found += [x.norm(dim=1), x.norm(p=1, dim=1), torch.linalg.vector_norm(x, dim=1), x.logsumexp(1)]
    found += [torch.linalg.norm(x, dim=1), x.cumsum(1), x.cumprod(1), x.cummax(1), x.cummin(1)]
    found += [torch.histc(x, 4, -1.0, 1.0), torch.histc(x)]
    found += [x.logcumsumexp(1), x.nansum(), x.nanmean(1), x.aminmax(), x.count_nonzero(1)]
    found += [
        x.sort(1),
        x.sort(dim=1, descending=True, stable=True),
        x.argsort(1),
        x.topk(2),
        x.diff(),
    ]
    found += [
        x.kthvalue(1),
        x.quantile(0.5),
        x.quantile(torch.tensor([0.2, 0.8]), dim=1),
        x.mode(1),
    ]
    found += [torch.linalg.matrix_norm(x), x.softmax(1), x.log_softmax(1), torch.cdist(x, x)]
    return found


def shapes(x: Tensor) -> list[Any]:
    rows = x.shape[0]
    found = [x.view(rows, -1), x.reshape(-1, 3), x.flatten(), x.flatten(1), x.unflatten(1, (2, 3))]
    found += [
        x.transpose(0, 1),
        x.t(),
        x.T,
        x.mT,
        x.permute(1, 0),
        x.unsqueeze(0),
        x[None].squeeze(),
    ]
    found += [
        x[None].squeeze(0),
        x[None, :, None].squeeze((0, 2)),
        x.expand(2, *x.shape),
        x.tile(2),
    ]
    found += [x.expand_as(x), x.repeat(1, 2), x.repeat_interleave(2, 1), x.repeat_interleave(2)]
    found += [torch.cat([x, x]), torch.stack([x, x]), torch.hstack([x, x]), torch.vstack([x, x])]
    found += [
        *x.chunk(2, 1),
        *x.split(2, 1),
        *x.split([2, 4], 1),
        *x.unbind(1),
        *x.tensor_split(2, 1),
    ]
    found += [x.narrow(1, 0, 2), x.select(1, 0), x[:, 1:3], x[:, ::2], x[..., -1], x.flip(1)]
    found += [
        x.roll(1, 1),
        torch.rot90(x),
        x.movedim(0, 1),
        x.swapaxes(0, 1),
        x.diagonal(),
        x.diag(),
    ]
    found += [
        torch.diag_embed(x),
        x.tril(),
        x.triu(1),
        x.unfold(1, 2, 1),
        x.contiguous(),
        x.clone(),
    ]
    found += [x.detach(), x.view_as(x), x.reshape_as(x), torch.broadcast_to(x, (2, *x.shape))]
    found += [*torch.meshgrid(x[0], x[0], indexing="ij"), torch.block_diag(x, x), x.ravel(), x.H]
    found += [*torch.meshgrid(x[0], x[0], indexing="xy"), torch.dstack([x, x]), x.moveaxis(0, 1)]
    found += [torch.column_stack([x, x]), torch.atleast_3d(x), torch.cartesian_prod(x[0], x[0])]
    found += [*torch.broadcast_tensors(x, x[:1]), torch.fliplr(x), torch.flipud(x), torch.trace(x)]
    return [
        *found,
        F.pad(x, (1, 1)),
        F.pad(x, (1, 1), value=1.0),
        F.pad(x[None], (1, 1), "reflect"),
    ]


def indexing(x: Tensor, at: Tensor) -> list[Tensor]:
    column = at[:, None]
    found = [x[at], x[:, at], x[at, at], x.gather(1, column), x.index_select(0, at), x[x > 0]]
    found += [x.scatter(1, column, x), x.scatter(1, column, 1.0), x.scatter_add(1, column, x)]
    found += [
        x.scatter_reduce(1, column, x, kind) for kind in ("sum", "mean", "amax", "amin", "prod")
    ]
    found += [x.index_add(0, at, x), x.index_copy(0, at, x), x.index_fill(0, at, 0.0), x.take(at)]
    found += [x.index_put((at,), x), x.index_put((at,), x, accumulate=True), x.masked_select(x > 0)]
    found += [torch.nonzero(x), torch.bucketize(x, x[0]), torch.searchsorted(x, x), at.bincount()]
    found += [x.repeat_interleave(at, 0), torch.argwhere(x), x.masked_scatter(x > 0, x)]
    found += [torch.take_along_dim(x, column, 1), *torch.where(x > 0), torch.index_reduce(
        x, 0, at, x, "amax")]  # fmt: skip
    found += [x.slice_scatter(x[:, 1:], 1, 1), x.select_scatter(x[:, 0], 1, 0), torch.unique(at)]
    found += [*torch.unique(at, return_inverse=True, return_counts=True)]
    return found


def creation(x: Tensor) -> list[Tensor]:
    rows, width = x.shape
    found = [torch.zeros(rows, 2), torch.ones(rows), torch.full((rows,), 2.0), torch.arange(width)]
    found += [
        torch.arange(1, width),
        torch.arange(0, width, 2),
        torch.linspace(0, 1, 5),
        torch.eye(3),
    ]
    found += [torch.zeros_like(x), torch.ones_like(x), torch.full_like(x, 2), x.new_zeros(rows)]
    found += [
        x.new_ones(2),
        x.new_full((2,), 1.0),
        x.new_tensor([1.0]),
        torch.tensor(2.0),
        torch.eye(2, 3),
    ]
    found += [torch.empty(2).fill_(1), torch.empty_like(x).fill_(1), x.new_empty(2).fill_(0)]
    found += [
        torch.rand(rows, 2),
        torch.randn(rows, 2),
        torch.randint(3, (rows,)),
        torch.randperm(4),
    ]
    found += [
        torch.rand_like(x),
        torch.randn_like(x),
        torch.bernoulli(x.sigmoid()),
        torch.tril_indices(3, 3),
    ]
    found += [torch.multinomial(x.softmax(-1), 1), torch.normal(x, 1.0), torch.logspace(0, 1, 3)]
    found += [
        x.new_empty(2, 3).normal_(),
        x.new_empty(2, 3).uniform_(0, 1),
        torch.triu_indices(3, 3),
    ]
    found += [x.new_empty(2).bernoulli_(0.5), torch.randint(1, 3, (rows,)), torch.bernoulli(x, 0.3)]
    found += [torch.randint_like(x, 3), torch.hann_window(4), torch.scalar_tensor(2.0), x.new_empty(
        2).exponential_(), F.gumbel_softmax(x)]  # fmt: skip
    return found


def algebra(x: Tensor, y: Tensor) -> list[Any]:
    square = x.mT @ x + 3 * torch.eye(x.shape[-1])
    vector = x[0, 0]
    found = [
        x @ y,
        torch.mm(x[0], y[0]),
        torch.bmm(x, y),
        torch.mv(x[0], vector),
        vector.dot(vector),
    ]
    found += [
        torch.einsum("bij,bjk->bik", x, y),
        torch.einsum("bij->bj", x),
        torch.outer(vector, vector),
    ]
    found += [
        torch.addmm(x[0], x[0], y[0]),
        torch.inner(vector, vector),
        torch.tensordot(x, y, ([2], [1])),
    ]
    found += [torch.linalg.inv(square), torch.linalg.det(square), torch.linalg.slogdet(square)]
    found += [
        torch.linalg.solve(square, x.mT),
        torch.linalg.cholesky(square),
        torch.linalg.qr(square),
    ]
    found += [
        torch.linalg.eigh(square),
        torch.linalg.svd(x),
        torch.linalg.svdvals(x),
        torch.kron(vector, vector),
    ]
    found += [torch.linalg.pinv(x), torch.linalg.matrix_power(square, 3), torch.linalg.cross(x, x)]
    found += [torch.linalg.matrix_exp(square * 0.01), torch.linalg.multi_dot([x[0], y[0], x[0]])]
    found += [torch.linalg.solve_triangular(square.tril(), x.mT, upper=False), torch.logdet(square)]
    found += [torch.linalg.eigvalsh(square), torch.linalg.vecdot(x, x), torch.vdot(vector, vector)]
    found += [torch.addbmm(x[0], x, y), torch.addmv(vector, x[0], vector)]
    found += [torch.cholesky_solve(x.mT, torch.linalg.cholesky(square))]
    found += [torch.linalg.householder_product(x, y[:, 0])]
    return [*found, torch.trapezoid(x)]


def spectra(x: Tensor) -> list[Tensor]:
    z = torch.fft.fft(x)
    found = [
        torch.fft.ifft(z),
        torch.fft.irfft(torch.fft.rfft(x)),
        torch.fft.fft2(x),
        torch.fft.ifft2(z),
    ]
    found += [
        torch.fft.fftn(x),
        torch.fft.ifftn(z),
        torch.fft.irfft2(torch.fft.rfft2(x)),
        torch.fft.fftshift(x),
    ]
    found += [
        torch.fft.ifftshift(x),
        torch.fft.fftfreq(8),
        torch.fft.rfftfreq(8),
        z.abs(),
        z.angle(),
    ]
    found += [
        z.real,
        z.imag,
        z.conj().resolve_conj(),
        z * z,
        z + 1j,
        torch.view_as_real(z),
        torch.polar(x, x),
    ]
    found += [
        torch.complex(x, x),
        torch.view_as_complex(torch.stack([x, x], -1)),
        z.real.contiguous(),
    ]
    window = torch.hann_window(8)
    s = torch.stft(x[:, 0], 8, 4, window=window, return_complex=True)
    return [*found, s, torch.istft(s, 8, 4, window=window), torch.fft.irfftn(torch.fft.rfftn(x))]


def other_names(x: Tensor, y: Tensor) -> list[Any]:
    """Functions that torch knows under several names, each of which is an operator of its own."""
    found = [
        torch.multiply(x, y),
        torch.divide(x, 2),
        torch.subtract(x, y),
        torch.true_divide(x, 2),
    ]
    found += [torch.absolute(x), torch.negative(x), torch.concat([x, y]), torch.concatenate([x, y])]
    found += [
        torch.arctan(x),
        torch.arctan2(x, y),
        torch.greater(x, y),
        torch.less(x, 0),
        torch.greater(x, 0),
    ]
    found += [
        torch.greater_equal(x, y),
        torch.less_equal(x, y),
        torch.not_equal(x, y),
        torch.less(x, y),
    ]
    found += [
        torch.swapdims(x, 0, 1),
        torch.moveaxis(x, (0, 1), (1, 0)),
        torch.movedim(x, (0, 1), (1, 0)),
    ]
    found += [
        torch.row_stack([x, y]),
        torch.atleast_1d(x),
        torch.atleast_2d(x),
        torch.special.expit(x),
    ]
    found += [
        torch.special.softmax(x, 1),
        torch.special.log_softmax(x, 1),
        torch.special.logsumexp(x, 1),
    ]
    found += [torch.linalg.matmul(x, y.T), torch.fix(x), torch.linalg.diagonal(x), torch.adjoint(x)]
    found += [torch.positive(x), torch.float_power(x.abs(), 2), torch.sgn(x), torch.signbit(x)]
    found += [
        *torch.hsplit(x, 2),
        *torch.vsplit(x, 2),
        *x.tensor_split([1], 1),
        x.sum_to_size(1, 6),
    ]
    found += [
        torch.chain_matmul(x, y.T),
        torch.special.erf(x),
        torch.special.log1p(x.abs()),
        torch.msort(x),
    ]
    found += [
        torch.nn.utils.rnn.pad_sequence([x, y]),
        torch.square(x),
        torch.clone(x),
        torch.ger(x[0], y[0]),
    ]
    return found


def other_kinds(x: Tensor, y: Tensor, at: Tensor) -> list[Any]:
    """Overloads that depend on what the second argument is."""
    mask, column, ids = x > y, at[:, None], at + 1
    found = [
        x < y,
        torch.max(x, y),
        torch.min(x, y),
        x.fmod(y.abs() + 1),
        x.clamp(min=y),
        x.clamp(max=y),
    ]
    found += [
        torch.clamp_min(x, y),
        torch.clamp_max(x, y),
        x.index_fill(0, at, y[0, 0]),
        ids // ids,
        ids % ids,
    ]
    found += [
        torch.var_mean(x, dim=1, correction=0),
        torch.std_mean(x, dim=1, correction=0),
        x.std(1, correction=0),
    ]
    found += [
        torch.bitwise_and(ids, ids),
        torch.bitwise_or(ids, 1),
        torch.bitwise_xor(ids, ids),
        ids & ids,
    ]
    found += [
        torch.bitwise_left_shift(ids, 1),
        ids << ids,
        ids >> ids,
        ids | ids,
        ids ^ ids,
        torch.bitwise_and(ids, 1),
    ]
    found += [
        torch.normal(x, x.abs()),
        torch.normal(0.0, x.abs()),
        x.any(dim=(0, 1)),
        x.all(dim=(0, 1)),
    ]
    found += [
        torch.where(mask, ids[0], 0),
        x[:, 0].repeat_interleave(ids),
        ids.repeat_interleave(ids),
        x.to("cpu"),
    ]
    found += [
        torch.searchsorted(x[0].sort()[0], 0.5),
        torch.bucketize(0.5, x[0]),
        x.quantile(0.5, 1),
        ids.pow(2),
    ]
    found += [
        x.max(1, keepdim=True),
        x.median(1),
        x.nanmedian(),
        x.nanquantile(0.5),
        x.isneginf(),
        x.isposinf(),
    ]
    found += [
        torch.polar(x, y),
        torch.xlogy(x, 2.0),
        torch.xlogy(2.0, y.abs()),
        torch.lerp(x, y, y),
        ids**ids,
    ]
    found += [
        x.norm(p="fro"),
        torch.linalg.norm(x, "fro"),
        torch.linalg.matrix_norm(x, 2),
        torch.diff(x, 1, 0),
    ]
    found += [torch.linspace(x[0, 0], 1, 5), F.threshold(x, 0.1, 0.2), x.dist(y)]
    z = x.clone()
    z.masked_fill_(mask, y[0, 0]).scatter_(1, column, y).scatter_reduce_(1, column, y, "sum")
    z.index_put_((at,), y).pow_(y).floor_divide_(2).remainder_(3).fmod_(2).clamp_(
        min=y
    ).tril_().triu_()
    z.eq_(y).lt_(y).gt_(0.0).ge_(0.0).le_(0.0).ne_(
        0.0
    ).logical_not_().nan_to_num_().log1p_().expm1_().ceil_()
    z.masked_scatter_(mask, y).sign_().trunc_().addmm_(x, x.T @ y).cumprod_(0).clip_(0, 1).t_()
    found += [
        z,
        x.clone().squeeze_(),
        x.clone().swapaxes_(0, 1),
        x.clone().bernoulli_(),
        x.log_softmax(-1),
    ]
    found += [
        x.clone().index_reduce_(0, at, y, "mean"),
        x.clone().index_fill_(0, at, y[0, 0]),
        x.put(at, y[:, 0]),
    ]
    return [
        *found,
        torch.tensor([1.0, 2.0]) + x[:, :2],
        x.bool().logical_and_(mask).logical_or_(mask),
    ]


class Unpooling(nn.Module):
    """As in SegNet: back to the places where the maxima were."""

    def forward(self, x: Tensor) -> list[Tensor]:
        kind = f"{x.dim() - 2}d"
        pool, unpool = getattr(F, f"max_pool{kind}"), getattr(F, f"max_unpool{kind}")
        values, places = pool(x, 2, return_indices=True)
        return [unpool(values, places, 2)]


def weight_norms() -> Layers:
    parametrized = nn.utils.parametrizations
    linears = [nn.Linear(6, 6) for _ in range(4)]
    return Layers(
        parametrized.weight_norm(linears[0]),
        parametrized.spectral_norm(linears[1]),
        parametrized.orthogonal(linears[2]),
        parametrized.orthogonal(nn.Linear(6, 3)),
        nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 4, 3), dim=None),
    )


Program = tuple[Callable[[], nn.Module], tuple[TensorMaker, ...]]


def _plain(function: Callable[..., Any], *makers: TensorMaker) -> Program:
    return lambda: Function(function), makers


def _sized(dims: int) -> tuple[int, ...]:
    return (4, *[8] * dims)


PROGRAMS: dict[str, Program] = {
    "activations": (activations, (floats(4, 6),)),
    **{f"pools_{d}d": (lambda d=d: pools(d), (floats(*_sized(d)),)) for d in (1, 2, 3)},
    **{
        f"norms_{d}d": (lambda d=d: norms_and_dropouts(d), (floats(*_sized(d)),)) for d in (1, 2, 3)
    },
    **{f"convs_{d}d": (lambda d=d: convolutions(d), (floats(*_sized(d)),)) for d in (1, 2, 3)},
    **{f"paddings_{d}d": (lambda d=d: paddings(d), (floats(*_sized(d)),)) for d in (1, 2, 3)},
    **{f"resizing_{d}d": _plain(resizing, floats(*_sized(d))) for d in (1, 2, 3)},
    **{f"unpooling_{d}d": (Unpooling, (floats(*_sized(d)),)) for d in (1, 2, 3)},
    "other_names": _plain(other_names, floats(6), floats(6)),
    "other_kinds": _plain(other_kinds, floats(6), floats(6), integers(4)),
    "recurrent_cells": (recurrent_cells, (floats(6),)),
    "recurrent_layers": (recurrent_layers, (floats(5, 6),)),
    "embeddings": (Embeddings, (integers(9, 5),)),
    "attention": (Attention, (floats(8, 8), flags(8))),
    "losses": _plain(losses, floats(6), floats(6), integers(3)),
    "losses_of_sequences": _plain(losses_of_sequences, floats(8, 6), integers(5, 3)),
    "elementwise": _plain(elementwise, floats(6), floats(6)),
    "in_place": _plain(in_place, floats(6), floats(6), integers(4)),
    "comparisons": _plain(comparisons, floats(6), floats(6), integers(9)),
    "reductions": _plain(reductions, floats(6)),
    "shapes": _plain(shapes, floats(6)),
    "indexing": _plain(indexing, floats(6), integers(4)),
    "creation": _plain(creation, floats(6)),
    "algebra": _plain(algebra, floats(3, 3), floats(3, 3)),
    "spectra": _plain(spectra, floats(2, 16)),
    "weight_norms": (weight_norms, (floats(4, 6),)),
}
