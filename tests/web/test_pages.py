"""What people see: pages render, follow what happens, and work on small and dark screens."""

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from playwright.sync_api import Page, Route, expect
from web.browser import BrowserThread, Visit, in_browser
from web.fake_server import token
from web.simulation import JOB, Simulation

pytestmark = pytest.mark.needs("chromium")
JOB_PAGE = f"#/jobs/{JOB}"
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}


def overflow(page: Page) -> int:
    # Not innerWidth: a phone zooms out until everything fits, and would say that it does.
    width: int = page.evaluate("document.documentElement.scrollWidth")
    assert page.viewport_size is not None
    return width - page.viewport_size["width"]


def after_a_while() -> Simulation:
    simulation = Simulation()
    for _ in range(20):
        simulation.advance(1.0)
    return simulation


@in_browser()
def test_the_overview_shows_the_pool_its_jobs_machines_and_events(visit: Visit) -> None:
    page = visit.open()
    expect(page.locator(".figures")).to_contain_text("6 of 7")
    expect(page.locator(".machines tbody tr")).to_have_count(7)
    row = page.locator('tr[data-provider="2"]')
    for text in (
        "lab-gpu-1",
        "training",
        "Tesla T4",
        "15\u202fGB",
        "4.1\u202fTFLOP/s",
        "880 / 910 Mbit/s",
    ):
        expect(row).to_contain_text(text)
    expect(row).to_contain_text("cluster 0 · stage 0")
    waiting = page.locator('[data-job="job-gpt"]')
    expect(waiting).to_contain_text("12.3 GB more memory would do")
    expect(page.locator(".events")).to_contain_text("Run 1 begins")
    assert page.title() == "Overview · Ravnest"


@in_browser()
def test_a_server_without_a_sandbox_says_so(visit: Visit) -> None:
    page = visit.open()
    said = page.locator(".footer .no-sandbox")
    expect(page.locator(".footer")).to_contain_text("ravnest at home")
    expect(said).to_be_hidden()
    reason = "bubblewrap (bwrap) is not installed <b>"
    visit.site.change(lambda simulation: setattr(simulation, "no_sandbox", reason))
    expect(said).to_have_text(f"this server looks at models without a sandbox: {reason}")
    expect(said).to_be_visible()


@in_browser()
def test_machines_change_in_place_while_one_looks(visit: Visit) -> None:
    page = visit.open()
    row = page.locator('tr[data-provider="6"]')
    expect(row).to_contain_text("idle")
    page.evaluate("window.before = [...document.querySelectorAll('.machines tbody tr')]")
    visit.site.change(lambda simulation: simulation.lose(6))
    expect(row).to_contain_text("away")
    expect(page.locator(".figures")).to_contain_text("5 of 7")
    expect(page.locator(".events")).to_contain_text("grace-desktop has not been heard of")
    kept = "before.every((row) => row.isConnected) && before.length === 7"
    assert page.evaluate(kept), "rows were built anew instead of being changed"


@in_browser()
def test_machines_can_be_filtered_and_sorted(visit: Visit) -> None:
    page = visit.open()
    names = page.locator(".machine-name")
    page.get_by_label("Filter machines").fill("tesla")
    expect(names).to_have_text(["lab-gpu-1", "lab-gpu-2"])
    page.get_by_label("Filter machines").fill("")
    page.get_by_role("button", name="Compute").click()
    expect(names.first).to_have_text("workshop-pc")
    head = page.get_by_role("columnheader", name="Compute")
    expect(head).to_have_attribute("aria-sort", "descending")
    page.get_by_role("button", name="away").click()
    expect(names).to_have_text(["attic-nas"])


@in_browser(after_a_while)
def test_a_job_page_draws_pipelines_links_rings_and_curves(visit: Visit) -> None:
    page = visit.open(JOB_PAGE)
    expect(page.locator("h1")).to_have_text("cifar10-resnet18")
    expect(page.locator("[data-stage]")).to_have_count(5)
    expect(page.locator('[data-stage="2"]')).to_contain_text("Root · stage 0 · 2.8\u202fM par.")
    expect(page.locator('[data-link="4-0"]').first).to_contain_text("relay")
    expect(page.locator('[data-link="2-3"] .flow').first).not_to_have_attribute("data-pace", "0")
    expect(page.locator(".flow.ring")).to_have_count(3)
    expect(page.locator(".chart")).to_have_count(2)
    expect(page.locator(".plan-verdict")).to_contain_text("of what the plan promises")
    expect(page.locator("[data-ring]")).to_have_count(3)
    expect(page.locator('[data-ring="0"]')).to_contain_text("conv1.weight")


