"""From a user's model to a `Program`, by `torch.export`, without running or changing the model.

The model is called through a thin wrapper that takes and returns flat tensors, so that any nested
input or output works, and that writes reassigned buffers back (`torch.export` records them on the
outermost module only and loses all others silently).
"""

import contextlib
import functools
import io
import itertools
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from ravnest.errors import CaptureError
from ravnest.planning.capture.attributes import Changes, attribute_leaves, changes
from ravnest.planning.capture.averages import averages_written_out
from ravnest.planning.capture.borrowing import (
    changes_on_switching,
    switched_to,
    unchanged,
    values_restored,
)
from ravnest.planning.capture.call import Call
from ravnest.planning.capture.constants import Constants
from ravnest.planning.capture.decisions import decided
from ravnest.planning.capture.draws import frozen_randomness, undrawn
from ravnest.planning.capture.experts import experts_written_out
from ravnest.planning.capture.functions import functions_followed
from ravnest.planning.capture.hooks import refuse_backward_hooks
from ravnest.planning.capture.lowering import lower
from ravnest.planning.capture.masks import masks_broadcast
from ravnest.planning.capture.program import Program, is_open
from ravnest.planning.capture.rows import row_limits
from ravnest.planning.capture.sources import describe_failure
from ravnest.planning.capture.state import (
    is_remade,
    refuse_lost_state,
    refuse_replaced_parameters,
)
from ravnest.planning.capture.surroundings import log_silenced
from ravnest.planning.capture.tensors import held_tensors
from ravnest.planning.capture.unsized import sizes_known
from ravnest.stage import structure
from ravnest.stage.graph import Mode


class _Seen:
    """What a traced call returned; a plain object, because export undoes attribute assignments."""

    result: structure.Structure
    changes: Changes
    remade: list[tuple[nn.Module, str]]
    assumed: list[str]
    read: set[str]


