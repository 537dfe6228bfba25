"""What the numbers of a dataset stand for, in the file of the weights that were trained on it.

A class is the number of its place in `classes`, a token that of its place in `vocabulary`. Both are
lists in JSON under these names in the metadata of the safetensors file, so that they go wherever
the weights go. Knows no server, and needs no torch.
"""

from pathlib import Path

import msgspec
from safetensors import safe_open

from ravnest.api.jobs import Legend
from ravnest.errors import JobError


def as_metadata(legend: Legend | None) -> dict[str, str]:
    """What is not known is left out."""
    if legend is None:
        return {}
    known = {"classes": legend.classes, "vocabulary": legend.vocabulary}
    return {name: msgspec.json.encode(names).decode() for name, names in known.items() if names}


def read_legend(weights: Path | str) -> Legend:
    """That of a safetensors file; empty if it has none."""
    with safe_open(str(weights), "numpy") as file:
        metadata = file.metadata() or {}
    found = {name: metadata[name] for name in ("classes", "vocabulary") if name in metadata}
    try:
        values = {name: msgspec.json.decode(text) for name, text in found.items()}
        return msgspec.convert(values, Legend)
    except msgspec.MsgspecError as error:
        raise JobError(f"{weights} does not say properly what its numbers mean: {error}") from None