def with_plan(visit: Visit, **different: Any) -> Page:
    """The page of a job whose plan is another one."""
    detail = visit.site.hub.simulation.detail(JOB)
    assert detail.plan is not None
    changed = msgspec.to_builtins(replace(detail, plan=replace(detail.plan, **different)))
    visit.page.route(f"**/api/v1/jobs/{JOB}", lambda route: route.fulfill(json=changed))
    return visit.open(JOB_PAGE)


@in_browser(after_a_while)
def test_a_job_that_has_ended_says_how_fast_it_was(visit: Visit) -> None:
    """Two clusters, a step in 0.265 s each, of 64 rows."""
    page = visit.open(JOB_PAGE)
    speed = page.locator(".job-head .figure").nth(2)
    expect(speed).not_to_contain_text("on average")
    expect(page.locator(".topology")).to_contain_text("B/s")
    visit.site.change(lambda simulation: simulation.act_on_job(JOB, "stop"))
    expect(speed).to_have_text("Speed483 samples/son average")
    expect(page.locator(".plan-verdict")).to_have_text(
        "On average 102\u202f% of what the plan promised, 3.43 times one machine."
    )
    expect(page.locator(".plan-speeds")).to_contain_text("On average483 samples/s")


@in_browser(after_a_while)
def test_a_run_that_is_over_is_drawn_without_its_speeds(visit: Visit) -> None:
    page = visit.open(JOB_PAGE)
    visit.site.change(lambda simulation: simulation.act_on_job(JOB, "stop"))
    expect(page.get_by_role("heading", name="Pipelines of the last run")).to_be_visible()
    picture = page.locator(".topology")
    expect(picture).to_contain_text("relay")
    expect(picture).not_to_contain_text("B/s")
    expect(picture).not_to_contain_text("samples/s")
    values = page.locator('[data-stage="2"] .stage-value')
    expect(values.last).to_have_text("\u2013")
    visit.site.change(lambda simulation: simulation.act_on_job(JOB, "resume"))
    expect(picture).to_contain_text("B/s")
    expect(values.last).to_contain_text("%")


@in_browser(after_a_while)
def test_large_speeds_of_a_plan_stay_in_their_column(visit: Visit) -> None:
    page = with_plan(visit, steps_per_s=18_258.5, single_machine_steps_per_s=1.0)
    speeds = page.locator(".plan-speeds")
    expect(speeds).to_contain_text("1,168,544 samples/s")
    outer = speeds.bounding_box()
    assert outer is not None
    for value in page.locator(".speed-value:visible").all():
        width: int = value.evaluate("(one) => one.scrollWidth")
        box = value.bounding_box()
        assert box is not None
        assert box["x"] + width <= outer["x"] + outer["width"] + 1


@in_browser(after_a_while)
def test_a_plan_for_one_machine_is_not_compared_with_itself(visit: Visit) -> None:
    visit.site.change(lambda simulation: simulation.act_on_job(JOB, "pause"))
    page = with_plan(visit, providers=1, clusters=1)
    expect(page.locator(".plan-verdict")).to_have_text(
        "The plan promises 474 samples/s: one machine trains the whole model."
    )
    expect(page.get_by_text("One machine alone")).to_be_hidden()


CROSSED = """() => {
  const heads = [...document.querySelectorAll("[data-lane]")].map((head) => [head, head.getBBox()]);
  const crossed = new Set();
  for (const line of document.querySelectorAll(".flow")) {
    for (let at = 0; at <= line.getTotalLength(); at += 2) {
      const { x, y } = line.getPointAtLength(at);
      for (const [head, box] of heads) {
        if (x > box.x && x < box.x + box.width && y > box.y && y < box.y + box.height)
          crossed.add(head.textContent);
      }
    }
  }
  return [heads.length, [...crossed]];
}"""


