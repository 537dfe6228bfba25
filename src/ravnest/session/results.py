"""Trained weights of a job as files, under the names that `ravnest fuse` gives them."""

from pathlib import Path

from ravnest.planning.fusion import SAFETENSORS, STATE_DICT
from ravnest.session.job import Job


def write_result(job: Job, folder: Path) -> tuple[Path, Path]:
    """For `torch.load`, and as safetensors. What comes over the network is the latter."""
    import torch
    from safetensors.torch import load_file

    fetched = job.fetch(folder / SAFETENSORS)
    path = folder / STATE_DICT
    fresh = path.with_name(f"{path.name}.new")
    torch.save(load_file(fetched), fresh)
    fresh.replace(path)
    return path, fetched
