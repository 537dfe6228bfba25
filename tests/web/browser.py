"""A browser that lives in a thread of its own.

Playwright's sync interface keeps an event loop running in the thread that starts it. In the thread
of the tests it would break every `asyncio.run` that comes later, so it is started, used and stopped
somewhere else. A test is a function of a `Visit`; whatever it does, afterwards it must not have
logged an error or asked another host for anything.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright
from web.fake_server import Site
from web.simulation import Simulation

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_S = 120.0
STEP_MS = 15_000
Work = tuple[Callable[[Browser], Any], "Future[Any]"]


class BrowserThread:
    def __init__(self) -> None:
        self._work: queue.Queue[Work | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="browser")
        self._failed: BaseException | None = None

    def __enter__(self) -> "BrowserThread":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._work.put(None)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the browser has not ended"

    def call(self, action: Callable[[Browser], Any]) -> Any:
        """Run it in the browser's thread; what it raises is raised here."""
        future: Future[Any] = Future()
        self._work.put((action, future))
        return future.result(PATIENCE_S)

    def _run(self) -> None:
        try:
            with sync_playwright() as playwright:
                chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
                while (work := self._work.get()) is not None:
                    self._do(*work, chromium)
                chromium.close()
        except Exception as problem:
            # No browser: whoever waits for it learns why.
            while (work := self._work.get()) is not None:
                work[1].set_exception(problem)

    @staticmethod
    def _do(action: Callable[[Browser], Any], future: "Future[Any]", chromium: Browser) -> None:
        try:
            future.set_result(action(chromium))
        except BaseException as problem:
            future.set_exception(problem)


class Visit:
    """One reader at a site, and what their browser noticed."""

    def __init__(self, page: Page, site: Site) -> None:
        self.page = page
        self.site = site
        self.errors: list[str] = []
        self.foreign: list[str] = []
        page.set_default_timeout(STEP_MS)
        page.on("console", self._hear)
        page.on("pageerror", lambda problem: self.errors.append(str(problem)))
        page.on("request", self._ask)

    def open(self, address: str = "") -> Page:
        self.page.goto(f"{self.site.url}/{address}")
        return self.page

    def sign_in(self, token: str) -> None:
        self.page.get_by_role("button", name="Sign in").first.click()
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
        self.page.get_by_role("dialog").wait_for(state="detached")

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.errors.append(message.text)

    def _ask(self, request: Request) -> None:
        if not request.url.startswith((f"{self.site.url}/", "data:", f"blob:{self.site.url}/")):
            self.foreign.append(request.url)


def in_browser(
    simulation: Callable[[], Simulation] = Simulation,
    *,
    open: bool = True,
    expected: str | None = None,
    **context: Any,
) -> Callable[[Callable[[Visit], None]], Callable[[BrowserThread], None]]:
    """Make a test of a function: a fresh site and a fresh reader for each.

    `expected` is part of the console messages that belong to the test; `context` is how the
    reader's browser is set up.
    """

    def decorate(test: Callable[[Visit], None]) -> Callable[[BrowserThread], None]:
        def run(browser: BrowserThread) -> None:
            with Site(simulation(), open=open) as site:
                browser.call(lambda chromium: visit(chromium, site))

        def visit(chromium: Browser, site: Site) -> None:
            reader = chromium.new_context(**context)
            try:
                seen = Visit(reader.new_page(), site)
                test(seen)
                unexpected = [e for e in seen.errors if expected is None or expected not in e]
                assert not unexpected, f"the browser complained: {unexpected}"
                assert not seen.foreign, f"other hosts were asked: {seen.foreign}"
            finally:
                reader.close()

        run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
        return run

    return decorate
