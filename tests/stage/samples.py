"""Small stage packages for the tests of this folder, made by hand and easy to falsify.

Graphs are kept as the JSON that lies in a package, so that a test can put anything anywhere and
still have it reach the parser: `write` states the right sizes and hashes for whatever it is given.
"""

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from ravnest.stage.graph import GRAPH_FORMAT
from ravnest.stage.local import LocalPipeline
from ravnest.stage.module import StageModule
from ravnest.stage.package import load_package

Document = dict[str, Any]


def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "fc.weight": torch.randn(3, 4, generator=generator),
        "fc.bias": torch.randn(3, generator=generator),
        "scale": torch.tensor([2.0]),
    }


def tensor_specs() -> list[Document]:
    return [
        {
            "name": "fc.weight",
            "kind": "parameter",
            "dtype": "float32",
            "shape": [3, 4],
            "trainable": True,
        },
        {
            "name": "fc.bias",
            "kind": "parameter",
            "dtype": "float32",
            "shape": [3],
            "trainable": True,
        },
        {"name": "scale", "kind": "buffer", "dtype": "float32", "shape": [1]},
    ]


def op(out: int, name: str, *args: Any, context: int | None = None, **kwargs: Any) -> Document:
    found: Document = {"out": out, "op": name, "args": list(args), "kwargs": kwargs}
    return found if context is None else {**found, "context": context}


def v(number: int) -> Document:
    return {"v": number}


def t(number: int) -> Document:
    return {"t": number}


def wire(value: int, *stages: int, dtype: str | None = "float32", **more: Any) -> Document:
    return {"value": value, "stages": list(stages), "dtype": dtype, "shape": [-1, 4], **more}


def whole() -> Document:
    """A model in a single stage: relu(x @ weight + bias) * scale, returned in a dict."""
    operations = [
        op(1, "aten.linear.default", v(0), t(0), t(1)),
        op(2, "aten.relu.default", v(1)),
        op(3, "aten.mul.Tensor", v(2), t(2)),
    ]
    mode = {"operations": operations, "result": {"dict": [["y", {"leaf": 3}]]}}
    return {
        "format": GRAPH_FORMAT,
        "stage": 0,
        "stages": 1,
        "tensors": tensor_specs(),
        "train": mode,
        "eval": copy.deepcopy(mode),
        "arguments": [{"name": "x", "structure": {"leaf": 0}, "positional": True}],
        "inputs": [wire(0, 0)],
    }


def calculation(*operations: Document, result: Any, inputs: int = 1, **more: Any) -> Document:
    """A stage without weights that runs these operations on `inputs` tensors."""
    mode = {"operations": list(operations), "result": result}
    return {
        "format": GRAPH_FORMAT,
        "stage": 0,
        "stages": 1,
        "tensors": [],
        "train": mode,
        "eval": copy.deepcopy(mode),
        "arguments": [
            {"name": f"x{i}", "structure": {"leaf": i}, "positional": True} for i in range(inputs)
        ],
        "inputs": [wire(i, 0) for i in range(inputs)],
        **more,
    }


def middle() -> Document:
    """The second of three stages: receives 5 from the first, sends 6 to the last."""
    mode = {
        "operations": [op(6, "aten.mul.Tensor", v(5), t(0))],
        "receives": [wire(5, 0, grad=True)],
        "sends": [wire(6, 2, grad=True)],
    }
    specs = [
        {"name": "w", "kind": "parameter", "dtype": "float32", "shape": [4], "trainable": True}
    ]
    return {
        "format": GRAPH_FORMAT,
        "stage": 1,
        "stages": 3,
        "tensors": specs,
        "train": mode,
        "eval": copy.deepcopy(mode),
    }


def write(
    directory: Path,
    graph: Document | bytes,
    tensors: dict[str, torch.Tensor] | bytes | None = None,
    **manifest: Any,
) -> Path:
    """A package whose manifest tells the truth, except where `manifest` says otherwise."""
    directory.mkdir(parents=True)
    files = {"graph.json": graph if isinstance(graph, bytes) else json.dumps(graph).encode()}
    if tensors is not None:
        files["weights.safetensors"] = tensors if isinstance(tensors, bytes) else save(tensors)
    entries = []
    for name, content in files.items():
        (directory / name).write_bytes(content)
        entries.append(
            {"name": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        )
    known = graph if isinstance(graph, dict) else {}
    document = {
        "format": GRAPH_FORMAT,
        "plan_id": "plan",
        "cluster": 0,
        "stage": known.get("stage", 0),
        "stages": known.get("stages", 1),
        "torch": "2.13.0",
        "files": entries,
        **manifest,
    }
    (directory / "manifest.json").write_text(json.dumps(document))
    return directory


def build(directory: Path, graph: Document, device: str = "cpu") -> StageModule:
    """The module of a stage that has no weights, by way of its files."""
    return load_package(write(directory, graph, {})).module(device)


def run(directory: Path, graph: Document, *inputs: torch.Tensor) -> Any:
    """What the model returns in evaluation."""
    pipeline = LocalPipeline([build(directory, graph)])
    pipeline.train(False)
    return pipeline(*inputs)
