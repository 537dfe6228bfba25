"""The same cut in two graphs: where a cut of the train graph falls in the eval graph.

The two graphs of a model differ (dropout, auxiliary heads, fast paths), but most operators occur in
both, in the same order and inside the same module. A cut of one is a cut of the other between the
same neighbours. It is usable only if every tensor that training changes stays with its stage:
evaluation on a stage that holds an untrained copy would be silently wrong.
"""

from collections import defaultdict
from difflib import SequenceMatcher

from ravnest.planning.capture.program import Program
from ravnest.planning.cutting.analysis import Facts
from ravnest.stage.operators import operator_name


def align(train: Program, evaluation: Program, facts: Facts, eval_facts: Facts) -> list[int | None]:
    """For every train position 0 … n: the eval position of the same cut, or None."""
    count = len(train.ops)
    earliest, latest = _bounds(train, evaluation)
    spans = _changing_spans(train, evaluation)
    eval_spans = _spans(evaluation)
    places: list[int | None] = [None] * (count + 1)
    places[0], places[count] = 0, len(evaluation.ops)
    lowest = 0
    for position in range(1, count):
        if not facts.legal[position]:
            continue
        for candidate in range(max(lowest, earliest[position]), latest[position] + 1):
            if eval_facts.legal[candidate] and _keeps_owners(
                position, candidate, spans, eval_spans
            ):
                places[position] = lowest = candidate
                break
    return places


def _bounds(train: Program, evaluation: Program) -> tuple[list[int], list[int]]:
    """Eval positions between which a train cut falls, from the operators both graphs share."""
    ours = [(op.path, operator_name(op.target)) for op in train.ops]
    theirs = [(op.path, operator_name(op.target)) for op in evaluation.ops]
    partner = [-1] * len(ours)
    for block in SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks():
        for offset in range(block.size):
            partner[block.a + offset] = block.b + offset
    earliest = [0]
    for match in partner:
        earliest.append(match + 1 if match >= 0 else earliest[-1])
    latest = [len(theirs)]
    for match in reversed(partner):
        latest.append(match if match >= 0 else latest[-1])
    return earliest, latest[::-1]


Span = tuple[int, int]


def _spans(program: Program) -> dict[str, Span]:
    """First and last operator that use each tensor the model holds."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for index, op in enumerate(program.ops):
        for name in op.held():
            found[name].append(index)
    return {name: (uses[0], uses[-1]) for name, uses in found.items()}


def _changing_spans(train: Program, evaluation: Program) -> dict[str, Span]:
    """Spans of the tensors that a run changes: trained parameters and written buffers."""
    written = train.written | evaluation.written
    return {
        name: span
        for name, span in _spans(train).items()
        if train.held[name].trainable or name in written
    }


def _keeps_owners(
    position: int, candidate: int, spans: dict[str, Span], eval_spans: dict[str, Span]
) -> bool:
    """Is every changing tensor that evaluation reads on one side also trained on that side?"""
    for name, (first, last) in spans.items():
        if name not in eval_spans:
            continue
        eval_first, eval_last = eval_spans[name]
        if eval_first < candidate and first >= position:
            return False
        if eval_last >= candidate and last < position:
            return False
    return True
