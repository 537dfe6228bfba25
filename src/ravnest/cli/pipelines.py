"""A run at work, in a terminal: its clusters as pipelines, and what goes over the links."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ravnest.api.views import ClusterView, LinkView, RunView, StageView
from ravnest.planning.figures import count, passed, plain, size

ROUNDS_SHOWN = 3
_BAR = 10


def run_lines(run: RunView, name: str, now: float) -> Iterator[RenderableType]:
    yield Text(f"Job {run.job} {name}, run {run.run}", style="bold")
    names = {stage.provider: stage.name for one in run.clusters for stage in one.stages}
    links = {(link.source, link.target): link for link in run.links if link.kind == "pipeline"}
    for cluster in run.clusters:
        yield _heading(cluster)
        yield _pipeline(cluster, links)
    for ring in run.rings:
        members = ", ".join(names.get(one, f"provider {one}") for one in ring.providers)
        traffic = sum(
            link.forward_bytes_per_s + link.backward_bytes_per_s
            for link in run.links
            if link.kind == "ring" and {link.source, link.target} <= set(ring.providers)
        )
        moving = f", {size(traffic)}/s" if traffic else ""
        yield Text(f"  ring {ring.id} ({size(ring.bytes)}): {members}{moving}")
    for done in run.rounds[-ROUNDS_SHOWN:]:
        yield Text(
            f"  round {done.number} of ring {done.ring}: {done.outcome} by {done.members} in "
            f"{plain(done.ended - done.began)} s, {max(0, round(now - done.ended))} s ago",
            style="dim",
        )


def _heading(cluster: ClusterView) -> Text:
    text = Text(f"  cluster {cluster.id}: epoch {passed(cluster.epoch)}, step {cluster.step:,}")
    if cluster.loss is not None:
        text.append(f", loss {plain(cluster.loss, 4)}")
    if cluster.samples_per_second:
        text.append(f", {plain(cluster.samples_per_second)} samples/s")
    return text


def _pipeline(cluster: ClusterView, links: dict[tuple[int, int], LinkView]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for stage, after in zip(cluster.stages, (*cluster.stages[1:], None), strict=True):
        link = None if after is None else links.get((stage.provider, after.provider))
        table.add_row(
            "   ",
            stage.name,
            stage.role if len(cluster.stages) > 1 else "Root+Leaf",
            stage.state,
            f"{count(stage.parameters)} parameters",
            _memory(stage),
            _busy(stage.busy),
            f"{stage.in_flight} in flight",
            f"{plain(stage.staleness)} old" if stage.staleness else "",
            "" if link is None else _traffic(link),
        )
    return table


def _memory(stage: StageView) -> str:
    if not stage.memory_used_bytes:
        return f"{size(stage.memory_bytes)} planned"
    return f"{size(stage.memory_used_bytes)} of {size(stage.memory_bytes)} planned"


def _busy(part: float) -> Text:
    full = round(part * _BAR)
    text = Text("█" * full, style="green")
    text.append("░" * (_BAR - full), style="dim")
    text.append(f" {part:4.0%} busy", style="none")
    return text


def _traffic(link: LinkView) -> str:
    path = {"direct": "", "relay": " by relay", "unknown": ""}[link.path]
    measured = f", measured {plain(link.measured_mbps)} Mbit/s" if link.measured_mbps else ""
    forward, backward = size(link.forward_bytes_per_s), size(link.backward_bytes_per_s)
    return f"↓ {forward}/s  ↑ {backward}/s{path}{measured}"