@in_browser(after_a_while)
def test_no_line_crosses_the_name_of_a_cluster(visit: Visit) -> None:
    page = visit.open(JOB_PAGE)
    expect(page.locator('[data-lane="0"]')).to_contain_text("Cluster 0")
    assert page.evaluate(CROSSED) == [2, []]
    page.set_viewport_size({"width": 360, "height": 740})
    expect(page.locator(".topology-scroll")).to_have_attribute("data-flow", "down")
    assert page.evaluate(CROSSED) == [2, []]


@in_browser(after_a_while)
def test_a_ring_through_the_relay_has_one_colour(visit: Visit) -> None:
    page = visit.open(JOB_PAGE)
    colour = "(element) => getComputedStyle(element).fill"
    relay = page.locator('[data-link="4-0"] .pill-text').evaluate(colour)
    label = page.locator('[data-link="1-0"] .ring-text')
    expect(label).to_have_attribute("data-path", "relay")
    assert label.evaluate(colour) == relay
    assert page.locator('[data-link="2-4"] .ring-text').evaluate(colour) != relay


@in_browser()
def test_a_machine_is_followed_while_its_dialog_is_open(visit: Visit) -> None:
    page = visit.open()
    visit.sign_in(token("operator"))
    page.get_by_role("button", name="grace-desktop").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".badge")).to_have_text("idle")
    page.evaluate("window.before = document.querySelector('dialog .danger')")
    visit.site.change(lambda simulation: simulation.lose(6))
    expect(dialog.locator(".badge")).to_have_text("away")
    assert page.evaluate("before.isConnected"), "buttons stay where they are"
    visit.site.change(lambda simulation: simulation.act_on_provider(6, "pause"))
    expect(dialog.get_by_role("button", name="Resume")).to_be_visible()
    visit.site.change(lambda simulation: simulation.act_on_provider(6, "remove"))
    expect(dialog).to_have_count(0)


@in_browser()
def test_a_dialog_over_another_one_has_its_own_name(visit: Visit) -> None:
    page = visit.open()
    visit.sign_in(token("operator"))
    page.get_by_role("button", name="grace-desktop").click()
    expect(page.get_by_role("dialog", name="grace-desktop", exact=True)).to_be_visible()
    page.get_by_role("button", name="Remove").click()
    expect(page.get_by_role("dialog", name="Remove grace-desktop?", exact=True)).to_be_visible()


@in_browser()
def test_the_buttons_of_a_machine_stand_in_one_line(visit: Visit) -> None:
    page = visit.open()
    visit.sign_in(token("operator"))
    page.get_by_role("button", name="lab-gpu-1").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("15\u202fGB offered; a worker uses")
    boxes = [button.bounding_box() for button in dialog.get_by_role("button").all()]
    assert len(boxes) == 3
    assert len({(box["y"], box["height"]) for box in boxes if box is not None}) == 1


@in_browser()
def test_machines_of_one_name_are_told_apart_by_their_numbers(visit: Visit) -> None:
    page = visit.open()
    mine = page.locator('tr[data-provider="2"] .machine-name')
    expect(mine).to_have_text("lab-gpu-1")
    visit.site.change(lambda simulation: simulation.rename(6, "lab-gpu-1"))
    expect(page.locator('tr[data-provider="6"] .machine-name')).to_have_text("lab-gpu-1 #6")
    expect(mine).to_have_text("lab-gpu-1 #2")
    mine.click()
    expect(page.get_by_role("dialog", name="lab-gpu-1 #2", exact=True)).to_be_visible()
    visit.open(JOB_PAGE)
    expect(page.locator('[data-stage="2"] .stage-name')).to_have_text("lab-gpu-1 #2")
    expect(page.locator('[data-stage="3"] .stage-name')).to_have_text("lab-gpu-2")
    expect(page.locator(".plan-notes b")).to_have_text("lab-gpu-1 #6")
    expect(page.locator('[data-ring="0"]')).to_contain_text("lab-gpu-1 #2 · mini")
    visit.site.change(lambda simulation: simulation.rename(6, "desk"))
    expect(page.locator('[data-stage="2"] .stage-name')).to_have_text("lab-gpu-1")


