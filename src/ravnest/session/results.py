"""Trained weights of a job as files, under the names that `ravnest fuse` gives them.

What the numbers of its data stand for, if the server was told, is in `classes.json` or
`vocabulary.json` beside them.
"""

import filecmp
import itertools
import logging
import os
import tempfile
from pathlib import Path

from ravnest.data.legend import read_legend
from ravnest.planning.fusion import SAFETENSORS, STATE_DICT
from ravnest.session.job import Job

logger = logging.getLogger("ravnest.session")
_LISTS = ("classes", "vocabulary")


def write_result(job: Job, folder: Path) -> tuple[Path, ...]:
    """For `torch.load`, as safetensors, and lists of names. What comes over the network is the
    safetensors file, and everything else is made of it.

    Other weights that are there already, of whichever job, are moved aside, never overwritten;
    so is a link or a folder that has one of the names. Nothing is written through a link.
    """
    import msgspec
    import torch
    from safetensors.torch import load_file

    path, fetched = folder / STATE_DICT, folder / SAFETENSORS
    folder.mkdir(parents=True, exist_ok=True)
    # A folder of its own, by a name that nobody else has: what is written goes nowhere else.
    with tempfile.TemporaryDirectory(prefix=".fetched-", dir=folder) as name:
        fresh = Path(name)
        job.fetch(fresh / SAFETENSORS)
        torch.save(load_file(fresh / SAFETENSORS), fresh / STATE_DICT)
        legend = read_legend(fresh / SAFETENSORS)
        written, lists = [path, fetched], [folder / f"{kind}.json" for kind in _LISTS]
        for kind, place in zip(_LISTS, lists, strict=True):
            if names := getattr(legend, kind):
                text = msgspec.json.format(msgspec.json.encode(names), indent=0) + b"\n"
                (fresh / place.name).write_bytes(text)
                written.append(place)
        if not _is_file(fetched) or not filecmp.cmp(fetched, fresh / SAFETENSORS, shallow=False):
            _move_aside(path, fetched, *lists)
        else:
            _move_aside(*(place for place in (path, *lists) if not _is_file(place)))
        for place in written:
            (fresh / place.name).replace(place)
    return tuple(written)


def _is_file(path: Path) -> bool:
    """And not a link to one."""
    return path.is_file() and not path.is_symlink()


def _move_aside(*paths: Path) -> None:
    """Under the next number that is free for all of them: they belong together."""
    there = [path for path in paths if os.path.lexists(path)]
    if not there:
        return
    for number in itertools.count(1):
        aside = [path.with_name(f"{path.stem}.{number}{path.suffix}") for path in paths]
        if not any(os.path.lexists(path) for path in aside):
            break
    moved = [(path, other) for path, other in zip(paths, aside, strict=True) if path in there]
    for path, other in moved:
        path.replace(other)
    logger.warning("%s was there already, and is now %s", moved[0][0], moved[0][1].name)
