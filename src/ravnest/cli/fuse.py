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
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    show_default="current directory",
    metavar="DIR",
    help="Directory of the run: the one that holds node_data.",
)
def command(cluster: int, root: Path) -> None:
    """Put the trained stages of a cluster together again.

    Reads what every provider of the cluster saved and writes one state_dict that loads into the
    original model, trained/trained_state_dict.pt. All stages have to be on this machine.
    """
    from ravnest.planning.fusion import fuse_cluster

    click.echo(f"wrote {fuse_cluster(root / 'node_data', cluster, root / 'trained')}")
