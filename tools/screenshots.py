"""Pictures of a server's dashboard for the README, taken with Debian's Chromium.

    python tools/screenshots.py https://localhost:8470 --token rav1_… --into docs/images

Needs playwright (in the `test` extra). Take them while a job is running: the one
that is shown is named with --job, or is the first in the list.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

try:
    from playwright.sync_api import Browser, Page, sync_playwright
except ImportError:
    raise SystemExit("error: this needs playwright: pip install playwright") from None

DESK, TALL, PHONE = (1280, 860), (1280, 1130), (360, 760)
LIVE_MS = 6000
"""Long enough for several updates: curves, traffic and the timeline have something to show."""
PATIENCE_MS = 30_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--token", default="")
    parser.add_argument("--job", help="its id")
    parser.add_argument("--into", type=Path, default=Path("docs/images"))
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=options.chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        camera = Camera(browser, options.url.rstrip("/"), options.token, options.into)
        job = options.job or camera.first_job()
        camera.take("dashboard-overview", "#/", DESK, "light")
        camera.take("dashboard-job", f"#/jobs/{job}", TALL, "dark", at_pipelines)
        camera.take("dashboard-phone", f"#/jobs/{job}", PHONE, "light", at_pipelines)
        browser.close()


def at_pipelines(page: Page) -> None:
    page.locator(".topology").wait_for()
    page.evaluate(
        "() => { const card = document.querySelector('.topology').closest('.card');"
        "scrollTo(0, card.offsetTop - document.querySelector('.header').offsetHeight - 14); }"
    )


class Camera:
    def __init__(self, browser: Browser, url: str, token: str, into: Path) -> None:
        self.browser, self.url, self.token, self.into = browser, url, token, into

    def first_job(self) -> str:
        page = self._page(DESK, "light", "#/")
        address = page.locator(".job-name").first.get_attribute("href") or ""
        page.context.close()
        return address.removeprefix("#/jobs/")

    def take(
        self,
        name: str,
        address: str,
        size: tuple[int, int],
        colours: str,
        aim: Callable[[Page], None] = lambda page: None,
    ) -> None:
        page = self._page(size, colours, address)
        aim(page)
        page.wait_for_timeout(LIVE_MS)
        path = self.into / f"{name}.png"
        page.screenshot(path=path)
        page.context.close()
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")

    def _page(self, size: tuple[int, int], colours: str, address: str) -> Page:
        narrow = size == PHONE
        context = self.browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme="dark" if colours == "dark" else "light",
            device_scale_factor=2 if narrow else 1,
            is_mobile=narrow,
            ignore_https_errors=True,  # the server's own authority is not the system's
        )
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(f"{self.url}/{address}")
        if self.token:  # not in the address: addresses end up in logs
            page.get_by_role("banner").get_by_role("button", name="Sign in").click()
            page.get_by_label("Token").fill(self.token)
            page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
            page.get_by_role("button", name="Sign out").wait_for()
        page.locator('.connection[data-state="live"]').wait_for(state="attached")
        return page


if __name__ == "__main__":
    main()
