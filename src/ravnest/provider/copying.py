"""Is the model being taught to give back what it is given?

Language models are trained on the words that follow. Where labels are the inputs themselves,
somebody has to shift them by one: models of transformers do so if they are given the labels, and
compute the loss themselves; a criterion outside of the model has to. If nobody does, copying is
what lowers the loss, which looks like wonderful training.

What a criterion asks for shows in its gradient: at every position, the class whose score it pulls
up the most. If that is the input at the same position, wherever the next one is another, then
copying is what is learnt. Whether the criterion is a plain cross entropy, ignores positions,
smooths or shifts, does not matter. The Leaf knows the inputs if they are among what it reads as
labels: the Root sends digests of what it gives to the model, with the first batches.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ravnest.errors import DataError
from ravnest.provider.batches import rows_of
from ravnest.provider.proof import token_digest, tokens_in
from ravnest.stage import structure
from ravnest.wire.messages import MicroBatch

logger = logging.getLogger("ravnest")
_TELLING = 8
"""So many positions, at least, before anything is concluded."""


class CopyWatch:
    """Looks at the first batches, until it knows."""

    def __init__(self, criterion: Callable[[Any, Any], Any]) -> None:
        self._criterion = criterion
        self._knows = False

    def look(
        self, outputs: Any, part: Any, whole: Any, of: MicroBatch, tokens: Sequence[int]
    ) -> None:
        """`tokens` are digests of what the model is given; raises if that is what it learns."""
        if self._knows or not tokens:
            return
        given = [
            rows_of(tensor, of.batch_rows, 0, of.rows)
            for tensor in tokens_in(whole)
            if token_digest(tensor) in tokens
        ]
        for scores, gradient in self._pulls(outputs, part) if given else ():
            for inputs in given:
                if (axis := _axis_of_classes(scores, inputs)) is not None:
                    self._compare(gradient, inputs.to(gradient.device), axis)

    def _pulls(self, outputs: Any, labels: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Tensors of the output, and the criterion's gradients of them."""
        leaves: list[torch.Tensor] = []
        found: list[torch.Tensor | None] = []
        shape = structure.flatten(outputs, leaves, "the model's output")
        apart = [leaf.detach().requires_grad_(leaf.is_floating_point()) for leaf in leaves]
        scores = [leaf for leaf in apart if leaf.requires_grad]
        try:
            with torch.enable_grad():
                loss = self._criterion(structure.rebuild(shape, apart.__getitem__), labels)
            found += torch.autograd.grad(loss, scores, allow_unused=True)
        except Exception as error:  # if it is wrong, that shows when it is called in earnest
            logger.debug("what the criterion asks for cannot be found out: %s", error)
            return []
        return [(s, g) for s, g in zip(scores, found, strict=True) if g is not None]

    def _compare(self, gradient: torch.Tensor, inputs: torch.Tensor, axis: int) -> None:
        pull, wanted = gradient.min(axis)
        telling = (pull < 0)[..., :-1] & (inputs[..., :-1] != inputs[..., 1:])
        if int(telling.sum()) < _TELLING:
            return
        self._knows = True
        if bool((wanted == inputs)[..., :-1][telling].all()):
            raise DataError(
                "labels equal the model's inputs, position by position, and the criterion does not "
                "shift them: the model would learn to copy its input. Compare every position with "
                "the next word, as in cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, "
                "1:].flatten()); models of transformers only shift labels that are given to them, "
                'and compute the loss themselves then (Node(criterion="output")). If the model is '
                "meant to reproduce its input, or cannot see the position that it is asked about: "
                "Node(reconstructs=True)"
            )


def _axis_of_classes(scores: torch.Tensor, inputs: torch.Tensor) -> int | None:
    """In scores for every position of the inputs."""
    shape = scores.shape
    for axis in (scores.dim() - 1, 1):
        if scores.dim() > 2 and shape[:axis] + shape[axis + 1 :] == inputs.shape:
            return axis
    return None
