"""Ctrl-C while torch is loaded."""

import signal
import subprocess
import sys

import pytest

from ravnest.cli.loading import load_torch

TORCH = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000): pass  # until it is heard
except KeyboardInterrupt:
    pass  # as the real one does, around its import of numpy
print("went on")
"""


LOADING = [
    "from ravnest.cli.loading import load_torch; load_torch()",
    "from ravnest.cli.doctor import machine; list(machine.torch_build())",
    "from ravnest.cli.doctor import machine; list(machine.gpu())",
]


@pytest.mark.parametrize("loading", LOADING, ids=["by itself", "doctor", "its look for a GPU"])
def test_an_interrupt_while_torch_is_loaded_ends_the_program(tmp_path, loading):
    """Torch swallows it otherwise, and what it needs is half loaded."""
    (tmp_path / "torch.py").write_text(TORCH)
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        f"{loading}\n"
    )
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_afterwards_an_interrupt_is_an_exception_again():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        load_torch()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        load_torch()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