@in_browser()
def test_a_machine_is_not_followed_when_its_dialog_is_closed(visit: Visit) -> None:
    page = visit.open()
    page.get_by_role("button", name="grace-desktop").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".badge")).to_have_text("idle")
    page.evaluate("window.before = document.querySelector('dialog')")
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_have_count(0)
    visit.site.change(lambda simulation: simulation.lose(6))
    expect(page.get_by_role("row", name="grace-desktop")).to_contain_text("away")
    assert page.evaluate("before.querySelector('.badge').textContent") == "idle"


@in_browser()
def test_the_memory_of_a_worker_is_compared_with_what_a_worker_may_take(visit: Visit) -> None:
    """15 GB are offered on lab-gpu-1, and a part of it is for Python and torch."""

    def full(simulation: Simulation) -> None:
        machine = simulation.providers[2]
        assert machine.memory_bytes < machine.worker_limit_bytes
        limit = machine.worker_limit_bytes
        simulation._set_provider(replace(machine, worker_memory_bytes=limit))

    page = visit.open()
    visit.site.change(full)
    cell = page.locator('tr[data-provider="2"] .memory-cell')
    expect(cell).to_contain_text("15\u202fGB of 15\u202fGB")
    expect(cell.get_by_role("meter")).to_have_attribute("aria-valuenow", "100")


@in_browser(after_a_while)
def test_curves_and_figures_of_a_job_move_without_reloading(visit: Visit) -> None:
    page = visit.open(JOB_PAGE)
    legend = page.locator('[data-metric="loss"] .legend-value').nth(1)
    step = page.locator(".job-head .figure-value").nth(1)
    expect(legend).not_to_be_empty()
    before, loss = step.inner_text(), legend.inner_text()
    page.evaluate("window.same = true")
    visit.site.advance(30.0)
    expect(step).not_to_have_text(before)
    expect(legend).not_to_have_text(loss)
    assert page.evaluate("window.same"), "the page was loaded again"


@in_browser(after_a_while)
def test_curves_can_be_seen_on_a_log_scale_over_time_and_raw(visit: Visit) -> None:
    page = visit.open(JOB_PAGE)
    legend = page.locator('[data-metric="loss"] .legend-value').nth(1)
    smooth = legend.inner_text()
    page.get_by_label("Smoothing").fill("0")
    expect(legend).not_to_have_text(smooth)
    page.get_by_role("button", name="Log scale").click()
    expect(page.get_by_role("button", name="Log scale")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="Time", exact=True).click()
    expect(page.locator(".chart canvas")).to_have_count(2)


@in_browser(after_a_while)
def test_the_timeline_tells_who_waited_and_what_a_span_was(visit: Visit) -> None:
    page = visit.open(JOB_PAGE)
    page.locator(".timeline").scroll_into_view_if_needed()
    visit.site.advance(1.0)
    expect(page.locator(".timeline-label")).to_have_count(5)
    expect(page.locator('.timeline-label[data-provider="1"]')).to_contain_text("waits")
    expect(page.locator(".timeline-legend")).to_contain_text("waiting")
    hold = page.locator(".timeline-hold")
    hold.click()
    expect(hold).to_have_text("Live")
    page.get_by_role("button", name="2 s", exact=True).click()
    canvas = page.locator(".timeline-canvas")
    tip = page.locator(".timeline-tip")
    # Row of the busiest machine: somewhere among a few neighbouring places there is a span.
    for x in range(200, 260, 4):
        canvas.hover(position={"x": x, "y": 24 + 3 * 30 + 15})
        if "batch" in tip.inner_text():
            break
    expect(tip).to_contain_text("mini")
    expect(tip).to_contain_text("batch")
    canvas.press("-")
    canvas.press(" ")
    expect(hold).to_have_text("Pause")


@in_browser()
def test_signing_in_reveals_controls_and_signing_out_hides_them(visit: Visit) -> None:
    page = visit.open(JOB_PAGE)
    expect(page.locator("h1")).to_have_text("cifar10-resnet18")
    expect(page.locator("[data-action]")).to_have_count(0)
    visit.sign_in(token("operator"))
    expect(page.locator("[data-action]")).to_have_count(2)
    page.reload()
    expect(page.locator("[data-action]")).to_have_count(2)
    page.get_by_role("button", name="Sign out").click()
    expect(page.locator("[data-action]")).to_have_count(0)


