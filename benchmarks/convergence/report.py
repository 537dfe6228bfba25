"""Tables for RESULTS.md, and the picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from contestants import ALONE, CLUSTERS, LARGE, LARGE_CLUSTERS, MUON, PLAIN, ROWS, Contestant, Run
from curves import LEVELS, Curve

Seeds = Sequence[Curve]
"""The same contestant at the same rate, once for each seed."""
_SMALL = [who for who in PLAIN if who.rows < LARGE] + CLUSTERS
_LARGE = [who for who in PLAIN if who.rows >= LARGE] + LARGE_CLUSTERS


def mean_reached(curves: Seeds, level: float) -> tuple[float, float] | None:
    """Steps and time to a loss, if every seed gets there."""
    found = [curve.reached(level) for curve in curves]
    there = [one for one in found if one is not None]
    if not found or len(there) < len(found):
        return None
    steps, times = zip(*there, strict=True)
    return sum(steps) / len(steps), sum(times) / len(times)


# ---- tables ----


def print_table(curves: Mapping[Contestant, Seeds], rates: Mapping[Contestant, float]) -> None:
    seeds = len(next(iter(curves.values())))
    print("steps of one cluster (how many times fewer than one machine / in how many times less")
    print(f"time), means of {seeds} seeds; with {LARGE} rows against one machine with as many\n")
    levels = " | ".join(f"to {level}" for level in LEVELS)
    print(f"| contestant | rate | {levels} | fewer, each seed | updates lacking, by stage |")
    print("|---|---|" + "---|" * (len(LEVELS) + 2))
    for group in (_SMALL, _LARGE, MUON):
        base = curves.get(group[0], ())
        for who in group:
            if who in curves:
                print(_row(who, rates[who], curves[who], base))


def _row(who: Contestant, rate: float, ours: Seeds, base: Seeds) -> str:
    cells = [who.name, f"{rate:g}"]
    for level in LEVELS:
        us, them = mean_reached(ours, level), mean_reached(base, level)
        if us is None:
            cells.append("not reached")
        elif them is None:  # or the base is left out
            cells.append(f"{us[0]:.0f}")
        else:
            cells.append(f"{us[0]:.0f} ({them[0] / us[0]:.2f} / {them[1] / us[1]:.2f})")
    each = [mean_reached([one], LEVELS[-1]) for one in ours]
    theirs = [mean_reached([one], LEVELS[-1]) for one in base]
    pairs = zip(each, theirs or [None] * len(each), strict=True)
    cells.append(", ".join("-" if not (u and t) else f"{t[0] / u[0]:.2f}" for u, t in pairs))
    cells.append(" ".join(f"{behind:.2f}" for behind in ours[0].staleness))
    return f"| {' | '.join(cells)} |"


def print_tried(tried: Mapping[Run, Curve]) -> None:
    print("\nall rates that were tried: steps to each loss, and the loss at the end")
    for run, curve in tried.items():
        found = [curve.reached(level) for level in LEVELS]
        steps = " ".join(f"{'-':>5}" if one is None else f"{one[0]:5.0f}" for one in found)
        end = f"{curve.losses[-1]:.3f} after {curve.steps[-1]}"
        rounds = f"{curve.rounds:.0f} rounds, busy {curve.busy:.2f}"
        print(f"{run.who.name:28} {run.rate:<6g} {steps}   {end}, {rounds}")


# ---- the picture ----

_COLOURS = {1: "tab:blue", 2: "tab:orange", 4: "tab:green"}
_STYLES = {0: ":", 2: "--", 4: "-"}
_MARKERS = {0: "o", 2: "s", 4: "D"}


def draw(curves: Mapping[Contestant, Seeds], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (by_steps, by_time, by_rows) = pyplot.subplots(1, 3, figsize=(16, 6))
    for who in (who for who in _SMALL if curves.get(who)):
        many = who.rows_per_step // ROWS
        look = {"color": _COLOURS[many], "linestyle": _STYLES[who.stages], "linewidth": 1.6}
        curve = curves[who][0]
        by_steps.plot(curve.steps, curve.smooth, label=who.name, **look)
        if who.stages or who is ALONE:
            by_time.plot(curve.times, curve.smooth, **look)
    by_steps.set(xlabel=f"steps of one cluster (batches of {ROWS})", ylabel="held-out loss")
    by_steps.set_title("Loss over steps (first seed)")
    by_time.set(xlabel="virtual seconds (batches of one machine)", ylabel="held-out loss")
    by_time.set_title("Loss over time (first seed)")
    for axes, first in ((by_steps, 20), (by_time, 5)):
        axes.set(xscale="log", ylim=(LEVELS[-1] - 0.02, 3.0))
        axes.set_xlim(left=first)
    lines, names = by_steps.get_legend_handles_labels()
    figure.legend(lines, names, loc="lower center", ncols=len(names), fontsize=9)
    _draw_by_rows(by_rows, curves)
    for axes in (by_steps, by_time, by_rows):
        axes.grid(alpha=0.3, which="both")
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=100)


def _draw_by_rows(axes: Any, curves: Mapping[Contestant, Seeds]) -> None:
    """What a sample is worth: steps to the lowest loss, by the samples of a step."""
    level = LEVELS[-1]
    groups = {
        "one machine": (PLAIN, "tab:blue", 0),
        "clusters of 2": ([who for who in CLUSTERS if who.stages == 2], "tab:orange", 2),
        "clusters of 4": ([who for who in CLUSTERS if who.stages == 4], "tab:green", 4),
        f"4 clusters of 2, batches of {LARGE}": (LARGE_CLUSTERS[:1], "tab:red", 2),
    }
    for label, (group, colour, stages) in groups.items():
        found = [(who.rows_per_step, mean_reached(curves.get(who, ()), level)) for who in group]
        points = [(rows, reached[0]) for rows, reached in found if reached is not None]
        if points:
            # Hollow, for clusters lie where one machine does.
            style = {"color": colour, "marker": _MARKERS[stages], "markerfacecolor": "none"}
            axes.plot(*zip(*points, strict=True), markersize=8, label=label, **style)
    alone = mean_reached(curves.get(ALONE, ()), level)
    rows = [who.rows for who in PLAIN if curves.get(who)]
    if alone is not None:
        linear = [alone[0] * rows[0] / many for many in rows]
        axes.plot(rows, linear, "--", color="grey", label="linear")
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(rows, [str(many) for many in rows])
    ticks = (50, 100, 200, 500, 1000, 2000)
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set(xlabel="rows in a step, of all clusters together")
    axes.set(ylabel=f"steps to a held-out loss of {level}")
    axes.set_title("Steps over batch size (mean of seeds)")
    axes.legend(fontsize=9)
