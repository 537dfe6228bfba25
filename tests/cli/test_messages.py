"""What the library logs reaches the terminal, and never harms whoever logs it."""

import logging
import sys

import pytest

from ravnest.cli.join import _line
from ravnest.cli.messages import Messages

logger = logging.getLogger("ravnest.test")


class _Full:
    """A log on a disk without room."""

    def write(self, text):
        raise OSError(28, "No space left on device")

    def flush(self):
        raise OSError(28, "No space left on device")


def test_a_log_that_cannot_be_written_does_not_stop_whoever_logs(monkeypatch):
    monkeypatch.setattr(sys, "stderr", _Full())
    with Messages() as messages:
        logger.warning("said at once")
        messages.hold()
        logger.warning("held until the end")


@pytest.mark.parametrize("held", [False, True])
def test_what_went_wrong_is_said_with_its_trace(capsys, held):
    with Messages() as messages:
        if held:
            messages.hold()
        try:
            raise KeyError("the cause")
        except KeyError:
            logger.exception("it failed")
    said = capsys.readouterr().err
    assert "it failed" in said
    assert "KeyError: 'the cause'" in said


def test_a_server_forges_no_line_of_a_provider(capsys):
    _line("rejected", "the server says: no\njoined as provider 7\x1b[2J")
    first, second = capsys.readouterr().out.splitlines()
    assert first == "the server says: no"
    assert second == "    joined as provider 7\ufffd[2J"


@pytest.mark.parametrize("held", [False, True])
def test_what_others_have_said_neither_steers_the_terminal_nor_forges_a_line(capsys, held):
    with Messages() as messages:
        if held:
            messages.hold()
        logger.warning("refused: %s", "no\x1b]0;owned\x07\x9b31m\nwarning: all is well")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("warning: refused: no")
    assert lines[1] == "    warning: all is well"
    assert all(line.isprintable() for line in lines)
