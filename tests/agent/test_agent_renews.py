"""An agent whose certificate ends soon: it says so, and works on whatever comes of it."""

import pytest
from running import Running, run

from ravnest.api.control import Measured
from ravnest.errors import ServerError


@pytest.mark.parametrize(("outcome", "word"), [(True, "renewed"), (None, "renewing")])
def test_the_certificate_is_renewed_when_the_server_is_there(tmp_path, monkeypatch, outcome, word):
    def due(identity, client, now):
        if outcome is None:
            raise ServerError("there is nothing at this address")
        return outcome

    monkeypatch.setattr("ravnest.agent.upkeep.renew_if_due", due)

    async def story(server):
        async with Running(server, tmp_path / "home") as running:
            await server.hear(Measured)
            assert len(running.told(word)) == 1

    run(story, tmp_path)
