"""A model that came as data, as an `nn.Module` under the names of the original.

Planning asks a model to run (self-check) and for its tensors by name. This one runs the graph of
the whole model instead of the code that nobody here has.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn

from ravnest.errors import CaptureError
from ravnest.stage import structure
from ravnest.stage.graph import StageGraph
from ravnest.stage.local import bind_inputs, check_batch
from ravnest.stage.module import StageModule


class ReceivedModel(nn.Module):
    """One stage that is the whole model, called as the original is called."""

    _stage: StageModule | None
    _tensors: Callable[[], dict[str, torch.Tensor]]

    def __init__(
        self,
        graph: StageGraph,
        weights: Mapping[str, torch.Tensor],
        names: Sequence[tuple[str, str]],
    ) -> None:
        super().__init__()
        has_weights = not any(tensor.is_meta for tensor in weights.values())
        stage = StageModule(graph, weights) if has_weights else None
        tensors = stage.tensors() if stage is not None else _without_values(graph, weights)
        # Neither is registered: their tensors are this module's, under other names.
        self.__dict__["_stage"] = stage
        self.__dict__["_tensors"] = lambda: tensors
        kinds = {spec.name: spec.kind for spec in graph.tensors}
        for name, first in names:
            # Into the registries themselves, which take names with dots; so nobody has to build
            # the original's tree of modules, and no name can be one of a module's attributes.
            if kinds[first] == "parameter":
                self._parameters[name] = cast(nn.Parameter, tensors[first])
            else:
                self._buffers[name] = tensors[first]

    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters, buffers and constants, each once, under its first name."""
        return dict(self._tensors())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        stage = self._stage
        if stage is None:
            raise CaptureError(
                "this model was handed over without weights, so that it cannot be run: give some "
                "(weights=…)"
            )
        stage.train(self.training)
        values = bind_inputs(stage.graph.arguments, args, kwargs)
        check_batch(stage.graph, values, stage.mode)
        results = stage(*(values[number] for number in stage.receives(stage.mode)))
        outputs = dict(zip(stage.returns(stage.mode), results, strict=True))
        return structure.rebuild(stage.graph.mode(stage.mode).result, outputs.__getitem__)


def _without_values(
    graph: StageGraph, weights: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    return {
        spec.name: nn.Parameter(weights[spec.name], spec.trainable)
        if spec.kind == "parameter"
        else weights[spec.name]
        for spec in graph.tensors
    }
