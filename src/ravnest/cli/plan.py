"""`ravnest plan`: what would happen if this script called `clusterize` on that pool."""

import contextlib
import sys
from pathlib import Path

import click

from ravnest.cli.messages import Messages
from ravnest.cli.tracebacks import shown_from
from ravnest.errors import RavnestError


class PlanCommand(click.Command):
    """Its options may stand on either side of SCRIPT; what is after `--` belongs to the script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            hint = (
                f"Options of the script come after --: ravnest plan SCRIPT -- {error.option_name}"
            )
            raise click.UsageError(f"{error.format_message()} {hint}", ctx) from None


@click.command("plan", cls=PlanCommand, options_metavar="[OPTIONS]")
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS...]")
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
@click.option(
    "-v", "--verbose", is_flag=True, help="Show the steps, also if stderr is no terminal."
)
@click.pass_context
def command(
    ctx: click.Context,
    script: Path,
    args: tuple[str, ...],
    pool: Path | None,
    min_cluster_size: int | None,
    max_clusters: int | None,
    json: bool,
    verbose: bool,
) -> None:
    """Show how a model would be spread over a pool, without training it.

    Runs SCRIPT with ARGS up to its call of `clusterize` and prints the clusters, the memory every
    provider would need, the bytes on every link and the predicted speed. Writes nothing and
    contacts nobody.
    """
    import msgspec

    from ravnest.cli.loading import load_torch
    from ravnest.planning.dryrun import plan_script
    from ravnest.planning.report import render_report

    load_torch()
    messages = ctx.ensure_object(Messages)
    messages.hold()
    if verbose or sys.stderr.isatty():
        messages.show_steps()
    try:
        # Whatever the script prints must not end up inside the JSON.
        with contextlib.redirect_stdout(sys.stderr if json else sys.stdout):
            plan = plan_script(
                script,
                args,
                pool=pool,
                min_cluster_size=min_cluster_size,
                max_clusters=max_clusters,
            )
    except Exception as error:
        if isinstance(error, RavnestError) or ctx.find_root().params["debug"]:
            raise
        click.echo(shown_from([script], error), nl=False, err=True)
        ctx.exit(1)
    messages.shown_elsewhere(plan.warnings)
    if json:
        click.echo(msgspec.json.format(msgspec.json.encode(plan), indent=2))
    else:
        click.echo(render_report(plan))
