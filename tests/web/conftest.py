"""One browser for all tests here."""

from collections.abc import Iterator

import pytest
from web.browser import BrowserThread


@pytest.fixture(scope="session")
def browser() -> Iterator[BrowserThread]:
    with BrowserThread() as thread:
        yield thread