@in_browser()
def test_a_viewer_gets_no_controls(visit: Visit) -> None:
    page = visit.open(JOB_PAGE)
    visit.sign_in(token("viewer"))
    expect(page.locator(".header")).to_contain_text("viewer")
    expect(page.locator("[data-action]")).to_have_count(0)


@in_browser()
def test_stopping_a_job_asks_first_and_then_posts(visit: Visit) -> None:
    page = visit.open(JOB_PAGE)
    visit.sign_in(token("operator"))
    page.get_by_role("button", name="Stop").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("The job can be resumed later")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_have_count(0)
    assert visit.site.hub.simulation.actions == []
    page.get_by_role("button", name="Stop").click()
    dialog.get_by_role("button", name="Stop it").click()
    expect(page.locator(".job-head .badge")).to_have_text("stopped")
    assert visit.site.hub.simulation.actions == [(JOB, "stop")]
    page.get_by_role("button", name="Resume").wait_for()


@in_browser()
def test_an_operator_pauses_a_machine(visit: Visit) -> None:
    page = visit.open()
    visit.sign_in(token("operator"))
    page.get_by_role("button", name="grace-desktop").click()
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(page.locator('tr[data-provider="6"]')).to_contain_text("paused")
    assert visit.site.hub.simulation.actions == [("provider-6", "pause")]


@in_browser()
def test_a_requester_has_controls_of_their_own_jobs_only(visit: Visit) -> None:
    """mira has submitted one of them, jo the other."""
    page = visit.open(JOB_PAGE)
    visit.sign_in(token("requester"))
    expect(page.locator(".job-controls button")).to_have_text(["Stop", "Pause"])
    visit.open("#/jobs/job-digits")
    expect(page.locator("h1")).to_have_text("digits-mlp")
    expect(page.locator(".job-result")).to_contain_text("Sign in as jo or as an operator")
    expect(page.locator(".job-controls button, .job-result button")).to_have_count(0)
    page.reload()
    visit.open(JOB_PAGE)
    expect(page.locator(".job-controls button")).to_have_count(2)


@in_browser(expected="403")
def test_what_the_server_refuses_is_said_in_its_words(visit: Visit) -> None:
    page = visit.open(JOB_PAGE)
    visit.sign_in(token("requester"))
    visit.site.do(lambda: visit.site.hub.refused.add("pause"))
    page.get_by_role("button", name="Pause", exact=True).first.click()
    expect(page.locator(".toast")).to_have_text("this needs an operator token")


@in_browser(open=False, expected="401")
def test_a_closed_pool_asks_for_a_token_and_refuses_a_wrong_one(visit: Visit) -> None:
    page = visit.open()
    expect(page.locator("main")).to_contain_text("Sign in to see this pool")
    page.locator("main").get_by_role("button", name="Sign in").click()
    dialog = page.get_by_role("dialog")
    for wrong, said in (
        ("nonsense", "This is no token"),
        (token("provider"), "machines that join"),
    ):
        dialog.get_by_label("Token").fill(wrong)
        dialog.get_by_role("button", name="Sign in").click()
        expect(dialog.get_by_role("alert")).to_contain_text(said)
    dialog.get_by_label("Token").fill(token("operator")[:-3] + "AAA")
    dialog.get_by_role("button", name="Sign in").click()
    expect(dialog.get_by_role("alert")).to_contain_text("not known here")
    dialog.get_by_label("Token").fill(token("viewer"))
    dialog.get_by_role("button", name="Sign in").click()
    expect(page.locator(".machines tbody tr")).to_have_count(7)


@in_browser(lambda: Simulation(machines=0))
def test_an_empty_pool_says_how_machines_join(visit: Visit) -> None:
    page = visit.open()
    hint = page.locator("main")
    expect(hint).to_contain_text(f"ravnest join {visit.site.url} --token TOKEN")
    expect(hint).to_contain_text("No jobs yet")
    visit.sign_in(token("operator"))
    page.get_by_role("button", name="Make a join command").click()
    page.get_by_role("dialog").get_by_role("button", name="Make a join command").click()
    expect(page.get_by_role("dialog")).to_contain_text(f"--token {token('provider')}")


