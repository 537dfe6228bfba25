"""Facts about a program that decide where it may be cut and what then has to travel.

- A cut never separates a storage from a later write to it: a stage cannot write into a tensor that
  it received. Nor does it separate the uses of a buffer that is written, a list of tensors from the
  picking of its items, or a scope from itself.
- Values that come cheaply from the inputs alone (masks, positions, rotary tables) are computed
  again where they are needed instead of being sent.
"""

import math
import operator
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from ravnest.planning.capture.program import Held, ModuleCall, Op, Program, Value
from ravnest.planning.capture.writes import is_mutating
from ravnest.stage.gradients import HandWritten
from ravnest.stage.writes import shown, written

_NEVER_RECOMPUTED = (
    "aten::dropout", "aten::feature_dropout", "aten::alpha_dropout", "aten::feature_alpha_dropout",
    "aten::native_dropout", "aten::rrelu", "aten::scaled_dot_product_attention", "aten::lstm",
    "aten::gru", "aten::rnn", "aten::conv", "aten::linear", "aten::matmul", "aten::mm", "aten::bmm",
    "aten::addmm", "aten::baddbmm", "aten::einsum", "aten::stft", "aten::fft", "aten::_fft",
    "aten::_transformer", "aten::_native_multi", "aten::linalg",
)  # fmt: skip
"""Random, or too expensive to do twice."""


def size_hint(size: int | torch.SymInt) -> int:
    """The example's number behind a possibly symbolic size."""
    if isinstance(size, torch.SymInt):
        hint = getattr(size.node, "hint", None)
        return int(hint) if hint is not None else 1
    return int(size)


def tensors_in(example: Any) -> list[torch.Tensor]:
    if isinstance(example, torch.Tensor):
        return [example]
    if isinstance(example, list | tuple):
        return [tensor for item in example for tensor in tensors_in(item)]
    return []


def example_bytes(example: Any) -> int:
    """Size of a value at the example's batch size; a plain number counts as eight bytes."""
    tensors = tensors_in(example)
    if not tensors:
        return 8
    return sum(math.prod(map(size_hint, t.shape)) * t.element_size() for t in tensors)


@dataclass
class Facts:
    """Per value number unless stated otherwise. `positions` count operators; inputs have -1."""

    position: dict[int, int]
    bytes: dict[int, int]
    differentiable: set[int]
    recomputed: set[int]
    last_need: dict[int, int]
    """Last operator position that needs the value, through recomputed values too; n for results."""
    legal: list[bool]
    """legal[p]: may the program be cut in front of operator p? Length n + 1."""
    storage: dict[int, int | None]
    """The value whose memory this one shares (itself if none); None if it is the model's own."""


def analyse(program: Program, changing: frozenset[str] = frozenset()) -> Facts:
    """Everything later steps ask about a program, in one pass over it.

    `changing` names tensors that the *other* mode writes to: each mode must read what the other
    wrote, so they are used on one stage only, and nothing made from them is computed on another.
    """
    position = dict.fromkeys(range(len(program.inputs)), -1)
    size = {number: example_bytes(leaf) for number, leaf in enumerate(program.inputs)}
    for index, op in enumerate(program.ops):
        position[op.out] = index
        size[op.out] = example_bytes(op.example)
    users: defaultdict[int, list[int]] = defaultdict(list)
    for index, op in enumerate(program.ops):
        for number in set(op.values()):
            users[number].append(index)
    aliases = _Aliases(program)
    recomputed = _recomputed(program, size, aliases, changing)
    return Facts(
        position=position,
        bytes=size,
        differentiable=_differentiable(program, aliases),
        recomputed=recomputed,
        last_need=_last_needs(program, users, recomputed),
        legal=_legal_cuts(program, position, aliases, changing),
        storage=_storages(program, _Aliases(program, certain=True)),
    )


class _Aliases:
    """Which values may share memory, and which of those groups are written to.

    Cutting must reckon with every possible sharing; counting bytes only with what is `certain`.
    """

    def __init__(self, program: Program, *, certain: bool = False) -> None:
        self._parent: dict[Any, Any] = {}
        self.writes: defaultdict[Any, list[int]] = defaultdict(list)
        """group → positions of operators that write to it"""
        pending: list[tuple[int, Any]] = []
        for index, op in enumerate(program.ops):
            for reference in _flat_references(_shown(op, certain=certain)):
                self._join(_key(Value(op.out)), _key(reference))
            for reference in _flat_references(_written(op)):
                pending.append((index, _key(reference)))
        for index, key in pending:
            self.writes[self.group(key)].append(index)

    def group(self, key: Any) -> Any:
        root = key
        while self._parent.get(root, root) != root:
            root = self._parent[root]
        while self._parent.get(key, key) != root:
            self._parent[key], key = root, self._parent[key]
        return root

    def _join(self, one: Any, other: Any) -> None:
        self._parent[self.group(one)] = self.group(other)

    def is_written(self, reference: Value | Held) -> bool:
        return self.group(_key(reference)) in self.writes


def _key(reference: Value | Held) -> tuple[str, int | str]:
    if isinstance(reference, Value):
        return ("value", reference.number)
    return ("held", reference.name)


def _flat_references(argument: Any) -> list[Value | Held]:
    if isinstance(argument, Value | Held):
        return [argument]
    if isinstance(argument, list | tuple):
        return [reference for item in argument for reference in _flat_references(item)]
    return []


def _shown(op: Op, *, certain: bool) -> list[Any]:
    """Arguments that the result may share memory with."""
    if isinstance(op.target, ModuleCall):
        return [op.args[0]] if op.target.shares_input or op.target.writes_input else []
    if op.target is operator.getitem or isinstance(op.target, HandWritten):
        return [op.args[0]]
    if not isinstance(op.target, OpOverload):
        return []
    return list(shown(op.target, op.args, op.kwargs, certain=certain))


