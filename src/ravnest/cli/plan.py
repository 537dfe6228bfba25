"""`ravnest plan`: what would happen if this script called `clusterize` on that pool."""

import contextlib
import sys
from pathlib import Path

import click

# Options stop at SCRIPT, as with `python SCRIPT`: what follows belongs to the script, whatever
# it looks like.
SETTINGS = {"allow_interspersed_args": False}


@click.command("plan", context_settings=SETTINGS)
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--pool",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    show_default="node_data/node_configs.json",
    help="Description of the providers.",
)
@click.option(
    "--min-cluster-size",
    type=click.IntRange(min=1),
    show_default="what the script asks for",
    metavar="N",
    help="Fewest providers in a cluster; 1 lets a provider hold the whole model.",
)
@click.option(
    "--max-clusters",
    type=click.IntRange(min=1),
    show_default="what the script asks for",
    metavar="N",
    help="Most clusters to form.",
)
@click.option("--json", is_flag=True, help="Print the plan as JSON.")
def command(
    script: Path,
    args: tuple[str, ...],
    pool: Path | None,
    min_cluster_size: int | None,
    max_clusters: int | None,
    json: bool,
) -> None:
    """Show how a model would be spread over a pool, without training it.

    Runs SCRIPT with ARGS up to its call of `clusterize` and prints the clusters, the memory every
    provider would need, the bytes on every link and the predicted speed. Writes nothing and
    contacts nobody. Options come before SCRIPT; everything after it is passed to the script.
    """
    import msgspec

    from ravnest.planning.dryrun import plan_script
    from ravnest.planning.report import render_report

    # Whatever the script prints must not end up inside the JSON.
    with contextlib.redirect_stdout(sys.stderr if json else sys.stdout):
        plan = plan_script(
            script,
            args,
            pool=pool,
            min_cluster_size=min_cluster_size,
            max_clusters=max_clusters,
        )
    if json:
        click.echo(msgspec.json.format(msgspec.json.encode(plan), indent=2))
    else:
        click.echo(render_report(plan))
