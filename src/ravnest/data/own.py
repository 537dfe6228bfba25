"""For scripts that are run as jobs: the part of the data that their provider was given."""

from pathlib import Path
from typing import Literal

import msgspec

from ravnest.api.limits import NOT_UNDERSTOOD
from ravnest.api.work import WorkOrder
from ravnest.data.reading import PartReader
from ravnest.errors import DataError


def own_part(
    split: Literal["train", "validation"] = "train", folder: Path | str = "."
) -> PartReader | None:
    """The rows that this provider's cluster has, of the fields that it got; None if it got none."""
    try:
        content = (Path(folder) / "order.json").read_bytes()
        order = msgspec.json.decode(content, type=WorkOrder)
    except (OSError, *NOT_UNDERSTOOD) as error:
        raise DataError(f"there is no order to take the data from: {error}") from error
    part = order.assignment.train if split == "train" else order.assignment.validation
    return None if part is None else PartReader(part, folder)
