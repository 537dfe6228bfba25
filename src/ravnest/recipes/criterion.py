"""All losses of a recipe as one criterion, for whole batches and for parts of them."""

from collections.abc import Mapping
from typing import Any

from ravnest.api.jobs import LossSpec, Recipe
from ravnest.errors import no_values_in_errors
from ravnest.recipes.losses import LOSSES, Built, named_loss
from ravnest.recipes.outputs import output_at

Batch = Mapping[str, Any]
"""Targets by `target_name`, and whatever else the Leaf reads."""


def target_name(number: int) -> str:
    """Under which the target of this loss stands in a batch."""
    return f"target_{number}"


class _Term:
    """One loss of several."""

    def __init__(self, number: int, spec: LossSpec) -> None:
        values = LOSSES.values(named_loss(spec))
        self._built: Built = LOSSES[spec.name].build(values)
        self._name, self._path = spec.name, spec.output
        self._target = target_name(number)
        self.is_sum = values["reduction"] == "sum"
        self.weight = spec.weight

    def total(self, outputs: Any, batch: Batch) -> Any:
        pair = self._pair(outputs, batch)
        with no_values_in_errors(f"the loss {self._name!r} failed", *pair):
            return self.weight * self._built.total(*pair)

    def count(self, outputs: Any, batch: Batch) -> float:
        """What the mean is over; a batch in which nothing counts has the loss 0."""
        if self.is_sum:
            return 1.0
        return max(self._built.count(*self._pair(outputs, batch)), 1e-12)

    def _pair(self, outputs: Any, batch: Batch) -> tuple[Any, Any]:
        return output_at(outputs, self._path), batch[self._target]


class RecipeCriterion:
    """Called as criterion(outputs, batch); the losses are added up with their weights."""

    def __init__(self, recipe: Recipe) -> None:
        self._terms = [_Term(number, spec) for number, spec in enumerate(recipe.losses)]

    def __call__(self, outputs: Any, batch: Batch) -> Any:
        return self.share_of_batch(outputs, batch, batch)

    def share_of_batch(self, outputs: Any, part: Batch, whole: Batch) -> Any:
        """The share of a part in the loss of the whole batch; shares of all parts add up to it."""
        shares = [term.total(outputs, part) / term.count(outputs, whole) for term in self._terms]
        return sum(shares[1:], shares[0])

    def judged(self, outputs: Any, batch: Batch) -> tuple[float, float]:
        """As a metric: a sum, and how many it is over."""
        if len(self._terms) > 1:
            rows = float(len(batch[target_name(0)]))
            return float(self(outputs, batch)) * rows, rows
        (term,) = self._terms
        return float(term.total(outputs, batch)), term.count(outputs, batch)


def build_criterion(recipe: Recipe) -> RecipeCriterion:
    """What `Node(criterion=…)` takes."""
    return RecipeCriterion(recipe)
