"""Trained weights of a job as files, under the names that `ravnest fuse` gives them.

What the numbers of its data stand for, if the server was told, is in `classes.json` or
`vocabulary.json` beside them.
"""

import filecmp
import itertools
import logging
from pathlib import Path

from ravnest.data.legend import read_legend
from ravnest.planning.fusion import SAFETENSORS, STATE_DICT
from ravnest.session.job import Job

logger = logging.getLogger("ravnest.session")


def write_result(job: Job, folder: Path) -> tuple[Path, ...]:
    """For `torch.load`, as safetensors, and lists of names. What comes over the network is the
    safetensors file, and everything else is made of it.

    Other weights that are there already, of whichever job, are moved aside, never overwritten.
    """
    import msgspec
    import torch
    from safetensors.torch import load_file

    path, fetched = folder / STATE_DICT, folder / SAFETENSORS
    fresh, incoming = path.with_name(f"{path.name}.new"), fetched.with_name(f"{fetched.name}.new")
    lists = {name: folder / f"{name}.json" for name in ("classes", "vocabulary")}
    try:
        job.fetch(incoming)
        torch.save(load_file(incoming), fresh)
        is_same = fetched.is_file() and filecmp.cmp(fetched, incoming, shallow=False)
        if not is_same:
            _move_aside(path, fetched, *lists.values())
        incoming.replace(fetched)
        fresh.replace(path)
        legend = read_legend(fetched)
    finally:
        incoming.unlink(missing_ok=True)
        fresh.unlink(missing_ok=True)
    written = [path, fetched]
    for name, place in lists.items():
        if names := getattr(legend, name):
            place.write_bytes(msgspec.json.format(msgspec.json.encode(names), indent=0) + b"\n")
            written.append(place)
    return tuple(written)


def _move_aside(*paths: Path) -> None:
    """Under the next number that is free for all of them: they belong together."""
    there = [path for path in paths if path.exists()]
    if not there:
        return
    for number in itertools.count(1):
        aside = [path.with_name(f"{path.stem}.{number}{path.suffix}") for path in paths]
        if not any(path.exists() for path in aside):
            break
    moved = [(path, other) for path, other in zip(paths, aside, strict=True) if path in there]
    for path, other in moved:
        path.replace(other)
    logger.warning("%s was there already, and is now %s", moved[0][0], moved[0][1].name)
