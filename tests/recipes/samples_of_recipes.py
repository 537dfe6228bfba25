"""Recipes and datasets in a few words, for tests."""

from ravnest.api.jobs import (
    DataSpec,
    FieldSpec,
    InputSpec,
    LossSpec,
    Named,
    Recipe,
    ShardSpec,
)
from ravnest.api.limits import FileRef


def named(name, **params):
    return Named(name=name, params=params)


def column(name, dtype="float32", *shape):
    return FieldSpec(name=name, dtype=dtype, shape=shape)


def dataset(*columns, rows=10):
    files = tuple(
        FileRef(path=f"data/train/{each.name}-00000.safetensors", sha256="0" * 64, size=1)
        for each in columns
    )
    return DataSpec(fields=columns, shards=(ShardSpec(rows=rows, files=files),))


def loss(name="cross_entropy", target="y", *, output=(), times=1.0, transforms=(), **params):
    return LossSpec(
        name=name,
        params=params,
        output=output,
        weight=times,
        target=InputSpec(field=target, transforms=transforms),
    )


def recipe(*losses, inputs=("x",), optimizer=None, **more):
    return Recipe(
        inputs=tuple(InputSpec(field=name) for name in inputs),
        losses=losses or (loss(),),
        optimizer=optimizer or named("sgd", lr=0.1),
        **more,
    )
