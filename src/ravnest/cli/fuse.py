"""`ravnest fuse`: the trained stages of one cluster back into one state_dict."""

from pathlib import Path

import click


@click.command("fuse")
@click.option(
    "--cluster",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="ID",
    help="Cluster whose stages are put together.",
)
@click.option(
    "--node-data",
    type=click.Path(file_okay=False, path_type=Path),
    default="node_data",
    show_default=True,
    metavar="DIR",
    help="Folder of the plan; an earlier one is in node_data/archive.",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default="trained",
    show_default=True,
    metavar="DIR",
    help="Folder for the result.",
)
def command(cluster: int, node_data: Path, output: Path) -> None:
    """Put the trained stages of a cluster together again.

    Reads what every provider of the cluster saved and writes one state_dict that loads into the
    original model, trained/trained_state_dict.pt. All stages have to be on this machine.
    """
    from ravnest.cli.loading import load_torch

    load_torch()
    from ravnest.planning.fusion import fuse_cluster

    click.echo(f"wrote {fuse_cluster(node_data, cluster, output)}")
