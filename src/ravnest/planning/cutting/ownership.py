"""Where each tensor of the model is at home: the operator position that decides its owning stage.

A tensor may be used on several stages (tied weights, shared constants) or on none. Exactly one
stage owns it: the one with its first use in training; failing that, its first use in evaluation;
failing that, the stage of the tensor before it, so that nothing is lost when the model is fused.
The owner is also the one that averages the tensor with other clusters, if training changes it.
"""

from collections.abc import Iterable, Sequence

from ravnest.planning.capture.program import Program


def home_positions(
    train: Program, evaluation: Program, places: Sequence[int | None]
) -> dict[str, int]:
    """Tensor name → position in the train program, in model order."""
    first = _first_uses(train)
    eval_first = _first_uses(evaluation)
    homes: dict[str, int] = {}
    previous = 0
    for name, tensor in (evaluation.held | train.held).items():
        if name in first:
            previous = first[name]
        elif name in eval_first:
            previous = _train_position(eval_first[name], places)
        elif tensor.kind == "constant":
            continue
        homes[name] = previous
    return dict(sorted(homes.items(), key=lambda item: item[1]))


def changing_names(train: Program, evaluation: Program, homes: Iterable[str]) -> list[str]:
    """Of the tensors that have a home, those that training changes: parameters that it updates and
    buffers that the forward pass writes to. Masks and tables stay what they are."""
    held, written = evaluation.held | train.held, train.written | evaluation.written
    return [name for name in homes if held[name].trainable or name in written]


def _first_uses(program: Program) -> dict[str, int]:
    found: dict[str, int] = {}
    for position, op in enumerate(program.ops):
        for name in op.held():
            found.setdefault(name, position)
    return found


def _train_position(eval_position: int, places: Sequence[int | None]) -> int:
    """The last possible cut that leaves the eval operator on its right-hand side."""
    best = 0
    for position, place in enumerate(places[:-1]):
        if place is not None and place <= eval_position:
            best = position
    return best
