"""Deciding parts of the pages' scripts, called one by one in the browser."""

from typing import Any

import pytest
from web.browser import Visit, in_browser

NOTHING = "\u2013"
pytestmark = pytest.mark.needs("chromium")


def run(visit: Visit, module: str, expression: str) -> Any:
    """The value of an expression in which `m` is a module of the dashboard."""
    if visit.page.url == "about:blank":
        visit.open()
    return visit.page.evaluate(
        f"async () => {{ const m = await import('/static/js/{module}'); return {expression}; }}"
    )


@in_browser()
def test_events_are_read_from_any_pieces(visit: Visit) -> None:
    text = ": hello\\n\\nevent: a\\ndata: 1\\ndata: 2\\n\\ndata:x\\r\\n\\r\\nevent: lost\\n\\n"
    for size in (1, 2, 3, 7, 1000):
        found = run(
            visit,
            "api/sse.js",
            f"(() => {{ const seen = []; const feed = m.eventParser((e, d) => seen.push([e, d]));"
            f"const text = '{text}';"
            f"for (let i = 0; i < text.length; i += {size}) feed(text.slice(i, i + {size}));"
            "return seen; })()",
        )
        assert found == [["a", "1\n2"], ["message", "x"]]


@in_browser()
def test_numbers_have_units_and_no_false_precision(visit: Visit) -> None:
    def shown(call: str) -> str:
        text: str = run(visit, "format.js", f"m.{call}")
        return text.replace("\u202f", " ")

    assert shown("passed(2.999)") == "2.99"
    assert [shown(f"passed({far})") for far in (3, 0.29, 1.5)] == ["3", "0.29", "1.5"]
    assert shown("bytes(0)") == "0 B"
    assert shown("bytes(999_600)") == "1.0 MB"
    assert shown("bytes(14_600_000_000)") == "15 GB"
    assert shown("gflops(5900)") == "5.9 TFLOP/s"
    assert shown("duration(0.0123)") == "12.3 ms"
    assert shown("duration(5400)") == "1 h 30 min"
    assert shown("ago(100, 102)") == "just now"
    assert shown("ago(0, 7300)") == "2 h ago"
    assert shown("metric('accuracy', 0.9781)") == "97.8 %"
    assert shown("metric('loss', null)") == NOTHING
    assert shown("counted(1, 'machine')") == "1 machine"
    assert shown("digits(Infinity)") == NOTHING
    assert shown("digits(9_999_999)") == "9,999,999"
    assert shown("metric('loss', 1.7e308)") == "1.7e+308"
    assert shown("metric('loss', -1e20)") == "-1.0e+20"


@in_browser()
def test_waits_are_counted_from_the_first_span_on(visit: Visit) -> None:
    spans = "[['forward', 0, 0, 10, 12], ['backward', 0, 0, 15, 16]]"
    assert run(visit, "run/spans.js", f"m.waitShare({spans}, 0, 20)") == pytest.approx(0.7)
    assert run(visit, "run/spans.js", f"m.waitShare({spans}, 11, 16)") == pytest.approx(0.6)
    assert run(visit, "run/spans.js", f"m.spanAt({spans}, 15.5)")[0] == "backward"
    assert run(visit, "run/spans.js", f"m.spanAt({spans}, 13)") is None
    assert run(visit, "run/spans.js", f"m.gapAt({spans}, 13)") == {"begin": 12, "end": 15}


@in_browser()
def test_answers_that_overlap_become_one_timeline(visit: Visit) -> None:
    def answer(ended: float, *spans: tuple[int, int]) -> str:
        listed = [["forward", 0, 0, start, end] for start, end in spans]
        row = f"{{provider: 3, cluster: 0, stage: 1, spans: {listed}}}"
        return f"{{began: 0, ended: {ended}, rows: [{row}]}}"

    merged = run(
        visit,
        "run/spans.js",
        "(() => { const s = new m.Spans();"
        f"s.merge({answer(10, (1, 2), (3, 4))}); s.merge({answer(12, (3, 4), (5, 6))});"
        "const all = s.rows.get(3).spans.map((x) => x[3]);"
        f"s.merge({answer(70, (64, 65))});"
        "return [all, s.rows.get(3).spans.map((x) => x[3])]; })()",
    )
    assert merged == [[1, 3, 5], [64]]


@in_browser()
def test_smoothing_keeps_a_constant_and_gaps_as_they_are(visit: Visit) -> None:
    assert run(visit, "charts/data.js", "m.smoothed([2, 2, null, 2], 0.9)") == pytest.approx(
        [2, 2, None, 2]
    )
    first, second = run(visit, "charts/data.js", "m.smoothed([0, 1], 0.5)")
    assert (first, second) == pytest.approx((0, 2 / 3))


@in_browser()
def test_a_single_point_is_in_the_middle_of_a_short_axis(visit: Visit) -> None:
    def extent(places: list[float], low: float, high: float, axis: str) -> list[float]:
        call = f"m.extent({places}, {low}, {high}, '{axis}')"
        found: list[float] = run(visit, "charts/data.js", call)
        return found

    assert extent([1e9], 0, 2e9, "at") == [1e9 - 60, 1e9 + 60]
    assert extent([400], 0, 800, "step") == [300, 500]
    assert extent([1], 0, 2, "step") == [0, 6]
    assert extent([3], 0, 6, "epoch") == [2.5, 3.5]
    assert extent([10, 20, 30], 10, 30, "step") == [10, 30]
    assert extent([10, 20, 30], 12, 14, "step") == [12, 14], "as the reader has zoomed"
    assert run(visit, "charts/data.js", "m.extent([], null, null, 'step')") == [0, 1]


