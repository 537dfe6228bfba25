"""What a job must be like to be taken at all, as far as it can be judged without its model."""

import math

from ravnest.api.jobs import DataSpec, JobSpec
from ravnest.errors import JobError
from ravnest.recipes.checking import check_columns, check_recipe
from ravnest.recipes.kinds import SIZES

_HEADER_BYTES = 1 << 16
"""What a file with one tensor may have besides its numbers."""
COMPRESSIONS = ("auto", "fp16", "bf16", "int8", "int4s", "int4", "zstd")
"""The codecs that can be used everywhere, by name: theirs is a room with torch in it."""


def check_job(spec: JobSpec) -> None:
    """`JobError` that names what is wrong. Says nothing about files that are not here yet."""
    _check_paths(spec)
    packing = spec.training.compression
    if isinstance(packing, str) and packing not in COMPRESSIONS:
        raise JobError(
            f"training.compression is {packing!r}; it can be true, false, {', '.join(COMPRESSIONS)}"
        )
    for name, data in (("train", spec.train), ("validation", spec.validation)):
        if data is not None:
            check_columns(data)
            _check_sizes(name, data)
    if spec.recipe is not None:
        check_recipe(spec.recipe, spec.train)
        if spec.validation is not None:
            check_recipe(spec.recipe, spec.validation)


def _check_paths(spec: JobSpec) -> None:
    """Every file has a place of its own, and no other than its kind has."""
    for file in spec.model:
        if "/" in file.path:
            raise JobError(f"model: {file.path!r} is in a folder; files of a model are not")
    if len({file.path for file in spec.model}) != len(spec.model):
        raise JobError("model: two files have the same path")
    for name, data in (("train", spec.train), ("validation", spec.validation)):
        seen: set[str] = set()
        for shard in data.shards if data is not None else ():
            for file in shard.files:
                if not file.path.startswith(f"data/{name}/"):
                    raise JobError(f"{name}: {file.path!r} must lie under data/{name}/")
                if file.path in seen:
                    raise JobError(f"{name}: two files have the path {file.path!r}")
                seen.add(file.path)
    if spec.script is not None and spec.script.file.path != "script.py":
        raise JobError(f"script: the file is called {spec.script.file.path!r}, not script.py")


def _check_sizes(name: str, data: DataSpec) -> None:
    """Files of a dataset are as large as their rows."""
    for number, shard in enumerate(data.shards):
        for column, file in zip(data.fields, shard.files, strict=True):
            least = shard.rows * SIZES[column.dtype] * math.prod(column.shape)
            if not least <= file.size <= least + _HEADER_BYTES:
                raise JobError(
                    f"{name}: shard {number}, field {column.name!r}: {shard.rows} rows take "
                    f"{least} bytes, and the file has {file.size}"
                )
