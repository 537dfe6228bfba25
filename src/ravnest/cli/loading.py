"""Torch takes seconds to load, and swallows interrupts meanwhile: commands load it here."""

import importlib
import os
import signal
import threading

from ravnest.cli import EXIT_INTERRUPTED


def load_torch() -> None:
    """Whoever presses Ctrl-C meanwhile ends the program at once. As an exception it would come out
    somewhere inside, where torch takes it for a sign that there is no numpy, and goes on with the
    half of it that was loaded."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        importlib.import_module("torch")
        return
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(EXIT_INTERRUPTED))
    try:
        importlib.import_module("torch")
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
