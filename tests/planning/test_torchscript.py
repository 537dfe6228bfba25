"""A TorchScript file has to behave like the Python model that it was made from.

Every case is scripted or traced, saved, loaded, adapted and compared: outputs, gradients and
written buffers, in both modes and at two batch sizes. Then `torch.export` has to accept the
adaptor and keep the batch dimension dynamic.
"""

import copy
import functools
import inspect
import io
import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from torch.utils import _pytree as pytree

from ravnest.errors import CaptureError
from ravnest.planning.study import study
from ravnest.planning.torchscript import as_module, is_script, mode_is_baked
from ravnest.stage.operators import _locally_allowed, allow_operator, operator_name

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning"
)


# --- models ----------------------------------------------------------------------------------


class Residual(nn.Module):
    """Convolutions, batch norm, an in-place activation and a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8))
        self.drop = nn.Dropout(p=0.0)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu_(self.norm(self.stem(x)))
        x = F.relu(x + self.body(x))
        return self.head(self.drop(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.layers = kind(6, 8, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.layers(x)
        return self.head(states[:, -1])


class Attention(nn.Module):
    """Multi-head attention by hand: sizes read from the input, split, view, mask."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.register_buffer("mask", torch.ones(32, 32).tril().bool(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = self.qkv(x).split(C, dim=2)
        q = q.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        k = k.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        v = v.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) * (C // self.heads) ** -0.5
        weights = scores.masked_fill(~self.mask[:T, :T], float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(B, T, C))


class Language(nn.Module):
    """Integer inputs, positions, attention blocks, and the embedding reused as the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.position = nn.Embedding(32, 16)
        self.blocks = nn.ModuleList(Attention() for _ in range(2))
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.position(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)])
        self.up = nn.ModuleList([nn.Conv2d(12, 4, 3, padding=1)])
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for index, layer in enumerate(self.down):
            x = F.gelu(layer(x))
            if index == 0:
                skips.append(x)
                x = F.max_pool2d(x, 2)
        for layer in self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
            x = F.gelu(layer(torch.cat([x, skips.pop()], dim=1)))
        return F.interpolate(self.head(x), size=x.shape[-2:], mode="nearest")


class Auxiliary(nn.Module):
    """A second output while training, as in Inception; outputs are a dict of tuples."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.aux = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        hidden = torch.tanh(self.body(x))
        outputs = {"main": (self.head(hidden), hidden)}
        if self.training:
            outputs["aux"] = (self.aux(hidden), hidden * 2)
        return outputs


class Options(nn.Module):
    """Optional inputs with defaults, given by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, scale: float = 2.0, repeat: int = 1
    ) -> Tensor:
        for _ in range(repeat):
            x = self.layer(x) * scale
        if mask is not None:
            x = x * mask
        return x


class Pair(NamedTuple):
    logits: Tensor
    norm: Tensor


class Stateful(nn.Module):
    """A named tuple, a counter that is assigned, a plain tensor attribute, and no_grad."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.shift = torch.full((3,), 0.5)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Pair:
        self.seen = self.seen + 1.0
        logits = self.layer(x) + self.shift
        with torch.no_grad():
            norm = logits.square().sum(1)
        return Pair(logits, norm)


class Branches(nn.Module):
    """while, early return, negative range steps, string formatting and list arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 2:
            raise ValueError(f"expected 2 dimensions, got {x.dim()}")
        if x.dtype == torch.float64:
            return x
        steps = [2 * step for step in range(3, 0, -1)] + [1]
        while len(steps) > 2:
            x = x + self.layer(x) / steps.pop()
        rows, columns = x.shape
        padding = torch.zeros([rows, columns // 2], dtype=x.dtype, device=x.device)
        return torch.cat([x, padding.to(torch.float32)], dim=-1).view(rows, -1)


def _transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def _torchvision(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from torchvision_shim import import_torchvision

        import_torchvision()
        from torchvision import models

        model: nn.Module = getattr(models, name)(num_classes=4)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        return model

    return build


# --- cases -----------------------------------------------------------------------------------


def _floats(*shape: int) -> Callable[[int], Tensor]:
    return lambda batch: torch.randn(batch, *shape)


def _tokens(batch: int) -> Tensor:
    return torch.randint(0, 20, (batch, 7))


@dataclass(frozen=True, eq=False)
class Case:
    name: str
    build: Callable[[], nn.Module]
    input: Callable[[int], Tensor]
    keywords: dict[str, Callable[[int], Any]] = field(default_factory=dict)
    traceable: bool = True
    is_large: bool = False

    def inputs(self, batch: int) -> tuple[tuple[Tensor], dict[str, Any]]:
        torch.manual_seed(batch)
        given = {name: make(batch) for name, make in self.keywords.items()}
        return (self.input(batch),), given


CASES = [
    Case("mlp", lambda: nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)), _floats(4)),
    Case("residual", Residual, _floats(3, 8, 8)),
    Case("lstm", lambda: Recurrent(nn.LSTM), _floats(5, 6)),
    Case("gru", lambda: Recurrent(nn.GRU), _floats(5, 6)),
    Case("encoder", _transformer, _floats(6, 16)),
    Case("language", Language, _tokens),
    Case("unet", UNet, _floats(1, 8, 8)),
    Case("auxiliary", Auxiliary, _floats(4), traceable=False),
    Case("options", Options, _floats(4), traceable=False),
    Case(
        "options_given",
        Options,
        _floats(4),
        {"repeat": lambda _: 3, "mask": lambda batch: torch.ones(batch, 4).tril()},
        traceable=False,
    ),
    Case("stateful", Stateful, _floats(4), traceable=False),
    Case("branches", Branches, _floats(4)),
    Case("resnet18", _torchvision("resnet18"), _floats(3, 32, 32), traceable=False, is_large=True),
    Case("mobilenet_v3", _torchvision("mobilenet_v3_small"), _floats(3, 32, 32), is_large=True),
]


def _combinations() -> Iterator[Any]:
    """Scripted and traced, in both modes; each large model once per way, to save time."""
    for case in CASES:
        for how, training in itertools.product(("script", "trace"), (True, False)):
            if how == "trace" and not case.traceable:
                continue
            if case.is_large and training != (how == "script"):
                continue
            mode = "train" if training else "eval"
            yield pytest.param(case, how, training, id=f"{how}-{case.name}-{mode}")


every_combination = pytest.mark.parametrize(("case", "how", "training"), list(_combinations()))


# --- helpers ---------------------------------------------------------------------------------


def save(model: nn.Module, how: str = "script", *example: Any) -> io.BytesIO:
    """The model as `torch.jit.save` writes it. The given model stays as it is."""
    model = copy.deepcopy(model)
    if how == "script":
        script = torch.jit.script(model)
    else:
        script = torch.jit.trace(model, example, check_trace=False)
    file = io.BytesIO()
    torch.jit.save(script, file)
    return file


def load(file: io.BytesIO) -> torch.jit.ScriptModule:
    file.seek(0)
    return torch.jit.load(file)


def loaded(model: nn.Module, how: str = "script", *example: Any) -> torch.jit.ScriptModule:
    return load(save(model, how, *example))


@functools.cache
def _saved(case: Case, how: str, training: bool) -> io.BytesIO:
    torch.manual_seed(0)
    return save(case.build().train(training), how, *case.inputs(3)[0])


def _load_case(case: Case, how: str, training: bool) -> torch.jit.ScriptModule:
    # Scripting is slow and keeps both modes in one file; only a trace has to be made per mode.
    return load(_saved(case, how, training or how == "script")).train(training)


def _step(model: nn.Module, args: Any, kwargs: Any) -> dict[str, Any]:
    """What one training step shows of a model: outputs, gradients, and the state afterwards."""
    model.zero_grad()
    outputs = model(*args, **kwargs)
    losses = [leaf.square().sum() for leaf in pytree.tree_leaves(outputs) if leaf.requires_grad]
    sum(losses).backward()
    return {
        "outputs": pytree.tree_map(torch.detach, outputs),
        "gradients": {name: p.grad for name, p in model.named_parameters()},
        "state": {name: tensor.clone() for name, tensor in model.state_dict().items()},
    }


# --- the adaptor equals the script, and Python -----------------------------------------------


@every_combination
def test_trains_like_the_original(case: Case, how: str, training: bool) -> None:
    script = _load_case(case, how, training)
    adapted = as_module(_load_case(case, how, training))
    eager = case.build().train(training)
    eager.load_state_dict(script.state_dict(), strict=False)  # scripts forget "non-persistent"
    for batch in (2, 5):
        args, kwargs = case.inputs(batch)
        actual = _step(adapted, args, kwargs)
        with torch.jit.optimized_execution(False):  # optimising takes longer than running
            torch.testing.assert_close(actual, _step(script, args, kwargs))
        expected = _step(eager, args, kwargs)
        torch.testing.assert_close(actual["outputs"], expected["outputs"])
        torch.testing.assert_close(actual["gradients"], expected["gradients"])
        for name, tensor in expected["state"].items():
            torch.testing.assert_close(actual["state"][name], tensor)


@every_combination
def test_can_be_exported_with_a_dynamic_batch(case: Case, how: str, training: bool) -> None:
    adapted = as_module(_load_case(case, how, training))
    args, kwargs = case.inputs(3)
    program = export_dynamic(copy.deepcopy(adapted), args, kwargs, dims=1)
    for value in _user_inputs(program):
        assert isinstance(value.shape[0], torch.SymInt)
    captured = program.module()
    for batch in (2, 5):
        args, kwargs = case.inputs(batch)
        torch.testing.assert_close(captured(*args, **kwargs), adapted(*args, **kwargs))
        torch.testing.assert_close(_written(captured, adapted), dict(adapted.named_buffers()))


def export_dynamic(model: nn.Module, args: Any, kwargs: Any, dims: int) -> ExportedProgram:
    """Export with the first dimensions of every tensor dynamic where possible."""
    given = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    dynamic = {
        name: dict.fromkeys(range(dims), Dim.AUTO) if isinstance(value, Tensor) else None
        for name, value in given.items()
    }
    return export(model, args, kwargs, dynamic_shapes=dynamic, strict=False)


def _user_inputs(program: ExportedProgram) -> list[Tensor]:
    names = program.graph_signature.user_inputs
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    values = [node.meta["val"] for node in placeholders if node.name in names]
    return [value for value in values if isinstance(value, Tensor)]


def _written(captured: nn.Module, adapted: nn.Module) -> dict[str, Tensor]:
    return {name: captured.get_buffer(name) for name, _ in adapted.named_buffers()}


@pytest.mark.parametrize(
    ("name", "dims"), [("language", 2), ("encoder", 2), ("lstm", 2), ("unet", 1), ("branches", 1)]
)
def test_sizes_in_a_trace_stay_dynamic(name: str, dims: int) -> None:
    """A trace computes sizes with tensors; they must become neither data nor constants."""
    case = next(case for case in CASES if case.name == name)
    adapted = as_module(_load_case(case, "trace", training=True))
    program = export_dynamic(adapted, case.inputs(3)[0], {}, dims)
    (value,) = _user_inputs(program)
    assert all(isinstance(size, torch.SymInt) for size in value.shape[:dims])
    assert not any("aten.item" in str(node.target) for node in program.graph.nodes)


# --- parameters and buffers ------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_state_has_the_same_names_in_the_same_order_and_memory(case: Case) -> None:
    script = _load_case(case, "script", training=True)
    theirs, ours = script.state_dict(), as_module(script).state_dict()
    assert list(ours) == list(theirs)
    for name, tensor in theirs.items():
        assert ours[name].data_ptr() == tensor.data_ptr()


def test_tied_and_frozen_parameters_stay_so() -> None:
    model = Language()
    model.position.weight.requires_grad_(False)
    adapted = as_module(loaded(model))
    assert adapted.get_parameter("head.weight") is adapted.get_parameter("embed.weight")
    assert {n for n, p in adapted.named_parameters() if not p.requires_grad} == {"position.weight"}


def test_loading_and_moving_reach_the_weight_list_of_an_lstm() -> None:
    """An LSTM holds its weights twice: by name, and in a list that the operator reads."""
    torch.manual_seed(0)
    model, x = Recurrent(nn.LSTM), torch.randn(2, 5, 6)
    adapted = as_module(loaded(Recurrent(nn.LSTM)))
    adapted.load_state_dict(model.state_dict())
    adapted = copy.deepcopy(adapted.double())
    torch.testing.assert_close(adapted(x.double()), model.double()(x.double()))


def test_plain_tensor_attributes_are_buffers_outside_the_state() -> None:
    adapted = as_module(loaded(Stateful()))
    assert {name for name, _ in adapted.named_buffers()} == {"seen", "shift"}
    assert set(adapted.state_dict()) == {"seen", "layer.weight", "layer.bias"}


class Aliased(nn.Module):
    """Reads one parameter under two names, of which only one is registered."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4, bias=False)
        self.__dict__["alias"] = self.layer.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) @ self.alias


