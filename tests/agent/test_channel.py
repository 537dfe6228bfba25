"""How often an agent connects again."""

import asyncio
import contextlib

import pytest

from ravnest.agent import channel
from ravnest.agent.channel import Channel

WAIT_S = 30.0


class ClosedAtOnce:
    """A connection that the server takes, and ends before anything is said."""

    def __aiter__(self):
        return self

    async def __anext__(self):
        raise StopAsyncIteration


class FourPauses:
    """After how many failures each; then it is enough."""

    def __init__(self, longest_s):
        self.longest_s = longest_s
        self.failures = []
        self.channel = None

    def after(self, failures):
        self.failures.append(failures)
        if len(self.failures) == 4:
            self.channel.close()
        return 0.0


class Nobody:
    def opened(self):
        pass

    def heard(self, message):
        pass

    def closed(self, why):
        pass


@pytest.mark.parametrize(("lasts", "failures"), [(False, [0, 1, 2, 3]), (True, [0, 0, 0, 0])])
def test_a_connection_that_is_closed_at_once_counts_as_one_that_failed(
    monkeypatch, lasts, failures
):
    """Two agents with one identity sent each other away twice a second, for ever."""

    @contextlib.asynccontextmanager
    async def open_socket(client, path, *, most):
        yield ClosedAtOnce()

    monkeypatch.setattr(channel, "open_socket", open_socket)
    pauses = FourPauses(longest_s=0.0 if lasts else 3600.0)

    async def talk():
        pauses.channel = Channel(None, Nobody(), pauses)
        async with asyncio.timeout(WAIT_S):
            await pauses.channel.run()

    asyncio.run(talk())
    assert pauses.failures == failures