@in_browser()
def test_names_are_text_whatever_is_in_them(visit: Visit) -> None:
    page = visit.open()
    nasty = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    visit.site.change(lambda simulation: simulation.rename(2, nasty))
    expect(page.locator('tr[data-provider="2"] .machine-name')).to_have_text(nasty)
    visit.open(JOB_PAGE)
    expect(page.locator('[data-stage="2"] title')).to_contain_text(nasty)
    assert page.locator("main img, main script").count() == 0


@in_browser(expected="Failed to load resource")
def test_a_lost_connection_is_shown_and_comes_back(visit: Visit) -> None:
    page = visit.open()
    expect(page.locator(".connection")).to_have_attribute("data-state", "live")
    expect(page.locator(".banner")).to_be_hidden()
    visit.site.do(visit.site.hub.break_down)
    expect(page.locator(".banner")).to_contain_text("Connection lost, trying again")
    expect(page.locator(".machines tbody tr")).to_have_count(7)
    visit.site.do(visit.site.hub.come_back)
    expect(page.locator(".connection")).to_have_attribute("data-state", "live")
    expect(page.locator(".banner")).to_be_hidden()
    visit.site.change(lambda simulation: simulation.lose(6))
    expect(page.locator('tr[data-provider="6"]')).to_contain_text("away")


@in_browser()
def test_trained_weights_are_downloaded_with_the_token(visit: Visit) -> None:
    page = visit.open("#/jobs/job-digits")
    expect(page.locator(".job-result")).to_contain_text("Sign in")
    visit.sign_in(token("operator"))
    with page.expect_download() as download:
        page.get_by_role("button", name="Download .safetensors").click()
    assert download.value.suggested_filename == "digits-mlp.safetensors"


@in_browser(lambda: Simulation(machines=1000))
def test_a_thousand_machines_stay_light(visit: Visit) -> None:
    page = visit.open()
    expect(page.locator(".pager")).to_contain_text("1 to 25 of 1,000 machines")
    assert page.evaluate("document.querySelectorAll('*').length") < 1500
    page.get_by_label("Filter machines").fill("provider-950")
    expect(page.locator(".machine-name")).to_have_count(1)
    visit.site.change(lambda simulation: [simulation.lose(number) for number in range(900, 1000)])
    expect(page.locator('tr[data-provider="950"]')).to_contain_text("away")
    expect(page.locator('.state-filter[data-state="away"]')).to_contain_text("101")
    page.get_by_label("Filter machines").fill("")
    page.get_by_role("button", name="Next").click()
    expect(page.locator(".pager")).to_contain_text("26 to 50 of 1,000 machines")
    assert page.evaluate("document.querySelectorAll('*').length") < 1500


@in_browser(after_a_while, **PHONE)
def test_nothing_sticks_out_on_a_phone(visit: Visit) -> None:
    page = visit.open()
    expect(page.locator(".machines tbody tr")).to_have_count(7)
    assert overflow(page) == 0
    visit.open(JOB_PAGE)
    expect(page.locator(".chart canvas")).to_have_count(2)
    expect(page.locator(".topology-scroll")).to_have_attribute("data-flow", "down")
    page.locator(".timeline").scroll_into_view_if_needed()
    visit.site.advance(1.0)
    expect(page.locator(".timeline-label")).to_have_count(5)
    assert overflow(page) == 0
    visit.open("#/events")
    expect(page.locator(".event").first).to_be_visible()
    assert overflow(page) == 0


@pytest.mark.parametrize("context", [{}, PHONE], ids=["desktop", "phone"])
def test_the_whole_plan_scrolls_by_itself_and_not_the_page(
    browser: BrowserThread, context: dict[str, Any]
) -> None:
    def opened(visit: Visit) -> None:
        page = visit.open(JOB_PAGE)
        page.get_by_text("The whole plan").click()
        report = page.locator(".plan details pre")
        expect(report).to_contain_text("as wide as the table of a plan is")
        assert report.evaluate("one => one.scrollWidth > one.clientWidth")
        assert overflow(page) == 0

    in_browser(after_a_while, **context)(opened)(browser)


@in_browser(after_a_while)
def test_a_timeline_that_nobody_has_looked_at_says_what_it_will_be(visit: Visit) -> None:
    page = visit.open(JOB_PAGE)
    page.set_viewport_size({"width": 1280, "height": 300})
    page.reload()
    empty = page.locator(".timeline-empty")
    expect(empty).to_contain_text("second by second")
    page.locator(".timeline").scroll_into_view_if_needed()
    visit.site.advance(1.0)
    expect(page.locator(".timeline-label")).to_have_count(5)
    expect(page.locator(".timeline-canvas")).to_be_visible()
    expect(empty).to_be_hidden()


