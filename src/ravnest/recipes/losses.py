"""Losses by name. Each is a total over some things, divided by how many things there are.

What is counted (rows, numbers, words that are not masked) adds up over the parts of a batch, and so
the shares of micro-batches add up to exactly the loss of the whole batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ravnest.api.jobs import FieldSpec, LossSpec, Named
from ravnest.errors import JobError
from ravnest.recipes.kinds import FLOATS, INTEGERS
from ravnest.recipes.outputs import class_axis
from ravnest.recipes.parameters import Entry, Param, Registry, Values

Total = Callable[[Any, Any], Any]
"""(output, target) → a tensor with one number."""
Count = Callable[[Any, Any], float]


@dataclass(frozen=True)
class Built:
    """A loss with its parameters."""

    total: Total
    count: Count
    """(output, target) → what the mean is over."""


@dataclass(frozen=True, kw_only=True)
class _Loss(Entry):
    build: Callable[[Values], Built]
    targets: str = "numbers"
    """numbers, classes (whole numbers), or either."""


_REDUCTION = Param("text", "mean", "mean, or the sum of everything", choices=("mean", "sum"))
_IGNORE = Param("integer", -100, "targets that do not count")
_AXIS = Param("integer", None, "of the classes in the output; found by the shapes if not given")
_WEIGHT = Param("numbers", None, "one for each class", low=0.0)


def _wide(output: Any) -> Any:
    """Sums in half precision would be too coarse."""
    return output.float() if output.element_size() < 4 else output


def _numbers(output: Any, target: Any) -> tuple[Any, Any]:
    """Output and target with one shape: torch would compare every row with every other else."""
    output, target = _wide(output), target.to(output.device)
    if output.shape != target.shape and output.shape[1:].numel() == target.shape[1:].numel() == 1:
        output, target = output.reshape(-1), target.reshape(-1)
    if output.shape != target.shape:
        raise JobError(
            f"the output has shape {list(output.shape)} and the target {list(target.shape)}; this "
            "loss needs them to be the same (there are transforms: reshape, one_hot, …)"
        )
    return output, target.to(output.dtype)


def _elementwise(function: str, **fixed: Callable[[Values], Any]) -> Callable[[Values], Built]:
    """A loss of torch.nn.functional, over every number."""

    def build(values: Values) -> Built:
        import torch

        loss = getattr(torch.nn.functional, function)
        given = {name: read(values) for name, read in fixed.items()}

        def total(output: Any, target: Any) -> Any:
            output, target = _numbers(output, target)
            return loss(output, target, reduction="sum", **given)

        return Built(total, lambda output, target: float(target.numel()))

    return build


def _param(name: str) -> Callable[[Values], Any]:
    return lambda values: values[name]


def _classes_first(output: Any, target: Any, axis: int | None) -> tuple[Any, Any]:
    """As torch takes them: classes second, targets on the same device."""
    output, target = _wide(output), target.to(output.device)
    if target.is_floating_point():  # shares of every class
        if target.ndim == output.ndim - 1:
            raise JobError(
                f"the target holds {str(target.dtype).removeprefix('torch.')}; class numbers must "
                "be whole: convert it with .long()"
            )
        if output.shape != target.shape:
            raise JobError(
                f"shares of classes have shape {list(target.shape)}, the output has "
                f"{list(output.shape)}: they must be the same"
            )
        found = axis_of_shares(output, axis)
        return output.movedim(found, 1), target.to(output.dtype).movedim(found, 1)
    found = class_axis(output, target.shape, axis)
    return output.movedim(found, 1), target.long()


def axis_of_shares(tensor: Any, wanted: int | None) -> int:
    axis = 1 if wanted is None else wanted
    if not -tensor.ndim <= axis < tensor.ndim or axis % tensor.ndim == 0:
        raise JobError(
            f"class_axis is {axis}: a tensor of shape {list(tensor.shape)} has its rows at axis 0 "
            f"and its classes at one from 1 to {tensor.ndim - 1}"
        )
    return axis


def _by_classes(function: str) -> Callable[[Values], Built]:
    def build(values: Values) -> Built:
        import torch

        loss = getattr(torch.nn.functional, function)
        weight = None if values["weight"] is None else torch.tensor(values["weight"])
        ignored = values["ignore_index"]
        more = {"label_smoothing": values["label_smoothing"]} if "label_smoothing" in values else {}

        def total(output: Any, target: Any) -> Any:
            output, target = _classes_first(output, target, values["class_axis"])
            own = None if weight is None else weight.to(output.device, output.dtype)
            if own is not None and len(own) != output.shape[1]:
                raise JobError(f"{len(own)} weights for {output.shape[1]} classes")
            if target.is_floating_point():
                return loss(output, target, weight=own, reduction="sum", **more)
            return loss(output, target, own, ignore_index=ignored, reduction="sum", **more)

        def count(output: Any, target: Any) -> float:
            if target.is_floating_point():
                axis = axis_of_shares(target, values["class_axis"])
                return float(target.numel() / target.shape[axis])
            kept = target.long()  # compared with a small type, -100 would be one of its classes
            kept = kept[kept != ignored]
            return float(kept.numel() if weight is None else weight[kept.cpu()].sum())

        return Built(total, count)

    return build


def _divergence(values: Values) -> Built:
    import torch

    def total(output: Any, target: Any) -> Any:
        output, target = _numbers(output, target)
        if values["logits"]:
            output = torch.log_softmax(output, values["class_axis"])
        divergence = torch.nn.functional.kl_div
        return divergence(output, target, reduction="sum", log_target=values["log_target"])

    return Built(total, lambda output, target: float(target.shape[0]))


def _binary(values: Values) -> Built:
    import torch

    weight = None if values["pos_weight"] is None else torch.tensor(values["pos_weight"])

    def total(output: Any, target: Any) -> Any:
        output, target = _numbers(output, target)
        own = None if weight is None else weight.to(output.device, output.dtype)
        function = torch.nn.functional.binary_cross_entropy_with_logits
        return function(output, target, pos_weight=own, reduction="sum")

    return Built(total, lambda output, target: float(target.numel()))


def _own(values: Values) -> Built:
    def total(output: Any, target: Any) -> Any:
        if output.ndim:
            raise JobError(
                "the loss 'output' is one that the model computes itself, a single number; this "
                f"output has shape {list(output.shape)}: say `output`, or another loss"
            )
        output = _wide(output)
        return output if values["reduction"] == "sum" else output * float(target.shape[0])

    return Built(total, lambda output, target: float(target.shape[0]))


_CLASSES = {
    "ignore_index": _IGNORE,
    "weight": _WEIGHT,
    "class_axis": _AXIS,
    "reduction": _REDUCTION,
}

LOSSES = Registry(
    "loss",
    {
        "cross_entropy": _Loss(
            "Scores of classes against the right class, or against shares of every class.",
            {
                **_CLASSES,
                "label_smoothing": Param(
                    "number", 0.0, "share of the other classes", low=0.0, high=1.0
                ),
            },
            build=_by_classes("cross_entropy"),
            targets="either",
        ),
        "nll": _Loss(
            "Logarithms of the probabilities of classes against the right class.",
            _CLASSES,
            build=_by_classes("nll_loss"),
            targets="classes",
        ),
        "bce_with_logits": _Loss(
            "Scores of yes against 0 or 1 (or a share between them).",
            {
                "pos_weight": Param("numbers", None, "of yes, one for each output", low=0.0),
                "reduction": _REDUCTION,
            },
            build=_binary,
            targets="either",
        ),
        "bce": _Loss(
            "Probabilities of yes against 0 or 1; bce_with_logits is safer.",
            {"reduction": _REDUCTION},
            build=_elementwise("binary_cross_entropy"),
            targets="either",
        ),
        "mse": _Loss(
            "Squared differences.",
            {"reduction": _REDUCTION},
            build=_elementwise("mse_loss"),
            targets="either",
        ),
        "l1": _Loss(
            "Absolute differences.",
            {"reduction": _REDUCTION},
            build=_elementwise("l1_loss"),
            targets="either",
        ),
        "smooth_l1": _Loss(
            "Absolute differences, squared where they are small.",
            {
                "beta": Param("number", 1.0, "what is small", above=0.0),
                "reduction": _REDUCTION,
            },
            build=_elementwise("smooth_l1_loss", beta=_param("beta")),
            targets="either",
        ),
        "huber": _Loss(
            "Squared differences, linear where they are large.",
            {
                "delta": Param("number", 1.0, "what is large", above=0.0),
                "reduction": _REDUCTION,
            },
            build=_elementwise("huber_loss", delta=_param("delta")),
            targets="either",
        ),
        "poisson_nll": _Loss(
            "Expected numbers of events against how many there were.",
            {
                "log_input": Param("flag", True, "the output is the logarithm of the number"),
                "full": Param("flag", False, "add the Stirling term"),
                "reduction": _REDUCTION,
            },
            build=_elementwise(
                "poisson_nll_loss", log_input=_param("log_input"), full=_param("full")
            ),
            targets="either",
        ),
        "soft_margin": _Loss(
            "Scores against -1 or 1.",
            {"reduction": _REDUCTION},
            build=_elementwise("soft_margin_loss"),
            targets="either",
        ),
        "kl_div": _Loss(
            "How far a distribution is from that of the target; the mean is over rows.",
            {
                "logits": Param("flag", False, "the output is scores, not log-probabilities"),
                "log_target": Param("flag", False, "the target is log-probabilities"),
                "class_axis": Param("integer", -1, "over which probabilities add up to 1"),
                "reduction": _REDUCTION,
            },
            build=_divergence,
        ),
        "output": _Loss(
            "What the model itself returns as its loss, of labels that are among its inputs. The "
            "target only says how many rows there are.",
            {"reduction": _REDUCTION},
            build=_own,
            targets="either",
        ),
    },
)


def named_loss(spec: LossSpec) -> Named:
    return Named(name=spec.name, params=spec.params)


def check_target(spec: LossSpec, target: FieldSpec) -> None:
    """Whether such targets can be compared with anything by this loss."""
    takes = LOSSES[spec.name].targets
    if takes == "classes" and target.dtype not in INTEGERS:
        raise JobError(
            f"the loss {spec.name!r} needs whole numbers as targets; {target.name!r} is "
            f"{target.dtype}"
        )
    if takes == "numbers" and target.dtype not in FLOATS:
        raise JobError(
            f"the loss {spec.name!r} needs fractions as targets; {target.name!r} is {target.dtype} "
            "(there is a transform: cast)"
        )
    if spec.name == "cross_entropy" and target.dtype == "bool":
        raise JobError(f"the loss 'cross_entropy' cannot compare with {target.name!r}, a bool")
