"""Questions to whoever sits at the terminal."""

import contextlib
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator

import click

Waits = Callable[[], None]


def confirm(question: str, *, default: bool) -> bool:
    """Yes or no. `click.Abort` for Ctrl-C, and with `EOFError` as its cause at the end of input."""
    prompt = f"{question} [{'Y/n' if default else 'y/N'}]: "
    while True:
        try:
            with _interruptible() as wait:
                click.echo(prompt, nl=False, err=True)
                wait()
            line = sys.stdin.readline()
        except KeyboardInterrupt:
            raise click.Abort from None
        if not line:
            raise click.Abort from EOFError()
        answer = line.strip().lower()
        if answer in ("y", "yes", "n", "no", ""):
            return answer[:1] == "y" if answer else default
        click.echo("please answer y or n", err=True)


@contextlib.contextmanager
def _interruptible() -> Iterator[Waits]:
    """What waits for a line of a terminal; `KeyboardInterrupt` if Ctrl-C came since it was made.

    Reading alone would miss one that comes in the moment before the system waits for a key: Python
    would hear of it with the next key. And an exception out of the signal's handler is lost if it
    comes while something is tidied up. So the handler only takes note, and what the system is told
    about signals wakes the wait.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if os.name == "nt" or not in_main or not sys.stdin.isatty():
        yield lambda: None
        return
    struck: list[int] = []
    told, tells = socket.socketpair()

    def wait() -> None:
        ends = [sys.stdin.fileno(), told.fileno()]
        while ends[0] not in select.select(ends, [], [])[0]:
            told.recv(4096)
            if struck:
                raise KeyboardInterrupt

    with told, tells:
        tells.setblocking(False)
        woken = signal.set_wakeup_fd(tells.fileno(), warn_on_full_buffer=False)
        handler = signal.signal(signal.SIGINT, lambda number, _: struck.append(number))
        try:
            yield wait
        finally:
            signal.signal(signal.SIGINT, handler)
            signal.set_wakeup_fd(woken)