@in_browser(color_scheme="dark")
def test_colours_follow_the_system_until_the_reader_chooses(visit: Visit) -> None:
    page = visit.open()
    ground = "getComputedStyle(document.body).backgroundColor"
    expect(page.locator(".machines tbody tr")).to_have_count(7)
    dark = page.evaluate(ground)
    assert max(int(part) for part in dark[4:-1].split(",")) < 40
    page.get_by_role("button", name="Colours: as the system").click()
    expect(page.get_by_role("button", name="Colours: light")).to_be_visible()
    light = page.evaluate(ground)
    assert min(int(part) for part in light[4:-1].split(",")) > 200
    page.reload()
    expect(page.get_by_role("button", name="Colours: light")).to_be_visible()


@in_browser(after_a_while, reduced_motion="reduce")
def test_nothing_moves_for_those_who_asked_for_stillness(visit: Visit) -> None:
    page = visit.open(JOB_PAGE)
    flow = page.locator('[data-link="2-3"] .flow').first
    expect(flow).not_to_have_attribute("data-pace", "0")
    assert flow.evaluate("(path) => getComputedStyle(path).animationName") == "none"


@in_browser()
def test_everything_can_be_reached_with_the_keyboard(visit: Visit) -> None:
    page = visit.open()
    expect(page.locator(".machines tbody tr")).to_have_count(7)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.get_by_role("button", name="lab-gpu-1").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="lab-gpu-1")).to_be_focused()


@in_browser()
def test_events_can_be_searched_and_new_ones_appear(visit: Visit) -> None:
    page = visit.open("#/events")
    expect(page.locator(".event")).to_have_count(10)
    page.get_by_role("button", name="Warnings").click()
    expect(page.locator(".event")).to_have_count(1)
    visit.site.change(lambda simulation: simulation.say("error", "a worker has failed"))
    expect(page.locator(".event").first).to_contain_text("a worker has failed")
    page.get_by_label("Filter events").fill("relayed")
    expect(page.locator(".event")).to_have_count(1)


@in_browser()
def test_a_deleted_job_leaves_a_page_that_says_so(visit: Visit) -> None:
    page = visit.open("#/jobs/job-digits")
    expect(page.locator("h1")).to_have_text("digits-mlp")
    visit.site.change(lambda simulation: simulation.act_on_job("job-digits", "delete"))
    expect(page.locator("main")).to_contain_text("There is no such job")


@in_browser()
def test_an_address_that_nobody_has_made_is_no_lost_connection(visit: Visit) -> None:
    page = visit.open("#/jobs/100%")
    expect(page.locator("main")).to_contain_text("There is no such job")
    expect(page.locator(".connection")).to_have_attribute("data-state", "live")


@in_browser(after_a_while)
def test_an_answer_about_a_state_that_is_over_changes_nothing(visit: Visit) -> None:
    held: list[Route] = []

    def hold_the_first(route: Route) -> None:
        if held:
            route.continue_()
        else:
            held.append(route)

    visit.page.route(f"**/api/v1/jobs/{JOB}", hold_the_first)
    page = visit.open(JOB_PAGE)
    expect(page.locator(".job-head .badge")).to_have_text("running")
    visit.site.change(lambda simulation: simulation.act_on_job(JOB, "pause"))
    plan = page.locator(".plan-verdict")
    expect(plan).to_be_visible()
    detail = visit.site.hub.simulation.detail(JOB)
    early = msgspec.to_builtins(replace(detail, plan=None))
    with page.expect_response(f"**/api/v1/jobs/{JOB}"):
        held[0].fulfill(json=early)
    page.evaluate("fetch('/healthz').then((answer) => answer.text())")
    expect(plan).to_be_visible()


def test_the_browser_leaves_no_event_loop_behind(browser: BrowserThread) -> None:
    """Also while it is running: it has a thread of its own."""

    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    assert browser.call(lambda chromium: chromium.is_connected())
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
    assert asyncio.run(answer()) == 42