def test_gradients_flow_through_an_attribute_that_is_a_parameter() -> None:
    script = loaded(Aliased())
    args = (torch.randn(2, 4),)
    torch.testing.assert_close(_step(as_module(script), args, {}), _step(script, args, {}))


class Constants(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.tensor([1.0, 2.0, 3.0]) + torch.tensor(0.5)


def test_constants_of_a_trace_belong_to_the_module() -> None:
    x = torch.ones(2, 3)
    adapted = as_module(loaded(Constants(), "trace", x))
    assert not adapted.state_dict()
    assert [buffer.tolist() for buffer in adapted.buffers()] == [[1.0, 2.0, 3.0]]
    assert adapted.to(torch.float64)(x.double()).dtype == torch.float64
    assert adapted(x).tolist() == [[1.5, 2.5, 3.5]] * 2


# --- modes, copies, signature ----------------------------------------------------------------


def test_a_frozen_batch_norm_stays_frozen_until_train_is_called() -> None:
    model = Residual()
    model.norm.eval()
    adapted = as_module(loaded(model))
    assert adapted.training
    assert not adapted.get_submodule("norm").training
    adapted(torch.randn(4, 3, 8, 8))
    assert adapted.get_buffer("norm.num_batches_tracked") == 0
    assert adapted.get_buffer("body.1.num_batches_tracked") == 1
    adapted.train()(torch.randn(4, 3, 8, 8))
    assert adapted.get_buffer("norm.num_batches_tracked") == 1


def test_modes_are_independent_of_the_script() -> None:
    script = loaded(Auxiliary())
    adapted = as_module(script)
    adapted.eval()
    assert script.training
    assert set(adapted(torch.ones(1, 4))) == {"main"}
    assert set(adapted.train()(torch.ones(1, 4))) == {"main", "aux"}


def test_a_deep_copy_shares_nothing_but_code() -> None:
    adapted = as_module(loaded(Residual()))
    twin, x = copy.deepcopy(adapted), torch.randn(4, 3, 8, 8)
    before = {name: tensor.clone() for name, tensor in adapted.state_dict().items()}
    with torch.no_grad():
        twin.get_parameter("stem.weight").zero_()
    twin(x)
    torch.testing.assert_close(dict(adapted.state_dict()), before)
    assert twin.get_buffer("norm.num_batches_tracked") == 1


def test_forward_has_the_signature_of_the_script() -> None:
    signature = inspect.signature(as_module(loaded(Options())).forward)
    assert str(signature) == "(x, mask=None, scale=2.0, repeat=1)"


def test_outputs_keep_their_named_tuple() -> None:
    output = as_module(loaded(Stateful()))(torch.ones(2, 4))
    assert type(output).__name__ == "Pair"
    assert output._fields == ("logits", "norm")
    assert output.logits.requires_grad
    assert not output.norm.requires_grad


def test_what_is_a_script() -> None:
    model = nn.Linear(2, 2)
    assert is_script(loaded(model))
    assert is_script(torch.jit.trace(model, torch.ones(1, 2)))
    assert not is_script(model)
    assert not is_script(as_module(loaded(model)))


@pytest.mark.parametrize(
    ("case", "how", "baked"),
    [
        ("mlp", "script", False),
        ("mlp", "trace", False),  # nothing in it depends on the mode
        ("residual", "script", False),
        ("residual", "trace", True),
        ("lstm", "script", False),
        ("lstm", "trace", True),
        ("encoder", "script", False),
        ("encoder", "trace", True),
    ],
)
def test_a_trace_has_its_mode_baked(case: str, how: str, baked: bool) -> None:
    found = next(it for it in CASES if it.name == case)
    assert mode_is_baked(_load_case(found, how, training=True)) is baked


# --- submodules behind an interface ----------------------------------------------------------


with warnings.catch_warnings(action="ignore"):  # the decorator is deprecated, files are not

    @torch.jit.interface
    class Transform(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            pass


class Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.shift = torch.ones(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.shift


class BehindInterface(nn.Module):
    """TorchScript cannot inline a call whose module may be another one at run time."""

    chosen: Transform

    def __init__(self) -> None:
        super().__init__()
        self.chosen = Shifted()
        self.all = nn.ModuleDict({"a": Shifted(), "b": Shifted()})

    def forward(self, x: Tensor, name: str = "b") -> Tensor:
        picked: Transform = self.all[name]
        return self.chosen(x) + picked.forward(x)


def test_calls_through_an_interface() -> None:
    model, x = BehindInterface(), torch.randn(3, 4)
    adapted = as_module(loaded(model))
    for name in ("a", "b"):
        torch.testing.assert_close(adapted(x, name), model(x, name))
    program = export_dynamic(adapted, (x,), {}, dims=1)
    torch.testing.assert_close(program.module()(x), model(x))


# --- refusals --------------------------------------------------------------------------------


class Forks(nn.Module):
    def forward(self, x: Tensor, parallel: bool = True) -> Tensor:
        if parallel:
            future = torch.jit.fork(torch.relu, x)
            return torch.jit.wait(future)
        return torch.relu(x)


def test_an_unsupported_node_is_named_with_its_line_and_a_remedy() -> None:
    adapted = as_module(loaded(Forks()))
    with pytest.raises(CaptureError) as refused:
        adapted(torch.ones(1))
    message = str(refused.value)
    assert "prim::fork" in message
    assert "torch.jit.fork(torch.relu, x)" in message
    assert "original Python model" in message


def test_an_unsupported_node_that_is_not_reached_does_no_harm() -> None:
    assert as_module(loaded(Forks()))(torch.ones(1), parallel=False) == 1


class ReadsFile(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.from_file("/etc/hostname", size=1)


def test_operators_on_files_are_refused() -> None:
    with pytest.raises(CaptureError, match="aten::from_file"):
        as_module(loaded(ReadsFile()))(torch.ones(1))


class Empty(nn.Module):
    """A module for `define`; equal constants would make TorchScript share its type."""

    __constants__ = ("call",)

    def __init__(self, call: str) -> None:
        super().__init__()
        self.call = call


@functools.cache
def calls_operator(name: str, *arguments: str) -> torch.jit.ScriptModule:
    """A saved and loaded module that calls an operator by name: `torch.ops.aten.<name>(x, …)`."""
    call = f"torch.ops.aten.{name}({', '.join(('x', *arguments))})"
    module = torch.jit.script(Empty(call))
    module.define(f"def forward(self, x):\n    return {call}\n")
    file = io.BytesIO()
    torch.jit.save(module, file)
    return load(file)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("set_", ("x",)),
        ("resize_", ("[1000]",)),
        ("_reshape_alias", ("[1000]", "[1]")),
        ("as_strided_", ("[1000]", "[1]")),
        ("_pin_memory", ()),
        ("_cast_Float", ()),
        ("upsample_nearest2d_backward", ("[2, 2]", "[1, 1, 2, 2]")),
    ],
)
def test_operators_that_a_stage_may_not_name_are_refused(name: str, arguments: Any) -> None:
    adapted = as_module(calls_operator(name, *arguments))
    with pytest.raises(CaptureError, match=f"aten::{name}"):
        adapted(torch.ones(1))


def test_an_operator_that_the_users_program_allows_is_called() -> None:
    allow_operator("aten._cast_Float.default")
    try:
        assert as_module(calls_operator("_cast_Float"))(torch.ones(1).double()).dtype == torch.float
    finally:
        _locally_allowed.discard("aten._cast_Float.default")


class Low(nn.Module):
    """What a trace writes with operators below those of a stage."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2, padding=1),
            nn.Conv2d(4, 4, 3, padding="same", dilation=2, groups=2, bias=False),
            nn.ConvTranspose2d(4, 4, 3, stride=2, output_padding=1, groups=2, dilation=2),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = F.interpolate(self.body(x), size=[9, 7])
        x = F.interpolate(x, size=[5, 5], mode="bilinear", align_corners=True)
        return F.interpolate(x, scale_factor=1.5, mode="bicubic")


def test_a_traced_network_of_convolutions_can_be_studied() -> None:
    torch.manual_seed(0)
    model, x = Low(), torch.randn(2, 1, 8, 8)
    script = loaded(model, "trace", x)
    torch.testing.assert_close(as_module(script)(x), model(x))
    operators = {operator_name(op.target) for op in study(script, (x,)).train.ops}
    assert {"aten.conv2d.default", "aten.conv2d.padding"} <= operators
    assert {"aten.conv_transpose2d.input", "aten.upsample_nearest2d.vec"} <= operators


@pytest.mark.parametrize("scales", [("None", "None"), ("2.0", "1.5")])
@pytest.mark.parametrize("kind", ["nearest", "bilinear"])
def test_a_size_with_scales_is_resized_alike(kind: str, scales: tuple[str, str]) -> None:
    options = ("[8, 6]", *(("False",) if kind == "bilinear" else ()), *scales)
    script, x = calls_operator(f"upsample_{kind}2d", *options), torch.randn(2, 1, 4, 4)
    torch.testing.assert_close(as_module(script)(x), script(x))


@pytest.mark.parametrize("scales", [("1e-9", "1e-9"), ("2.0", "None")])
def test_a_size_that_contradicts_its_scales_is_refused(scales: tuple[str, str]) -> None:
    script = calls_operator("upsample_nearest2d", "[8, 8]", *scales)
    with pytest.raises(RuntimeError, match="does not fit its scales"):
        as_module(script)(torch.randn(2, 1, 4, 4))


def test_hooks_on_the_outermost_module_are_refused() -> None:
    model = nn.Linear(2, 2)

    def double(self, inputs: tuple[Tensor], output: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        return output * 2

    model.register_forward_hook(double)
    with pytest.raises(CaptureError, match="hooks"):
        as_module(loaded(model))


def test_errors_of_the_model_keep_their_type_and_gain_the_line() -> None:
    with pytest.raises(ValueError, match="expected 2 dimensions, got 3") as raised:
        as_module(loaded(Branches()))(torch.ones(1, 1, 4))
    assert any("if x.dim() != 2" in note for note in raised.value.__notes__)


def test_an_error_inside_no_grad_does_not_leave_gradients_off() -> None:
    adapted = as_module(loaded(FailsInNoGrad()))
    with pytest.raises(RuntimeError):
        adapted(torch.ones(2, 3))
    assert torch.is_grad_enabled()


class FailsInNoGrad(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return x @ x