class _FlatModel(nn.Module):
    """The user's model behind flat tensors in and out."""

    def __init__(self, model: nn.Module, call: Call) -> None:
        super().__init__()
        self.model = model
        self.seen = _Seen()
        self._call = call
        self._numbers = types.SimpleNamespace(integers=_integers(model))

    def forward(self, *leaves: torch.Tensor) -> list[torch.Tensor]:
        args, kwargs = self._call.rebuild(leaves)
        buffers = [
            (module, name, buffer)
            for module in self.model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        before = attribute_leaves(self.model)
        self.seen.remade = []
        own = dict(self.model.named_buffers())
        numbers = self._numbers.integers.items()
        constants = Constants({name: (own[name], value) for name, value in numbers if name in own})
        with decided(constants) as draws:
            output = self.model(*args, **kwargs)
        self.seen.assumed, self.seen.read = draws.assumed, constants.read
        self.seen.changes = changes(before, attribute_leaves(self.model))
        if self.seen.changes.generators:
            raise frozen_randomness(f"its own generator {self.seen.changes.generators[0]!r}")
        refuse_replaced_parameters(self.model, parameters)
        tensors: list[torch.Tensor] = []
        self.seen.result = structure.flatten(output, tensors, "the model's output")
        assigned = [
            (module, name, buffer, module._buffers.get(name))
            for module, name, buffer in buffers
            if module._buffers.get(name) is not buffer
        ]
        if assigned:  # an output may be the buffer as it was, which is about to be overwritten
            tensors = [tensor.clone() for tensor in tensors]
        for module, name, buffer, new in assigned:
            if new is None:
                continue
            module._buffers[name] = buffer
            if is_remade(module, name, buffer, new):
                self.seen.remade.append((module, name))
            else:
                buffer.copy_(new.detach())
        return tensors


def _integers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Buffers from which sizes may be computed."""
    return {
        name: buffer
        for name, buffer in model.named_buffers()
        if buffer.dtype in (torch.int64, torch.int32) and not buffer.is_meta
    }


Ways = tuple[bool, ...]
TOLD_FIRST: Ways = (True, False)
"""Libraries ask whether they are being compiled, and then do other things than they do for their
users. Most of these make a capture easier; where they make it fail, it is not told."""
UNTOLD: Ways = (False,)
"""And neither where they make it another model."""


def capture(model: nn.Module, call: Call, mode: Mode, ways: Ways = TOLD_FIRST) -> Program:
    """One mode of the model as a program. The model is left exactly as it was."""
    call = call.with_several_rows()
    flat = _FlatModel(model, call)
    refuse_backward_hooks(model)
    # Copies of all weights are made only for a model that may write to them when it is switched.
    restored = values_restored(model) if changes_on_switching(model) else contextlib.nullcontext()
    with restored, unchanged(model), switched_to(model, mode):
        exported, dynamic = _export(flat, model, call, mode, ways)
    held = held_tensors(model, exported.constants)
    program = lower(
        exported,
        arguments=call.arguments,
        result=flat.seen.result,
        held=held,
        dynamic=dynamic,
        batch_size=call.batch_size,
    )
    refuse_lost_state(program, held, flat.seen.changes)
    program.rows = row_limits(exported, program, call)
    program.changed_attributes = flat.seen.changes.numbers
    paths = {module: path for path, module in model.named_modules()}
    program.assumed = list(dict.fromkeys(flat.seen.assumed))
    program.read_early = {held[name].name for name in flat.seen.read}
    program.remade = {f"{paths[owner]}.{name}".lstrip(".") for owner, name in flat.seen.remade}
    return program


def _export(
    flat: _FlatModel, model: nn.Module, call: Call, mode: Mode, ways: Ways
) -> tuple[ExportedProgram, bool]:
    """Batch size left open if the model allows it, else fixed to the example's.

    `ways` are whether the model is told that it is being captured, in the order of trying.
    """
    failures: dict[bool, Exception] = {}
    for dimension, told in itertools.product((Dim.AUTO, None), ways):
        shapes = [{0: dimension} if dimension and call.is_batched(x) else None for x in call.leaves]
        export = functools.partial(
            torch.export.export, flat, call.leaves, dynamic_shapes=(tuple(shapes),), strict=False
        )
        try:
            with _described(mode), _quiet(), _is_told(told):
                exported = undrawn(export, functools.partial(_all_of, flat))
            return exported, dimension is not None and _batch_is_open(exported, call)
        except CaptureError:
            if told is ways[0]:  # else the first failure says more
                raise
        except Exception as error:  # torch.export raises dozens of unrelated types
            failures.setdefault(told, error)
    first, *others = (failures[told] for told in ways if told in failures)
    raise describe_failure(model, call, first, *others) from first


def _all_of(flat: _FlatModel, exported: ExportedProgram) -> tuple[Any, ...]:
    """Everything in a graph that could come from a number that Python has drawn."""
    values = {
        name: value.tolist() if isinstance(value, torch.Tensor) else repr(value)
        for name, value in exported.constants.items()
    }
    text = exported.graph_module.print_readable(print_output=False)
    seen = flat.seen
    return text, repr(values), repr(seen.result), repr(seen.changes), seen.assumed


_TRANSFORMERS = {
    "transformers.utils.import_utils": "is_fake_tensor",  # its own way to be told
    "transformers.modeling_utils": "PreTrainedModel.warn_if_padding_and_no_attention_mask",
}
"""Which of its functions look at data, only to warn, or at what kind of tensors they are given."""


def _member(owner: Any, name: str) -> Any:
    return getattr(owner, name, None)


@contextlib.contextmanager
def _is_told(told: bool) -> Iterator[None]:
    """Torch's own code is always told the truth."""
    with contextlib.ExitStack() as stack:
        for question in () if told else ("is_compiling", "is_exporting"):
            if hasattr(torch.compiler, question):
                truth = getattr(torch.compiler, question)
                answer = mock.patch.object(torch.compiler, question, _for_torch_only(truth))
                stack.enter_context(answer)
        for module, place in ({} if told else _TRANSFORMERS).items():
            *owners, name = place.split(".")
            owner = functools.reduce(_member, owners, sys.modules.get(module))
            if hasattr(owner, name):
                stack.enter_context(mock.patch.object(owner, name, return_value=False))
        yield


def _for_torch_only(question: Callable[[], bool]) -> Callable[[], bool]:
    def answer() -> bool:
        asking = str(sys._getframe(1).f_globals.get("__name__"))
        return asking.partition(".")[0] == "torch" and question()

    return answer


@contextlib.contextmanager
def _described(mode: Mode) -> Iterator[None]:
    """What a capture cannot follow by itself, put in words that it understands."""
    with (
        experts_written_out(),
        averages_written_out(),
        masks_broadcast(),
        sizes_known(),
        functions_followed() if mode == "train" else contextlib.nullcontext(),
    ):
        yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch prints whole graphs when a capture fails; the user gets one clear error instead."""
    nowhere = io.StringIO()
    with (
        log_silenced(),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        warnings.simplefilter("ignore")
        yield


def _batch_is_open(exported: ExportedProgram, call: Call) -> bool:
    names = set(exported.graph_signature.user_inputs)
    placeholders = [node for node in exported.graph.nodes if node.op == "placeholder"]
    leaves = [node.meta["val"] for node in placeholders if node.name in names]
    batched = [
        leaf for leaf, given in zip(leaves, call.leaves, strict=True) if call.is_batched(given)
    ]
    return bool(batched) and all(is_open(leaf.shape[0]) for leaf in batched)
