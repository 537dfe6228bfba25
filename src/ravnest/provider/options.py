"""What a user may say about a provider, checked and completed from the plan."""

import copy
import difflib
import inspect
import sys
from collections.abc import Callable, Collection
from typing import Any, Literal, TypeVar

import torch
from torch.utils.data import DataLoader

from ravnest.errors import NodeError
from ravnest.provider.compute.passes import Precision
from ravnest.provider.document import NodeDocument

Choice = TypeVar("Choice")
Made = TypeVar("Made")
_PRECISIONS = {None: None, "bf16": torch.bfloat16, "fp16": torch.float16}
_FP16_SCALE = 65536.0
"""To begin with, as torch.amp.GradScaler does."""


def unknown_argument(of: str, name: str, function: Callable[..., Any]) -> str:
    """What to say of an argument that `function` does not have, with the one probably meant."""
    known = [known for known in inspect.signature(function).parameters if known != "self"]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"{of} does not know the argument {name!r}" + "".join(
        f"; did you mean {meant}=…?" for meant in close
    )


def positive(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise NodeError(f"{name} is {value!r}; expected a whole number from 1")
    return value


def not_negative(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise NodeError(f"{name} is {value!r}; expected a whole number from 0")
    return value


def is_number(value: Any) -> bool:
    """One that a float can hold."""
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) <= sys.float_info.max
    return isinstance(value, float)


def positive_number(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if not is_number(value) or not value > 0:
        raise NodeError(f"{name} is {value!r}; expected a number above 0")
    return float(value)


def seconds(name: str, value: Any) -> float:
    if not is_number(value) or not value > 0:
        raise NodeError(
            f"{name} is {value!r}; expected seconds, a number above 0 (math.inf for no limit)"
        )
    return float(value)


def made_with(kind: type[Made], name: str, value: Any) -> Made | None:
    """What the user has made with this class, if anything."""
    if value is not None and not isinstance(value, kind):
        raise NodeError(f"{name} is {value!r}; expected {kind.__name__}(…) or None")
    return value


def usable_device(device: torch.device | str) -> torch.device:
    try:
        # Of several, one without a number is the present one, now and for everybody.
        return torch.empty(0, device=torch.device(device)).device
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise NodeError(f"device is {str(device)!r}; it cannot be used here: {reason}") from error


def at_least_two(name: str, value: Any) -> int:
    if positive(name, value) == 1:
        raise NodeError(f"{name} is 1; a pipeline needs at least 2")
    return int(value)


def one_of(name: str, value: Choice, known: Collection[Choice]) -> Choice:
    if value not in known:
        choices = ", ".join(repr(choice) for choice in known)
        raise NodeError(f"{name} is {value!r}; expected one of {choices}")
    return value


def precision_named(name: str | None, loss_scale: float | None) -> Precision:
    if loss_scale is not None and not loss_scale > 0:
        raise NodeError(f"loss_scale is {loss_scale!r}; expected a number above 0")
    autocast = _PRECISIONS[one_of("precision", name, _PRECISIONS)]
    if loss_scale is None and name == "fp16":
        return Precision(autocast, _FP16_SCALE, adapts=True)
    return Precision(autocast, 1.0 if loss_scale is None else float(loss_scale))


def micro_batches_of(document: NodeDocument, wanted: int | Literal["auto"]) -> int:
    if wanted == "auto":
        return document.micro_batches
    return positive("micro_batches", wanted)


def most_in_flight(document: NodeDocument, wanted: int | None, micro_batches: int) -> int | None:
    """What the user says, else what memory has room for."""
    if wanted is not None:
        return positive("max_in_flight", wanted)
    fits = document.most_in_flight
    return None if fits is None else max(1, fits * micro_batches // document.micro_batches)


def own_loader(loader: Any) -> Any:
    """A second reading of the same data, whose generator is not drawn from twice."""
    if not isinstance(loader, DataLoader):
        return loader
    try:
        return copy.deepcopy(loader, {id(loader.dataset): loader.dataset})
    except (NotImplementedError, TypeError, RuntimeError) as error:
        raise NodeError(
            "where one provider is Root and Leaf, both read the data, and this loader cannot be "
            f"copied for the other one ({error}): give `labels` a DataLoader of its own"
        ) from error
