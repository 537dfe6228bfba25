"""What a script sees of the machine it runs on."""

import subprocess
import sys

import pytest

from ravnest.agent import sandbox
from ravnest.agent.sandbox import sandboxed, why_not

LOOK = """
import os, pathlib, ravnest.api
print(sorted(os.listdir(secret)) if os.path.isdir(secret) else "nothing there")
pathlib.Path("mine").write_text("1")
try:
    pathlib.Path("/etc/ravnest-was-here").write_text("1")
except OSError as error:
    print(type(error).__name__)
"""


@pytest.fixture
def no_memory():
    why_not.cache_clear()
    yield
    why_not.cache_clear()


def test_without_the_program_the_reason_names_it(monkeypatch, no_memory):
    monkeypatch.setattr(sandbox.shutil, "which", lambda _: None)
    assert why_not() == "bubblewrap (bwrap) is not installed"


def test_a_sandbox_that_does_not_work_is_none(monkeypatch, no_memory):
    monkeypatch.setattr(sandbox, "_PROGRAM", "false")
    assert "does not work" in why_not()


def test_a_script_sees_its_own_folder_and_no_others(tmp_path, monkeypatch):
    """Where there is no bubblewrap, the command is looked at instead."""
    folder, secret = tmp_path / "folder", tmp_path / "secret"
    folder.mkdir()
    secret.mkdir()
    (secret / "diary").write_text("")
    monkeypatch.setattr(sandbox, "_HIDDEN", (str(secret.parent), *sandbox._HIDDEN))
    # The folder that the agent was started from is not among those that are shown.
    monkeypatch.syspath_prepend(str(secret))
    command = sandboxed([sys.executable, "-c", f"secret = {str(secret)!r}\n{LOOK}"], folder)
    assert str(secret) not in command
    assert command[command.index("--bind") + 1] == str(folder)
    if why_not() is None:
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.stdout.splitlines() == ["nothing there", "OSError"], done.stderr
        assert (folder / "mine").read_text() == "1"
