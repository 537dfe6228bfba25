"""`ravnest run`: all providers of a plan on this machine, one process each."""

import sys
from pathlib import Path

import click


@click.command("run", context_settings={"ignore_unknown_options": True})
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--nodes",
    type=click.IntRange(min=1),
    show_default="as many as the plan has",
    metavar="N",
    help="How many providers to start.",
)
@click.option(
    "--node-data",
    type=click.Path(file_okay=False, path_type=Path),
    default="node_data",
    show_default=True,
    metavar="DIR",
    help="Folder of the plan.",
)
def command(script: Path, arguments: tuple[str, ...], nodes: int | None, node_data: Path) -> int:
    """Start SCRIPT once for every provider of the plan, here on this machine.

    Each process finds its own name in RAVNEST_NODE and the folder of the plan in
    RAVNEST_NODE_DATA, so that Node() needs neither. Whatever stands after SCRIPT goes to the
    script.
    """
    from ravnest.launch import launch, planned_nodes
    from ravnest.rundir import RunDir

    names = planned_nodes(RunDir(node_data), nodes)
    width = max(len(name) for name in names)
    outcome = launch(
        [sys.executable, str(script), *arguments],
        names,
        environment={"RAVNEST_NODE_DATA": str(node_data.absolute())},
        show=lambda name, line: click.echo(f"{name.ljust(width)} | {line}"),
    )
    for line in outcome.lines():
        click.echo(line, err=True)
    return 1 if outcome.failures else 0
