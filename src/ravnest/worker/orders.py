"""order.json, read and looked at before anything is begun."""

from pathlib import Path

import msgspec

from ravnest.api.limits import NOT_UNDERSTOOD
from ravnest.api.work import WorkOrder
from ravnest.errors import JobError
from ravnest.recipes.checking import input_fields, target_fields

ORDER = "order.json"
_MOST_BYTES = 256 << 20


def read_order(folder: Path) -> WorkOrder:
    """`JobError` that says what is wrong with it."""
    path = folder / ORDER
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise JobError(f"{ORDER} has more than {_MOST_BYTES} bytes")
        order = msgspec.json.decode(path.read_bytes(), type=WorkOrder)
    except OSError as error:
        raise JobError(f"{ORDER} cannot be read: {error.strerror}") from error
    except NOT_UNDERSTOOD as error:
        raise JobError(f"{ORDER} cannot be understood: {error}") from error
    _check(order)
    return order


def _check(order: WorkOrder) -> None:
    work = order.assignment
    if (work.recipe is None) == (work.script is None):
        raise JobError("an assignment has either a recipe or a script")
    if work.recipe is None:
        return
    needed: set[str] = set()
    if work.stage == 0:
        needed |= set(input_fields(work.recipe))
    if work.stage == work.stages - 1:
        needed |= set(target_fields(work.recipe))
    parts = {"train": work.train}
    if work.validates and work.validation is not None:
        parts["validation"] = work.validation
    for name, part in parts.items():
        there = set() if part is None else {column.name for column in part.data.fields}
        if missing := needed - there:
            raise JobError(
                f"stage {work.stage} of {work.stages} needs the field {min(missing)!r}, which its "
                f"part of the {name} data does not have"
            )
