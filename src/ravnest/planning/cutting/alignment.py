"""The same cut in two graphs: where a cut of the train graph falls in the eval graph.

The two graphs of a model differ (dropout, auxiliary heads, fast paths), but most operators occur in
both, in the same order and inside the same module. A cut of one is a cut of the other between the
same neighbours. It is usable only if every tensor that training changes stays with its stage:
evaluation on a stage that holds an untrained copy would be silently wrong.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from ravnest.planning.capture.program import Program
from ravnest.planning.cutting.analysis import Facts
from ravnest.stage.operators import operator_name

Key = tuple[str, str]
"""Module and operator."""
_MOST_PAIRS, _MOST_COMPARED = 2_000_000, 20_000
"""Comparing everything with everything finds the best match, and takes the square of the length."""


def align(train: Program, evaluation: Program, facts: Facts, eval_facts: Facts) -> list[int | None]:
    """For every train position 0 … n: the eval position of the same cut, or None."""
    count = len(train.ops)
    earliest, latest = _bounds(train, evaluation)
    first, last = _with_their_owners(train, evaluation)
    legal = _next_legal(eval_facts)
    places: list[int | None] = [None] * (count + 1)
    places[0], places[count] = 0, len(evaluation.ops)
    lowest = 0
    for position in range(1, count):
        if not facts.legal[position]:
            continue
        candidate = legal[max(lowest, earliest[position], first[position])]
        if candidate <= min(latest[position], last[position]):
            places[position] = lowest = candidate
    return places


def _next_legal(facts: Facts) -> list[int]:
    """For every position the first one from there on at which a cut is legal; behind them all if
    there is none."""
    none = len(facts.legal)
    found = [none] * (none + 1)
    for position in reversed(range(none)):
        found[position] = position if facts.legal[position] else found[position + 1]
    return found


def _bounds(train: Program, evaluation: Program) -> tuple[list[int], list[int]]:
    """Eval positions between which a train cut falls, from the operators both graphs share."""
    ours = [(op.path, operator_name(op.target)) for op in train.ops]
    theirs = [(op.path, operator_name(op.target)) for op in evaluation.ops]
    partner = partners(ours, theirs)
    earliest = [0]
    for match in partner:
        earliest.append(match + 1 if match >= 0 else earliest[-1])
    latest = [len(theirs)]
    for match in reversed(partner):
        latest.append(match if match >= 0 else latest[-1])
    return earliest, latest[::-1]


def partners(ours: Sequence[Key], theirs: Sequence[Key]) -> list[int]:
    """For each of ours the place of the same one of theirs, growing; -1 if it has none."""
    partner = [-1] * len(ours)
    often = Counter(theirs)
    pairs = sum(often[key] for key in ours)
    if pairs > _MOST_PAIRS or max(len(ours), len(theirs)) > _MOST_COMPARED:
        for one, other in _in_order(ours, theirs):
            partner[one] = other
        return partner
    for block in SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks():
        for offset in range(block.size):
            partner[block.a + offset] = block.b + offset
    return partner


def _in_order(ours: Sequence[Key], theirs: Sequence[Key]) -> Iterator[tuple[int, int]]:
    """The n-th of a kind is taken for the n-th of its kind, as far as that keeps their order: the
    longest growing sequence, in hardly more than linear time."""
    place = {key: number for number, key in enumerate(_numbered(theirs))}
    common = [(one, place[key]) for one, key in enumerate(_numbered(ours)) if key in place]
    ends: list[int] = []  # of the growing sequences of each length, the lowest last place
    at: list[int] = []  # and where in `common` that is
    before: list[int] = []
    for number, (_, other) in enumerate(common):
        length = bisect_left(ends, other)
        before.append(at[length - 1] if length else -1)
        if length == len(ends):
            ends.append(other)
            at.append(number)
        else:
            ends[length], at[length] = other, number
    number = at[-1] if at else -1
    while number >= 0:
        yield common[number]
        number = before[number]


def _numbered(keys: Sequence[Key]) -> Iterator[tuple[Key, int]]:
    seen: Counter[Key] = Counter()
    for key in keys:
        yield key, seen[key]
        seen[key] += 1


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


def _with_their_owners(train: Program, evaluation: Program) -> tuple[list[int], list[int]]:
    """For every train cut the first and the last eval position at which every changing tensor that
    evaluation reads on one side is also trained on that side."""
    eval_spans = _spans(evaluation)
    count = len(train.ops)
    first, last = [0] * (count + 1), [len(evaluation.ops)] * (count + 1)
    for name, (begins, ends) in _changing_spans(train, evaluation).items():
        if name in eval_spans:
            eval_begins, eval_ends = eval_spans[name]
            # Trained behind every cut up to where it begins, and before every one after its end.
            last[begins] = min(last[begins], eval_begins)
            first[ends + 1] = max(first[ends + 1], eval_ends + 1)
    for position in range(count):
        first[position + 1] = max(first[position + 1], first[position])
    for position in reversed(range(count)):
        last[position] = min(last[position], last[position + 1])
    return first, last
