"""`ravnest demo`: a small real run on this machine, from model to score."""

from pathlib import Path

import click


@click.command("demo")
@click.option(
    "--workdir",
    type=click.Path(file_okay=False, path_type=Path),
    show_default="a temporary one",
    metavar="DIR",
    help="Directory for the files of the run; what is named here is kept.",
)
def command(workdir: Path | None) -> int:
    """Plan, cut, train and score a small model on this machine.

    A pool of unequal providers, handwritten digits, a score at the end; no network and no GPU
    needed. The digits come with scikit-learn: pip install scikit-learn.
    """
    from ravnest.cli.loading import load_torch

    load_torch()
    from ravnest.demo import run_demo

    return run_demo(workdir)
