"""Questions at a terminal: answers, none, and Ctrl-C at the worst moment."""

import io
import os
import pty
import signal
import sys

import click
import pytest

from ravnest.cli import asking


@pytest.fixture
def terminal(monkeypatch):
    """The other end of the terminal that is standard input."""
    ours, theirs = pty.openpty()
    with open(theirs) as file:
        monkeypatch.setattr(sys, "stdin", file)
        yield ours
    os.close(ours)


@pytest.mark.parametrize(
    ("typed", "default", "expected"),
    [("y\n", False, True), ("NO\n", True, False), ("\n", True, True), ("what\nyes\n", False, True)],
)
def test_an_answer(monkeypatch, capsys, typed, default, expected):
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    assert asking.confirm("Really?", default=default) is expected
    assert capsys.readouterr().err.startswith(f"Really? [{'Y/n' if default else 'y/N'}]: ")


def test_no_answer_is_told_from_an_interrupt(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    with pytest.raises(click.Abort) as none:
        asking.confirm("Really?", default=True)
    assert isinstance(none.value.__cause__, EOFError)


def test_an_answer_at_a_terminal(terminal):
    os.write(terminal, b"y\n")
    assert asking.confirm("Really?", default=False)


@pytest.mark.parametrize("moment", ["echo", "select"])
def test_an_interrupt_is_heard_from_the_moment_the_question_is_there(terminal, monkeypatch, moment):
    """Also just before the system waits for a key, when Python's part of it is over."""
    place = {"echo": asking.click, "select": asking.select}[moment]
    real, waited = getattr(place, moment), []

    def struck(*given, **named):
        if not waited:
            waited.append(moment)
            signal.raise_signal(signal.SIGINT)
        return real(*given, *([30.0] if moment == "select" else []), **named)

    monkeypatch.setattr(place, moment, struck)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(click.Abort) as interrupted:
        asking.confirm("Really?", default=True)
    assert interrupted.value.__cause__ is None
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.set_wakeup_fd(-1) == -1
