"""Metrics by name, judged on the output and target of a recipe's first loss.

A metric gives a sum and how many it is over for every batch, so that batches of different sizes add
up. Where the wanted figure is no mean (perplexity), it is made of the mean at the end; where it is
one of several classes' figures, these are counted apart until the end (`ByClass`).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ravnest.api.jobs import FieldSpec, Named, Recipe
from ravnest.errors import JobError
from ravnest.recipes.criterion import Batch, RecipeCriterion, target_name
from ravnest.recipes.kinds import FLOATS
from ravnest.recipes.losses import LOSSES, axis_of_shares, named_loss
from ravnest.recipes.outputs import class_axis, output_at
from ravnest.recipes.parameters import Entry, Param, Registry, Values

SumAndCount = tuple[float, float]
Share = Callable[[Any, Any, Any], tuple[Any, Any]]
"""(right ones, wrong ones, missed ones) → two numbers whose quotient is the figure."""


@dataclass(frozen=True)
class ByClass:
    """Of every class, how many were right, wrong and missed; the plain mean of their figures."""

    right: Any
    wrong: Any
    missed: Any
    share: Share

    @classmethod
    def of(cls, chosen: Any, there: Any, classes: int, share: Share) -> "ByClass":
        """`chosen` for each of those that are `there`, by the number of the class."""
        right = chosen[chosen == there].bincount(minlength=classes).cpu()
        wrong = chosen.bincount(minlength=classes).cpu() - right
        missed = there.bincount(minlength=classes).cpu() - right
        return cls(right, wrong, missed, share)

    def plus(self, other: "ByClass") -> "ByClass":
        return ByClass(
            self.right + other.right,
            self.wrong + other.wrong,
            self.missed + other.missed,
            self.share,
        )

    def figure(self) -> float:
        """Classes that neither occur nor are taken for one do not count; others without anything
        to be a share of have 0."""
        total, count = self.share(self.right, self.wrong, self.missed)
        seen = (self.right + self.wrong + self.missed) > 0
        shares = (total.double() / count.clamp(min=1))[seen]
        return float(shares.mean()) if shares.numel() else 0.0


Judge = Callable[[Any, Any], SumAndCount | ByClass]
"""(output, target) → sum and count, or counts of classes."""
Metric = Callable[[Any, Batch], SumAndCount | ByClass | None]
"""None: such outputs and targets cannot be judged by it."""


@dataclass(frozen=True)
class _Metric(Entry):
    build: Callable[[Values], Judge] = lambda values: lambda output, target: (0.0, 0.0)
    finish: Callable[[float], float] = float
    """From the mean over everything to the figure that is shown."""
    of_classes: bool = False
    """It needs targets that are numbers of classes."""
    shown: str = ""
    """Under which name, if not its own; parameters may be part of it."""


_IGNORE = Param("integer", -100, "targets that do not count")
_AXIS = Param("integer", None, "of the classes in the output; found by the shapes if not given")
_CLASSES = {"ignore_index": _IGNORE, "class_axis": _AXIS}


def _chosen(output: Any, target: Any, axis: int | None) -> Any:
    """The class that the model takes for right; of a single score, whether it is above 0."""
    if _is_single(output, target, axis):
        return (output.reshape(target.shape) > 0).to(target.dtype)
    return output.argmax(class_axis(output, target.shape, axis))


def _is_single(output: Any, target: Any, axis: int | None) -> bool:
    """One score for each target, instead of one for each class."""
    return bool(
        axis is None
        and output.shape[1:].numel() == target.shape[1:].numel()
        and (output.dim() <= target.dim() or output.shape[-1] == 1)
    )


def _how_many(output: Any, target: Any, axis: int | None) -> int:
    if _is_single(output, target, axis):
        return 2
    return int(output.shape[class_axis(output, target.shape, axis)])


def _accuracy(values: Values) -> Judge:
    def judge(output: Any, target: Any) -> SumAndCount:
        counted = target != values["ignore_index"]
        right = (_chosen(output, target, values["class_axis"]) == target) & counted
        return float(right.sum()), float(counted.sum())

    return judge


def _top_k(values: Values) -> Judge:
    def judge(output: Any, target: Any) -> SumAndCount:
        axis = class_axis(output, target.shape, values["class_axis"])
        k = min(values["k"], output.shape[axis])
        best = output.topk(k, axis).indices
        counted = target != values["ignore_index"]
        right = (best == target.unsqueeze(axis)).any(axis) & counted
        return float(right.sum()), float(counted.sum())

    return judge


def _perplexity(values: Values) -> Judge:
    named = Named(name="cross_entropy", params=dict(values))
    built = LOSSES["cross_entropy"].build(LOSSES.values(named))
    return lambda output, target: (
        float(built.total(output, target)),
        built.count(output, target),
    )


def _hits(values: Values, share: Share) -> Judge:
    """Of the class that is looked for; of all, if there are more than two and none is named."""

    def judge(output: Any, target: Any) -> SumAndCount | ByClass:
        axis, wanted = values["class_axis"], values["positive"]
        counted = target != values["ignore_index"]
        chosen, there = _chosen(output, target, axis)[counted], target[counted]
        classes = _how_many(output, target, axis)
        if wanted is None and classes > 2:
            return ByClass.of(chosen.long(), there.long(), classes, share)
        positive = 1 if wanted is None else wanted
        found, there = chosen == positive, there == positive
        total, count = share((found & there).sum(), (found & ~there).sum(), (~found & there).sum())
        return float(total), float(count)

    return judge


def _differences(figure: Callable[[Any], Any]) -> Callable[[Values], Judge]:
    def build(values: Values) -> Judge:
        def judge(output: Any, target: Any) -> SumAndCount:
            if output.numel() != target.numel():
                raise JobError(
                    f"the output has shape {list(output.shape)} and the target "
                    f"{list(target.shape)}; this metric needs equally many numbers"
                )
            difference = output.double().reshape(-1) - target.double().reshape(-1)
            return float(figure(difference).sum()), float(target.numel())

        return judge

    return build


_BINARY = {
    **_CLASSES,
    "positive": Param(
        "integer",
        None,
        "the class that is looked for. If not given: class 1 of two; of more, the plain mean over "
        "all classes (macro average)",
        low=0,
    ),
}

METRICS = Registry(
    "metric",
    {
        "accuracy": _Metric(
            "Share of right classes; of single scores, above 0 is class 1.",
            _CLASSES,
            build=_accuracy,
            of_classes=True,
        ),
        "top_k": _Metric(
            "Share of rows whose right class is among the k best.",
            {"k": Param("integer", 5, "how many", low=1), **_CLASSES},
            build=_top_k,
            of_classes=True,
            shown="top_{k}",
        ),
        "perplexity": _Metric(
            "The exponential of the mean cross entropy.",
            _CLASSES,
            build=_perplexity,
            finish=lambda mean: math.exp(min(mean, 700.0)),
            of_classes=True,
        ),
        "precision": _Metric(
            "Of those taken for the class that is looked for, the share that is.",
            _BINARY,
            build=lambda values: _hits(values, lambda right, wrong, _: (right, right + wrong)),
            of_classes=True,
        ),
        "recall": _Metric(
            "Of those of the class that is looked for, the share that is found.",
            _BINARY,
            build=lambda values: _hits(values, lambda right, _, missed: (right, right + missed)),
            of_classes=True,
        ),
        "f1": _Metric(
            "The harmonic mean of precision and recall.",
            _BINARY,
            build=lambda values: _hits(
                values,
                lambda right, wrong, missed: (2 * right, 2 * right + wrong + missed),
            ),
            of_classes=True,
        ),
        "mse": _Metric("Mean squared difference.", build=_differences(lambda d: d.square())),
        "rmse": _Metric(
            "Root of the mean squared difference.",
            build=_differences(lambda d: d.square()),
            finish=math.sqrt,
        ),
        "mae": _Metric("Mean absolute difference.", build=_differences(lambda d: d.abs())),
        "bias": _Metric("Mean difference, output less target.", build=_differences(lambda d: d)),
    },
)


def shown_name(named: Named) -> str:
    """Under which its values are reported."""
    values = METRICS.values(named)
    return (METRICS[named.name].shown or named.name).format(**values)


def chosen_metrics(recipe: Recipe) -> tuple[Named, ...]:
    """Those of the recipe; the accuracy where there are none and classes are learnt."""
    if recipe.metrics or recipe.losses[0].name not in ("cross_entropy", "nll"):
        return recipe.metrics
    values = LOSSES.values(named_loss(recipe.losses[0]))
    params = {name: values[name] for name in ("ignore_index", "class_axis")}
    return (Named(name="accuracy", params=params),)


def curve_names(recipe: Recipe) -> tuple[str, ...]:
    """All that workers report of a job with this recipe."""
    metrics = [shown_name(named) for named in chosen_metrics(recipe)]
    return ("train/loss", *(f"eval/{name}" for name in (*metrics, "loss")))


def check_metrics(recipe: Recipe, target: FieldSpec) -> None:
    seen: set[str] = set()
    for number, named in enumerate(recipe.metrics):
        METRICS.values(named, f"metrics[{number}]")
        if (name := shown_name(named)) in seen:
            raise JobError(f"metrics[{number}]: there are two metrics {name!r}")
        seen.add(name)
        if METRICS[named.name].of_classes and target.dtype in FLOATS:
            raise JobError(
                f"metrics[{number}]: the metric {named.name!r} needs whole numbers as targets; "
                f"{target.name!r} is {target.dtype}"
            )


def build_metrics(recipe: Recipe) -> dict[str, Metric]:
    """What `Node(metrics=…)` takes; the loss is among them."""
    found: dict[str, Metric] = {}
    for named in chosen_metrics(recipe):
        entry = METRICS[named.name]
        values = METRICS.values(named)
        judge, axis = entry.build(values), values.get("class_axis")
        found[shown_name(named)] = _on_first_loss(recipe, judge, entry.of_classes, axis)
    found["loss"] = RecipeCriterion(recipe).judged
    return found


def _on_first_loss(recipe: Recipe, judge: Judge, of_classes: bool, axis: int | None) -> Metric:
    path, target = recipe.losses[0].output, target_name(0)

    def metric(outputs: Any, batch: Batch) -> SumAndCount | ByClass | None:
        output = output_at(outputs, path)
        wanted = batch[target].to(output.device)
        if not of_classes:
            return judge(output, wanted)
        if (
            wanted.is_floating_point()
        ):  # one-hot, or shares of classes: the largest is the right one
            wanted = wanted.argmax(axis_of_shares(wanted, axis))
        # Compared with a small type, -100 would be one of its classes.
        return judge(output, wanted.long())

    return metric


def finish_metrics(recipe: Recipe, means: Mapping[str, float]) -> dict[str, float]:
    """The figures to show, of the means that the Leaf has found."""
    finish = {shown_name(named): METRICS[named.name].finish for named in chosen_metrics(recipe)}
    return {name: finish.get(name, float)(value) for name, value in means.items()}
