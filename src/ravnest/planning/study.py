"""Everything planning finds out about a model before it looks at any provider.

Capture in both modes, analysis, alignment of the two, costs: done once, then shared by every
cluster, however many there are and wherever each of them cuts.
"""

import functools
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ravnest.errors import CaptureError, text_without_values
from ravnest.planning.capture.borrowing import frozen_modules, switched_to, values_restored
from ravnest.planning.capture.call import Call, bind_call
from ravnest.planning.capture.chain import chain_program
from ravnest.planning.capture.exporting import TOLD_FIRST, UNTOLD, Ways, capture
from ravnest.planning.capture.memory import refuse_shared_memory
from ravnest.planning.capture.program import HeldTensor, ModuleCall, Program
from ravnest.planning.capture.sources import unfit_inputs
from ravnest.planning.capture.surroundings import as_in_training
from ravnest.planning.capture.tensors import held_tensors
from ravnest.planning.costing.costs import CutCosts
from ravnest.planning.costing.profile import OpCost, profile, profile_modules, refine
from ravnest.planning.costing.tables import build_tables
from ravnest.planning.cutting.alignment import align
from ravnest.planning.cutting.analysis import Facts, analyse
from ravnest.planning.cutting.ownership import changing_names, home_positions
from ravnest.planning.cutting.staging import CutProgram, build_stages, common_rows
from ravnest.planning.torchscript import as_module, is_script, mode_is_baked
from ravnest.rundir import StateEntry
from ravnest.stage.graph import Mode, StageGraph
from ravnest.stage.matrices import hidden_matrices, noted

logger = logging.getLogger("ravnest.planning")


@dataclass(frozen=True)
class Told:
    """What only the model's own code could tell, of a model that came without it."""

    state: tuple[StateEntry, ...]
    versions: Mapping[str, int]
    rows_mix: str


@dataclass(frozen=True)
class Study:
    """A model, understood."""

    model: nn.Module
    """The module that was captured: the user's own, or the stand-in for a TorchScript module, or
    for a model that was handed over as data."""
    name: str
    call: Call
    train: Program
    evaluation: Program
    facts: Facts
    eval_facts: Facts
    places: Sequence[int | None]
    """For every train position the eval position of the same cut, if that cut is possible."""
    homes: Mapping[str, int]
    """Tensor name → train position whose stage owns it, in model order."""
    costs: CutCosts
    warnings: tuple[str, ...]
    measured: tuple[OpCost, ...] = ()
    """What a real pass has shown of every train operator; empty if the costs are predicted."""
    told: Told | None = None
    untold: Callable[[], "Study"] | None = None
    """Studies the model once more, without telling it that it is being captured."""

    @property
    def held(self) -> dict[str, HeldTensor]:
        return self.evaluation.held | self.train.held

    @property
    def changing(self) -> list[str]:
        """Names of the tensors that training changes, in model order."""
        return changing_names(self.train, self.evaluation, self.homes)

    def why(self, error: Exception) -> str:
        """Of a model that was handed over, without numbers of its tensors: what is said of it
        leaves this machine. The owner of a module that is studied where it is sees all of it."""
        if self.told is None:
            return f"{type(error).__name__}: {error}"
        logger.warning("%s failed", self.name, exc_info=error)
        return text_without_values(error)

    @property
    def has_weights(self) -> bool:
        return not any(tensor.tensor.is_meta for tensor in self.held.values())

    @property
    def parameter_bytes(self) -> int:
        parameters = [t.tensor for t in self.held.values() if t.kind == "parameter"]
        return sum(tensor.numel() * tensor.element_size() for tensor in parameters)

    @property
    def names_of(self) -> dict[str, list[str]]:
        """Canonical name → all names of the tensor, tied ones included."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for name, held in held_tensors(self.model).items():
            found[held.name].append(name)
        return found

    @property
    def is_chain(self) -> bool:
        """Is it cut at module boundaries, so that stages need the model's code?"""
        return any(isinstance(op.target, ModuleCall) for op in self.train.ops)

    def needs_two_rows(self, mode: Mode) -> None:
        """Have the stages refuse a single row: the capture knows only what happens to several."""
        program = self.train if mode == "train" else self.evaluation
        least, most = program.rows
        program.rows = (max(least, 2), most)

    @functools.cached_property
    def _matrices(self) -> dict[str, str]:
        (whole,) = self._cut(())
        return hidden_matrices(whole)

    def stages(self, cuts: Sequence[int]) -> list[StageGraph]:
        """The stage graphs for inner borders `cuts`, given as train positions."""
        return [noted(graph, self._matrices) for graph in self._cut(cuts)]

    def _cut(self, cuts: Sequence[int]) -> list[StageGraph]:
        places = [self.places[cut] for cut in cuts]
        usable = [place for place in places if place is not None]
        if len(usable) != len(cuts):
            raise ValueError(f"{list(cuts)} contains a place where this model cannot be cut")
        return build_stages(
            CutProgram(self.train, self.facts, tuple(cuts)),
            CutProgram(self.evaluation, self.eval_facts, tuple(usable)),
            self.homes,
        )