def _written(op: Op) -> list[Any]:
    """Arguments, and tensors of a module, that it may write to."""
    if isinstance(op.target, ModuleCall):
        return [*(op.args[:1] if op.target.writes_input else ()), *map(Held, op.target.buffers)]
    if not isinstance(op.target, OpOverload):
        return []
    return list(written(op.target, op.args, op.kwargs))


def _legal_cuts(
    program: Program, position: dict[int, int], aliases: _Aliases, changing: frozenset[str]
) -> list[bool]:
    count = len(program.ops)
    blocked = [0] * (count + 2)

    def keep_together(first: int, last: int) -> None:
        """No cut in front of operators first+1 … last."""
        if last > first >= 0:
            blocked[first + 1] += 1
            blocked[last + 1] -= 1

    uses: defaultdict[Any, list[int]] = defaultdict(list)
    regions: defaultdict[int, list[int]] = defaultdict(list)
    for index, op in enumerate(program.ops):
        for reference in (*op.references(), Value(op.out)):
            uses[aliases.group(_key(reference))].append(index)
        if op.target is operator.getitem and isinstance(op.args[0], Value):
            keep_together(position[op.args[0].number], index)
        if op.region is not None:
            regions[op.region].append(index)
    held_groups = {aliases.group(("held", name)) for name in program.held}
    input_groups = {aliases.group(("value", n)) for n in range(len(program.inputs))}
    for group, writes in aliases.writes.items():
        outside = group in held_groups or group in input_groups
        keep_together(min(uses[group]), max(uses[group]) if outside else max(writes))
    for group in {aliases.group(("held", name)) for name in changing} & uses.keys():
        keep_together(min(uses[group]), max(uses[group]))
    for members in regions.values():
        keep_together(min(members), max(members))
    legal, depth = [], 0
    for index in range(count + 1):
        depth += blocked[index]
        legal.append(depth == 0)
    return legal


def _storages(program: Program, aliases: _Aliases) -> dict[int, int | None]:
    held = {aliases.group(("held", name)) for name in program.held}
    first: dict[Any, int] = {}
    found: dict[int, int | None] = {}
    for number in program.examples:
        group = aliases.group(("value", number))
        found[number] = None if group in held else first.setdefault(group, number)
    return found


def _differentiable(program: Program, aliases: _Aliases) -> set[int]:
    """Values through which a gradient can flow to a trainable parameter."""
    found: set[int] = set()
    members: defaultdict[Any, list[int]] = defaultdict(list)
    for op in program.ops:
        members[aliases.group(("value", op.out))].append(op.out)
    for op in program.ops:
        if op.context is not None and op.context.grad is False:
            continue
        if isinstance(op.target, OpOverload) and op.target._schema.name == "aten::detach":
            continue
        continuous = _is_continuous(op.example)
        trained = any(program.held[name].trainable for name in op.held())
        if continuous and (trained or any(number in found for number in op.values())):
            found.add(op.out)
            if is_mutating(op):  # whatever shares the memory now depends on the parameter as well
                found.update(
                    number
                    for number in members[aliases.group(("value", op.out))]
                    if _is_continuous(program.examples[number])
                )
    return found


def _is_continuous(example: Any) -> bool:
    return any(t.is_floating_point() or t.is_complex() for t in tensors_in(example))


def _recomputed(
    program: Program, size: dict[int, int], aliases: _Aliases, changing: frozenset[str]
) -> set[int]:
    """Values computed again by every stage that needs them."""
    pure = {
        number for number in range(len(program.inputs)) if not aliases.is_written(Value(number))
    }
    sources: dict[int, frozenset[int]] = {number: frozenset([number]) for number in pure}
    chosen: set[int] = set()
    for op in program.ops:
        if not _is_repeatable(program, op, aliases) or not pure.issuperset(op.values()):
            continue
        if not changing.isdisjoint(op.held()):
            continue
        pure.add(op.out)
        if not tensors_in(op.example):
            sources[op.out] = frozenset([op.out])  # a plain number: sending it is cheapest
            continue
        needed: frozenset[int] = frozenset().union(*(sources[number] for number in op.values()))
        if size[op.out] >= sum(size[number] for number in needed):
            sources[op.out] = needed
            chosen.add(op.out)
        else:
            sources[op.out] = frozenset([op.out])
    return chosen


def _is_repeatable(program: Program, op: Op, aliases: _Aliases) -> bool:
    if is_mutating(op) or aliases.is_written(Value(op.out)) or isinstance(op.target, ModuleCall):
        return False
    if isinstance(op.target, OpOverload) and (
        op.target._schema.name.startswith(_NEVER_RECOMPUTED)
        or torch.Tag.nondeterministic_seeded in op.target.tags
    ):
        return False
    return all(
        program.held[name].kind != "parameter" and not aliases.is_written(Held(name))
        for name in op.held()
    )


def _last_needs(
    program: Program, users: dict[int, list[int]], recomputed: set[int]
) -> dict[int, int]:
    last = {number: len(program.ops) for number in program.result_values()}
    for op in reversed(program.ops):
        own = max([last.get(op.out, -1), *users.get(op.out, [])])
        if own >= 0:
            last[op.out] = own
        if op.out in recomputed:  # whoever needs the copy needs what it is made from
            for number in op.values():
                last[number] = max(last.get(number, -1), own)
    for number in range(len(program.inputs)):
        own = max([last.get(number, -1), *users.get(number, [])])
        if own >= 0:
            last[number] = own
    return last