@in_browser()
def test_a_second_run_over_the_same_steps_replaces_what_was_there(visit: Visit) -> None:
    points = "[[10, 1, 100, 5], [20, 2, 110, 4], [10, 1, 200, 3]]"
    assert run(visit, "charts/data.js", f"m.onAxis({points}, 'step')") == [[10, 20], [3, 4]]
    assert run(visit, "charts/data.js", f"m.onAxis({points}, 'at')") == [[100, 110, 200], [5, 4, 3]]


@in_browser()
def test_points_of_a_lost_run_go_when_they_are_trained_anew(visit: Visit) -> None:
    numbers = run(
        visit,
        "charts/data.js",
        "(() => { const c = new m.Curves();"
        "c.replace({'a@0': [[10, 1, 10, 5], [20, 2, 11, 4], [30, 3, 12, 3]]});"
        "c.add([['a', 0, 20, 2, 20, 9]]);"
        "return c.points.get('a@0').map((p) => p[3]); })()",
    )
    assert numbers == [5, 9]


@in_browser()
def test_points_that_are_known_are_not_added_again(visit: Visit) -> None:
    numbers = run(
        visit,
        "charts/data.js",
        "(() => { const c = new m.Curves();"
        "c.replace({'train/loss@0': [[1, 0, 10, 5], [2, 0, 11, 4]]});"
        "c.add([['train/loss', 0, 2, 0, 11, 4], ['train/loss', 0, 3, 0, 12, 3]]);"
        "return c.points.get('train/loss@0').map((p) => p[0]); })()",
    )
    assert numbers == [1, 2, 3]


@in_browser()
def test_changes_in_order_give_what_a_new_overview_would(visit: Visit) -> None:
    same = run(
        visit,
        "store.js",
        "(() => { const server = {now: 5}; const s = new m.Store();"
        "s.replace({server, providers: [{id: 1}, {id: 2}], jobs: [{id: 'a'}],"
        "runs: [], events: []});"
        "const c = s.apply({server, providers: [{id: 2, name: 'x'}, {id: 3}], gone_providers: [1],"
        "jobs: [], gone_jobs: ['a'], runs: [{job: 'b'}], gone_runs: [], events: [], points: {}});"
        "return [[...s.providers.values()], [...s.jobs], [...s.runs.keys()],"
        "[...c.providers].sort()]; })()",
    )
    assert same == [[{"id": 2, "name": "x"}, {"id": 3}], [], ["b"], [1, 2, 3]]


@in_browser()
def test_pipelines_run_down_where_it_is_narrow(visit: Visit) -> None:
    run_view = (
        "{clusters: [{id: 0, stages: [{provider: 1}, {provider: 2}, {provider: 3}]},"
        "{id: 1, stages: [{provider: 4}]}], links: [],"
        "rings: [{id: 0, providers: [1, 4]}]}"
    )
    wide = run(
        visit,
        "run/layout.js",
        f"[m.layoutOf({run_view}, 1200)].map((l) => [l.down, l.edges.length])[0]",
    )
    assert wide == [False, 3]
    narrow = run(
        visit, "run/layout.js", f"[m.layoutOf({run_view}, 320)].map((l) => [l.down, l.width])[0]"
    )
    assert narrow[0] is True
    assert narrow[1] <= 320


@in_browser()
def test_lines_around_a_cluster_leave_the_names_of_clusters_alone(visit: Visit) -> None:
    """Of three clusters the first and the last are in one ring: the line goes around the second."""
    run_view = (
        "{clusters: [1, 2, 3].map((id) => ({id, stages: [{provider: id}]})), links: [],"
        "rings: [{id: 0, providers: [1, 2, 3]}]}"
    )
    name = {"wide": "[x, y - 12, x + 116, y + 36]", "narrow": "[x, 0, x + 140, y + 20]"}
    for size, width in (("wide", 1200), ("narrow", 200)):
        crossed = run(
            visit,
            "run/layout.js",
            f"(() => {{ const layout = m.layoutOf({run_view}, {width});"
            f"const names = layout.lanes.map(({{x, y}}) => {name[size]});"
            "const path = document.createElementNS('http://www.w3.org/2000/svg', 'path');"
            "const found = layout.edges.filter((edge) => { path.setAttribute('d', edge.forward);"
            "for (let at = 0; at <= path.getTotalLength(); at += 1) {"
            "const {x, y} = path.getPointAtLength(at);"
            "if (names.some(([a, b, c, d]) => x > a && x < c && y > b && y < d)) return true; }"
            "return false; });"
            "return [layout.down, layout.edges.length, found.map((edge) => edge.key)]; })()",
        )
        assert crossed == [size == "narrow", 3, []]


@in_browser()
def test_a_machine_that_is_paused_at_work_ends_that_first(visit: Visit) -> None:
    def doing(state: str, paused: str) -> Any:
        return run(visit, "machines/row.js", f"m.doing({{state: '{state}', paused: {paused}}})")

    assert doing("training", "true") == "training, then paused"
    assert doing("training", "false") == "training"
    assert doing("paused", "true") == "paused"


@in_browser()
def test_a_pause_is_not_slowness(visit: Visit) -> None:
    """Four steps in a second before and after it, of each of two clusters."""
    points = [[1, 0, 0.0, 1], [241, 0, 60.0, 1], [242, 0, 660.0, 1], [482, 1, 720.0, 1]]
    bundles = [[n, 0.1, n // 8 * 2.0, 0.5] for n in range(41)]
    series = {"train/loss@0": points, "train/loss@1": bundles, "eval/loss@0": points}
    filled = f"(() => {{ const c = new m.Curves(); c.replace({series}); return c; }})()"
    assert run(visit, "charts/data.js", f"{filled}.stepsPerSecond()") == 8
    assert run(visit, "charts/data.js", "new m.Curves().stepsPerSecond()") == 0
