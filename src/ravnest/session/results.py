"""Trained weights of a job as files, under the names that `ravnest fuse` gives them."""

import filecmp
import itertools
import logging
from pathlib import Path

from ravnest.planning.fusion import SAFETENSORS, STATE_DICT
from ravnest.session.job import Job

logger = logging.getLogger("ravnest.session")


def write_result(job: Job, folder: Path) -> tuple[Path, Path]:
    """For `torch.load`, and as safetensors. What comes over the network is the latter.

    Other weights that are there already, of whichever job, are moved aside, never overwritten.
    """
    import torch
    from safetensors.torch import load_file

    path, fetched = folder / STATE_DICT, folder / SAFETENSORS
    fresh, incoming = path.with_name(f"{path.name}.new"), fetched.with_name(f"{fetched.name}.new")
    try:
        job.fetch(incoming)
        torch.save(load_file(incoming), fresh)
        is_same = fetched.is_file() and filecmp.cmp(fetched, incoming, shallow=False)
        if not is_same and (path.exists() or fetched.exists()):
            _move_aside(path, fetched)
        incoming.replace(fetched)
        fresh.replace(path)
    finally:
        incoming.unlink(missing_ok=True)
        fresh.unlink(missing_ok=True)
    return path, fetched


def _move_aside(*paths: Path) -> None:
    """Under the next number that is free for all of them: they belong together."""
    for number in itertools.count(1):
        aside = [path.with_name(f"{path.stem}.{number}{path.suffix}") for path in paths]
        if not any(path.exists() for path in aside):
            break
    for path, other in zip(paths, aside, strict=True):
        if path.exists():
            path.replace(other)
    logger.warning("%s was there already, and is now %s", paths[0], aside[0].name)
