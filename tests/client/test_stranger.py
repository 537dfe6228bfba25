"""Whoever answers may be anybody, and may mean no good."""

import gzip
import threading

import pytest
from scripted import Scripted, say

from ravnest.client import stranger
from ravnest.client.stranger import ask
from ravnest.errors import ServerError


@pytest.fixture(scope="module")
def server():
    with Scripted() as running:
        yield running


@pytest.fixture
def asked(server):
    """What somebody is told who asks the server, which answers with this."""

    def run(act, **options):
        server.answers["GET", "/x"] = act
        return ask(server.address, f"{server.address.url}/x", **{"within_s": 20, **options})

    return run


def again_and_again(piece, beginning=b""):
    """Slowly, and for longer than is waited here, but not for ever."""

    def act(handler):
        handler.wfile.write(beginning)
        for _ in range(100):
            handler.wfile.write(piece)
            threading.Event().wait(0.05)
        handler.close_connection = True

    return act


def ended():
    """Nobody is left who waits in vain."""
    for thread in threading.enumerate():
        if thread.name == "stranger":
            thread.join(20)
            assert not thread.is_alive()


def test_all_answers_come_over_one_connection(server, asked):
    callers = set()

    def act(handler):
        callers.add(handler.client_address)
        say(handler, 200, "fine")

    answers = asked(act, times=3)
    assert [(one.status, one.body) for one in answers] == [(200, b"fine")] * 3
    assert len(callers) == 1


@pytest.mark.parametrize(
    "act",
    [
        again_and_again(b"x", b"HTTP/1.1 200 OK\r\n\r\n"),
        again_and_again(b"X-A: b\r\n", b"HTTP/1.1 200 OK\r\n"),
        again_and_again(b"HTTP/1.1 102 Processing\r\n\r\n"),
    ],
    ids=["a byte", "a header", "wait"],
)
def test_one_who_is_never_at_an_end_is_left(asked, act):
    with pytest.raises(ServerError, match="does not answer in time"):
        asked(act, within_s=0.5)
    ended()


def test_more_than_fits_is_not_taken(asked):
    with pytest.raises(ServerError, match="too large"):
        asked(lambda handler: say(handler, 200, bytes(stranger._MOST_BYTES + 1)))
    ended()


def test_what_is_packed_stays_so(server, asked):
    """Nobody has asked for it."""
    packed = gzip.compress(bytes(1 << 20))
    (answer,) = asked(lambda handler: say(handler, 200, packed, Content_Encoding="gzip"))
    assert answer.body == packed
    assert server.seen[-1][2]["Accept-Encoding"] == "identity"
