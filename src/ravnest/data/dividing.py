"""Which rows of a dataset belong to which cluster, and which files a provider needs for them."""

from collections.abc import Collection

from ravnest.api.jobs import DataSpec, JobSpec, ShardSpec
from ravnest.api.work import DataPart, RowRange
from ravnest.errors import JobError
from ravnest.recipes.checking import field_named, input_fields, target_fields

_JUDGED_SHARDS = 64


def rows_of_cluster(rows: int, cluster: int, clusters: int) -> range:
    """Consecutive ones; shares differ by one row at most."""
    return range(cluster * rows // clusters, (cluster + 1) * rows // clusters)


def divide(data: DataSpec, cluster: int, clusters: int, fields: Collection[str]) -> DataPart:
    """What of a dataset a provider of this cluster gets, if it needs these fields."""
    for name in fields:
        field_named(data, name)
    if not fields:
        raise JobError("a part of a dataset needs at least one field")
    rows = rows_of_cluster(data.rows, cluster, clusters)
    if not rows:
        raise JobError(
            f"the dataset has {data.rows} rows for {clusters} clusters: cluster {cluster} would "
            "have none. Give more rows, or plan with a smaller max_clusters"
        )
    kept = [place for place, column in enumerate(data.fields) if column.name in fields]
    shards: list[ShardSpec] = []
    first = before = 0
    for shard in data.shards:
        if before < rows.stop and before + shard.rows > rows.start:
            if not shards:
                first = rows.start - before
            files = tuple(shard.files[place] for place in kept)
            shards.append(ShardSpec(rows=shard.rows, files=files))
        before += shard.rows
    columns = tuple(data.fields[place] for place in kept)
    return DataPart(
        data=DataSpec(fields=columns, shards=tuple(shards)),
        range=RowRange(first=first, rows=len(rows)),
    )


def held_out_part(spec: JobSpec) -> DataPart | None:
    """The validation rows by which the server judges a fusion: of many shards some, spread over all
    of them. None if there are none, or no recipe that says what to make of them."""
    data, recipe = spec.validation, spec.recipe
    if data is None or recipe is None:
        return None
    step = -(-len(data.shards) // _JUDGED_SHARDS)
    some = DataSpec(fields=data.fields, shards=data.shards[::step])
    return divide(some, 0, 1, {*input_fields(recipe), *target_fields(recipe)})