@as_in_training()
def study(
    model: nn.Module | torch.jit.ScriptModule,
    example_args: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    pass_data: bool = False,
    ways: Ways = TOLD_FIRST,
) -> Study:
    """Capture and measure a model. Leaves the model as it was."""
    again = functools.partial(study, model, example_args, example_kwargs, pass_data=pass_data)
    warnings: list[str] = []
    name = type(model).__name__
    if is_script(model):
        name = getattr(model, "original_name", name)
        if mode_is_baked(model):
            warnings.append(
                "this TorchScript module was traced: whatever mode it was traced in (dropout, "
                "BatchNorm) is used for training and for evaluation alike"
            )
        model = as_module(model)
    _check_model(model)
    call = bind_call(model, example_args, example_kwargs or {})
    _check_types(model, call)
    train, evaluation = _programs(model, call, warnings, ways)
    _refuse_changed_sizes(train, evaluation)
    warnings.extend(_about_rows(train, evaluation))
    if (about_rows := call.about_rows()) is not None:
        warnings.append(about_rows)
    changed = list(dict.fromkeys((*train.changed_attributes, *evaluation.changed_attributes)))
    if changed:
        warnings.append(
            f"{name} changes {', '.join(changed[:5])} while it runs; its stages keep the value "
            "that was there when the model was captured"
        )
    if assumed := list(dict.fromkeys((*train.assumed, *evaluation.assumed))):
        warnings.append(
            f"{name} looks for values that are out of order ({', '.join(assumed[:3])}"
            f"{' …' if len(assumed) > 3 else ''}); its stages end with an error where it finds any"
        )
    if frozen := frozen_modules(model):
        named = ", ".join(path for path in list(frozen)[:3]) + (" …" if len(frozen) > 3 else "")
        warnings.append(
            f"{len(frozen)} modules are in evaluation mode inside a model that trains, and stay so "
            f"({named}); if that is not meant, call model.train() before planning"
        )
    found = conclude(
        Captured(model, name, call, train, evaluation, tuple(warnings)),
        lambda facts: _costs(model, call, train, facts, pass_data=pass_data),
        measured=pass_data,
    )
    return replace(found, untold=functools.partial(again, ways=UNTOLD)) if True in ways else found


@dataclass(frozen=True)
class Captured:
    """A model in both modes, before anything has been concluded from it."""

    model: nn.Module
    name: str
    call: Call
    train: Program
    evaluation: Program
    warnings: tuple[str, ...]
    told: Told | None = None


def conclude(
    captured: Captured, price: Callable[[Facts], list[OpCost]], *, measured: bool = False
) -> Study:
    """Everything that follows from the two programs, wherever they came from."""
    train, evaluation = captured.train, captured.evaluation
    facts = analyse(train, frozenset(evaluation.written))
    eval_facts = analyse(evaluation, frozenset(train.written))
    places = align(train, evaluation, facts, eval_facts)
    homes = home_positions(train, evaluation, places)
    costs = price(facts)
    held = evaluation.held | train.held
    changing = {name: held[name].tensor.nbytes for name in changing_names(train, evaluation, homes)}
    return Study(
        model=captured.model,
        name=captured.name,
        call=captured.call,
        train=train,
        evaluation=evaluation,
        facts=facts,
        eval_facts=eval_facts,
        places=places,
        homes=homes,
        costs=build_tables(
            train, facts, costs, [place is not None for place in places], homes, changing
        ),
        warnings=captured.warnings,
        measured=tuple(costs) if measured else (),
        told=captured.told,
    )


