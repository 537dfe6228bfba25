"""Stages cut at module borders run modules of the provider's own model, with their own weights."""

import copy
import json
from typing import Any

import msgspec
import pytest
import torch
from samples import Document, calculation, op, t, v
from torch import nn

from ravnest.errors import PackageError
from ravnest.stage.graph import StageGraph
from ravnest.stage.module import StageModule

X = torch.linspace(-1, 1, 12).view(3, 4)


class Counter(nn.Module):
    """Puts a new tensor in place of its buffer each time it runs."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        return x


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), Counter())
    model.add_module("odd-name", nn.Linear(4, 2))
    return model


def document_for(model: nn.Module) -> Document:
    parameters = dict(model.named_parameters())
    specs = [
        {
            "name": name,
            "kind": "parameter" if name in parameters else "buffer",
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "trainable": name in parameters and parameters[name].requires_grad,
        }
        for name, tensor in model.state_dict().items()
    ]
    paths = list(model._modules)
    calls = []
    for number, path in enumerate(paths):
        held = [t(i) for i, spec in enumerate(specs) if str(spec["name"]).startswith(f"{path}.")]
        calls.append(op(number + 1, "ravnest.module", v(number), path=path, tensors=held))
    return calculation(*calls, result={"leaf": len(paths)}, tensors=specs)


def stage_of(document: Document, weights: Any, model: nn.Module | None) -> StageModule:
    graph = msgspec.json.decode(json.dumps(document).encode(), type=StageGraph)
    return StageModule(graph, weights, model=model)


def shifted(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor + 1 for name, tensor in model.state_dict().items()}


def test_the_modules_run_with_the_stages_weights():
    model = make_model()
    before = copy.deepcopy(model.state_dict())
    expected = copy.deepcopy(model)
    expected.load_state_dict(shifted(model))
    stage = stage_of(document_for(model), shifted(model), model)
    for mode in (True, False):
        torch.manual_seed(1)
        wanted = expected.train(mode)(X)
        torch.manual_seed(1)
        assert torch.equal(stage.train(mode)(X)[0], wanted)
    state = expected.state_dict()
    assert state.keys() == stage.tensors().keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in stage.tensors().items())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_without_the_model_the_remedy_is_named():
    model = make_model()
    with pytest.raises(PackageError, match="pass the model itself, model="):
        stage_of(document_for(model), shifted(model), None)


def test_modules_that_the_user_froze_stay_frozen():
    model = make_model()
    model[1].eval()
    model[0].requires_grad_(False)
    stage = stage_of(document_for(model), model.state_dict(), model)
    for _ in range(2):
        stage.train()
        flags = [module.training for module in stage.children()]
        assert flags == [True, False, True, True, True]
        stage.eval()
        assert not any(module.training for module in stage.modules())
    assert not stage.tensors()["0.weight"].requires_grad
    assert stage.tensors()["1.weight"].requires_grad


def test_what_is_trained_is_decided_by_the_graph():
    model = make_model()
    document = document_for(model)
    model.requires_grad_(False)
    stage = stage_of(document, model.state_dict(), model)
    assert all(parameter.requires_grad for parameter in stage.parameters())


def test_a_tied_module_is_copied_once():
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    document = document_for(model)
    del document["tensors"][2:]
    for mode in ("train", "eval"):
        for call in document[mode]["operations"]:
            call["kwargs"].pop("tensors")
    stage = stage_of(document, dict(layer.state_dict(prefix="0.")), model)
    assert len(list(stage.parameters())) == 2
    assert torch.equal(stage(X)[0], model(X))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda model: model._modules.pop("3"), "has no module '3'"),
        (lambda model: model.__setitem__(0, nn.Linear(4, 5)), "not the one that was planned"),
        (lambda model: model[0].double(), "not the one that was planned"),
        (lambda model: model[0].register_buffer("new", torch.ones(1)), "'0.new' that the stage"),
    ],
    ids=["missing", "shape", "dtype", "more"],
)
def test_another_model_is_refused(change, match):
    model = make_model()
    document, weights = document_for(model), shifted(model)
    change(model)
    with pytest.raises(PackageError, match=match):
        stage_of(document, weights, model)


def test_weights_are_never_broadcast_into_the_model():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    document = document_for(model)
    document["tensors"][1]["shape"] = [1]
    with pytest.raises(PackageError, match=r"'0.bias' is float32\[3\], the stage has float32\[1\]"):
        stage_of(document, {**model.state_dict(), "0.bias": torch.ones(1)}, model)


@pytest.mark.parametrize(
    "path", ["forward", "__class__", "0.weight", "training", "0..", "_modules"]
)
def test_a_path_finds_modules_and_nothing_else(path):
    model = make_model()
    call = op(1, "ravnest.module", v(0), path=path)
    with pytest.raises(PackageError, match="has no module"):
        stage_of(calculation(call, result={"leaf": 1}), {}, model)


def test_a_tensor_inside_a_module_cannot_be_used_from_outside():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    document = document_for(model)
    for mode in ("train", "eval"):
        document[mode]["operations"][1] = op(2, "aten.mul.Tensor", v(1), t(1))
    with pytest.raises(PackageError, match="outside of modules"):
        stage_of(document, model.state_dict(), model)


def test_a_module_only_one_mode_runs_is_refused():
    model = make_model()
    document = document_for(model)
    document["train"]["operations"] = [op(5, "aten.relu.default", v(0))]
    with pytest.raises(PackageError, match="malformed"):
        stage_of(document, shifted(model), model)
