"""A person watches a real run on the dashboard of a real server, and stops it."""

from types import SimpleNamespace

import pytest
from cast import cast
from digits import submit
from playwright.sync_api import Browser, expect
from web.browser import BrowserThread, Visit

pytestmark = pytest.mark.needs("chromium")
LIVE_MS = 60_000


def test_a_real_run_is_seen_live_and_stopped_from_the_page(tmp_path):
    with BrowserThread() as browser, cast(tmp_path) as made:
        for name in ("ada", "ben"):
            made.join(name, "--memory", "2")
        made.wait_for_pool(2)
        with made.session() as session:
            job = submit(session, epochs=400, max_clusters=1)
            made.wait_for_job(job.id, "running")

        def watch(chromium: Browser) -> None:
            reader = chromium.new_context(ignore_https_errors=True)
            try:
                seen = Visit(reader.new_page(), SimpleNamespace(url=made.server.url))
                look(seen)
                assert not seen.errors, f"the browser complained: {seen.errors}"
                assert not seen.foreign, f"other hosts were asked: {seen.foreign}"
            finally:
                reader.close()

        def look(seen: Visit) -> None:
            page = seen.open()
            seen.sign_in(made.server.operator_token)
            seen.errors.clear()  # without a token the page was told to sign in: status 401
            for name in ("ada", "ben"):
                expect(page.locator(".machines")).to_contain_text(name)
            expect(page.locator(f'[data-job="{job.id}"]')).to_contain_text("running")
            page = seen.open(f"#/jobs/{job.id}")
            for text in ("ada", "ben", "Root", "Leaf", "direct"):
                expect(page.locator("svg").first).to_contain_text(text, timeout=LIVE_MS)
            # Curves and timeline are drawn, and the step goes on without a reload.
            expect(page.locator(".uplot").first).to_be_visible(timeout=LIVE_MS)
            expect(page.locator("canvas").first).to_be_visible()
            before = page.locator("body").inner_text()
            page.evaluate("window.stayed = true")
            page.wait_for_function(
                "before => document.body.innerText !== before", arg=before, timeout=LIVE_MS
            )
            page.get_by_role("button", name="Stop").click()
            page.get_by_role("dialog").get_by_role("button", name="Stop it").click()
            expect(page.locator(".job-head .badge")).to_have_text("stopped", timeout=LIVE_MS)
            assert page.evaluate("window.stayed") is True

        browser.call(watch)
        assert 0 < made.wait_for_job(job.id, "stopped").epoch < 400