def _about_rows(train: Program, evaluation: Program) -> Iterator[str]:
    least, most = common_rows(train, evaluation)
    fixed = least == most or not (train.dynamic and evaluation.dynamic)
    if fixed:
        yield (
            f"this model treats the batch size as a constant: every batch must have exactly "
            f"{train.batch_size} rows (drop_last=True in the DataLoader)"
        )
    elif most is not None or least > 1:
        limits = f"at least {least}" if most is None else f"{least} to {most}"
        yield f"this model treats other batch sizes otherwise: every batch must have {limits} rows"


def _refuse_changed_sizes(train: Program, evaluation: Program) -> None:
    read = train.read_early | evaluation.read_early
    for name in sorted(read & (train.written | evaluation.written)):
        raise CaptureError(
            f"the model decides by the value of its buffer {name!r} (an `if`, a loop or a size), "
            "and changes it while it runs: a graph holds one decision for ever. Use torch.where "
            "or masks instead."
        )


def _programs(
    model: nn.Module, call: Call, warnings: list[str], ways: Ways
) -> tuple[Program, Program]:
    """Both modes as graphs; where that is impossible, the model as a chain of its modules."""
    try:
        return capture(model, call, "train", ways), capture(model, call, "eval", ways)
    except CaptureError as error:
        chain = chain_program(model, call)
        if chain is None:
            raise
        warnings.append(
            f"cut at module boundaries, because a graph cannot be captured: {error} "
            "Every provider must give its Node the model itself (model=…)."
        )
        return chain, chain


def _costs(
    model: nn.Module, call: Call, train: Program, facts: Facts, *, pass_data: bool
) -> list[OpCost]:
    if pass_data and any(tensor.tensor.is_meta for tensor in train.held.values()):
        raise CaptureError(
            "pass_data=True runs the model, but its weights are on the meta device; "
            "load them first or use pass_data=False"
        )
    resized = call if call.batch_size == train.batch_size else call.resized(train.batch_size)
    with switched_to(model, "train"):
        if any(isinstance(op.target, ModuleCall) for op in train.ops):
            with values_restored(model):
                return profile_modules(train, resized.leaves, gradients=facts.differentiable)
        costs = profile(train, gradients=facts.differentiable)
        if pass_data:
            costs = refine(costs, train, resized.leaves, gradients=facts.differentiable)
        return costs


def _check_types(model: nn.Module, call: Call) -> None:
    """A capture does not mind double precision in front of a layer in single; running it does."""
    known = {parameter.dtype for parameter in model.parameters()}
    if any(leaf.is_floating_point() and leaf.dtype not in known for leaf in call.leaves):
        few = call.resized(2) if call.batch_size > 2 else call
        if (unfit := unfit_inputs(model, few)) is not None:
            raise unfit


def _check_model(model: object) -> None:
    if isinstance(model, type):
        raise CaptureError(
            f"model is the class {model.__name__}; pass an instance of it: {model.__name__}(…)"
        )
    if not isinstance(model, nn.Module):
        raise CaptureError(f"model is {type(model).__name__}; expected a torch.nn.Module instance")
    for path, module in model.named_modules():
        if path and is_script(module):
            raise CaptureError(
                f"module {path!r} is scripted or traced by torch.jit, inside a model that is not. "
                "Use the module that it was made from, or script the whole model and pass that."
            )
    if not any(True for _ in model.parameters()):
        raise CaptureError(f"{type(model).__name__} has no parameters: there is nothing to train")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise CaptureError(
            f"every parameter of {type(model).__name__} has requires_grad=False: "
            "there is nothing to train"
        )
    uninitialised = nn.parameter.UninitializedParameter
    for name, parameter in model.named_parameters():
        if isinstance(parameter, uninitialised):
            raise CaptureError(
                f"parameter {name!r} has no shape yet (a lazy module); "
                "run the model once on the example inputs before planning"
            )
        if parameter.is_inference():
            raise CaptureError(
                f"parameter {name!r} was made inside torch.inference_mode() and cannot be trained; "
                "build the model outside"
            )
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise CaptureError(
                f"parameter {name!r} has a hook on its gradient. Hooks are code and cannot travel "
                "to the provider that will hold it; change gradients in the optimizer instead."
            )
    refuse_shared_memory({**dict(model.named_parameters()), **dict(model.named_buffers())})
