"""What tests of many folders have in common.

Tests that need more than Python say so: `@pytest.mark.needs("chromium")`.

Where such a program is missing they are left out, and the end of the output says which and why. In
CI everything has to be there, so there it is an error.
"""

import os
import shutil
from pathlib import Path

import pytest
from devices import register

# Before anything else: the threads of autograd are started once, for the devices there are then.
register()

NEEDS = {
    "chromium": "Debian: apt install chromium",
    "postgres": "Debian: apt install postgresql",
    "namespaces": "Linux, root, and ip and tc (Debian: apt install iproute2)",
    "bwrap": "Debian: apt install bubblewrap",
    "nginx": "Debian: apt install nginx-light libnginx-mod-stream",
}


def is_there(need: str) -> bool:
    if need == "chromium":
        return shutil.which("chromium") is not None
    if need == "postgres":
        return bool(list(Path("/usr/lib/postgresql").glob("*/bin/initdb")))
    if need == "nginx":
        return Path("/usr/lib/nginx/modules/ngx_stream_module.so").exists()
    if need == "namespaces":
        tools = all(shutil.which(tool) for tool in ("ip", "tc"))
        return tools and getattr(os, "geteuid", lambda: 1)() == 0
    return shutil.which(need) is not None


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a user who has never used a server."""
    for name in ("RAVNEST_SERVER", "RAVNEST_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAVNEST_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*programs): what a test cannot do without")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    missing = {need for need in NEEDS if not is_there(need)}
    kept, dropped = [], []
    for item in items:
        wanted = {need for mark in item.iter_markers("needs") for need in mark.args}
        (dropped if wanted & missing else kept).append(item)
    if dropped and os.environ.get("CI"):
        raise pytest.UsageError(f"missing for the tests: {', '.join(sorted(missing))}")
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for need, remedy in NEEDS.items():
        if not is_there(need):
            terminalreporter.write_line(f"left out: tests that need {need} ({remedy})")
