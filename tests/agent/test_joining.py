"""How an agent comes to be a provider of a server, and how it ends being one."""

import asyncio
import errno
import os
import shutil
import sys

import psutil
import pytest
from running import Running, run, task, train
from toyserver import WAIT_S

from ravnest.agent import identity
from ravnest.agent.identity import load_identity
from ravnest.agent.joining import join
from ravnest.agent.settings import AgentSettings
from ravnest.api.control import (
    HAS_LEFT,
    Ended,
    Hello,
    Leaving,
    Measured,
    Rejected,
    Settled,
)
from ravnest.api.tokens import Token
from ravnest.errors import RunDirError, ServerError, TokenError


def test_an_identity_is_kept_and_needs_no_token_later(tmp_path):
    async def test(server):
        home = tmp_path / "home"
        async with Running(server, home):
            await server.hear(Hello)
        identity = load_identity(home, server.address)
        assert identity.provider == 7
        for path in identity.folder.glob("*"):
            assert path.stat().st_mode & 0o077 == 0
        async with Running(server, home, token=False) as again:
            await server.hear(Hello)
            # While one is at work, there is no second one.
            async with Running(server, home, token=False) as second:
                with pytest.raises(RunDirError, match="--home"):
                    await second.task
            assert not again.task.done()
        assert list(server.credentials.values()) == [7]

    run(test, tmp_path)


@pytest.mark.parametrize("refused", [True, False])
def test_the_server_is_asked_before_this_machine_is_measured(tmp_path, monkeypatch, refused):
    """Which takes seconds: in vain, if the token is not good, or of another server."""
    told = []

    async def test(server):
        server.refuses_tokens = refused
        other = Token.make("provider", b"\1" * 16)
        settings = AgentSettings(address=server.address, home=tmp_path / "home", name="toy")
        with pytest.raises(TokenError, match="expired" if refused else "not the server that"):
            await join(settings, server.token() if refused else other, lambda *it: told.append(it))

    run(test, tmp_path)
    assert told == []


def test_without_identity_and_token_it_says_what_is_missing(tmp_path):
    async def test(server):
        async with Running(server, tmp_path / "home", token=False) as running:
            with pytest.raises(TokenError, match=r"add --token"):
                await running.task
        async with Running(server, tmp_path / "home", token=server.token("viewer")) as running:
            with pytest.raises(TokenError, match=r"role of this token is viewer.*token make prov"):
                await running.task

    run(test, tmp_path)


def test_who_gets_no_good_certificate_has_not_joined(tmp_path):
    """It could not be started again, and nobody would talk to it."""

    async def test(server):
        home = tmp_path / "home"
        server.enrolment = lambda signed: "<html>a proxy's error page</html>"
        async with Running(server, home) as running:
            with pytest.raises(ServerError, match="certificate for this provider is none"):
                await running.task
        assert load_identity(home, server.address) is None
        server.enrolment = None
        async with Running(server, home):
            await server.hear(Measured)

    run(test, tmp_path)


def test_a_provider_that_was_removed_ends_and_joins_anew_only_with_a_token(tmp_path):
    async def test(server):
        home = tmp_path / "home"
        async with Running(server, home) as running:
            await server.hear(Measured)
            await server.say(7, Rejected(reason="this provider\x1b[2J was removed", final=True))
            with pytest.raises(ServerError, match="this provider\ufffd\\[2J was removed"):
                await running.task
        assert load_identity(home, server.address) is None
        async with Running(server, home):
            await server.hear(Measured)
        # The server has forgotten it: with a token at hand it enrols again by itself.
        server.credentials.clear()
        server.credentials["another"] = 6
        async with Running(server, home) as running:
            await server.hear(Measured)
            assert len(running.told("rejected")) == 1

    run(test, tmp_path)


def test_a_provider_whose_owner_takes_it_back_ends_without_complaint(tmp_path):
    async def test(server):
        home = tmp_path / "home"
        async with Running(server, home) as running:
            await server.hear(Measured)
            await server.say(7, Rejected(reason=HAS_LEFT, final=True))
            async with asyncio.timeout(WAIT_S):
                assert await running.task is None
            assert running.told("left") == [HAS_LEFT]
            assert running.told("away") == running.told("rejected") == []
        assert load_identity(home, server.address) is None

    run(test, tmp_path)


def test_an_idle_agent_that_is_asked_to_leave_says_goodbye(tmp_path):
    async def test(server):
        async with Running(server, tmp_path / "home") as running:
            await server.hear(Measured)
            running.agent.leave()
            async with asyncio.timeout(WAIT_S):
                assert await running.task is None
            assert running.told("goodbye") == ["goodbye"]

    run(test, tmp_path)


def test_once_is_once(tmp_path):
    async def test(server):
        async with Running(server, tmp_path / "home", once=True) as running:
            await train(server, task(server))
            await server.hear(Ended)
            await server.say(7, Settled(assignment="a7"))
            async with asyncio.timeout(WAIT_S):
                assert await running.task is None

    run(test, tmp_path)


def test_an_agent_does_not_load_torch():
    import subprocess

    program = (
        "import sys, ravnest.agent.joining, ravnest.client.known; "
        "print(sorted({'torch', 'numpy', 'grpc'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_a_machine_whose_disk_is_full_does_not_enrol(tmp_path, monkeypatch):
    """The server had one more provider, which never came."""

    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    async def test(server):
        monkeypatch.setattr(identity, "write_private", full)
        with pytest.raises(OSError, match="No space left"):
            async with Running(server, tmp_path / "home") as running:
                await running.task
        assert server.credentials == {}

    run(test, tmp_path)


def test_an_identity_that_is_away_for_a_moment_was_not_removed(tmp_path):
    folder = tmp_path / "home" / "identity" / "there"
    folder.mkdir(parents=True)
    (folder / "identity.json").touch()
    removal = identity.Removal(identity.Identity(folder, 1, "x", "credential", "authority"))
    for _ in range(3):
        (tmp_path / "home").rename(tmp_path / "away")
        assert not removal.look()
        (tmp_path / "away").rename(tmp_path / "home")
        assert not removal.look()
    shutil.rmtree(tmp_path / "home")
    assert [removal.look(), removal.look()] == [False, True]


def test_an_identity_on_a_disk_that_is_not_mounted_was_not_removed(tmp_path, monkeypatch):
    """Its worker was killed, and the provider left."""
    folder = tmp_path / "mount" / "home" / "identity" / "there"
    folder.mkdir(parents=True)
    monkeypatch.setattr(identity, "_disk_of", lambda path: 2 if path == folder else 1)
    removal = identity.Removal(identity.Identity(folder, 1, "x", "credential", "authority"))
    shutil.rmtree(tmp_path / "mount" / "home")
    assert not any(removal.look() for _ in range(3))


def test_an_agent_whose_home_was_removed_ends(tmp_path):
    """It stayed in the pool, and could not take what it was assigned."""

    async def test(server):
        home = tmp_path / "home"
        async with Running(server, home) as running:
            await train(server, task(server, "patience"))
            process = psutil.Process(running.agent._errand.worker.pid)
            shutil.rmtree(home)
            assert (await server.hear(Leaving)).now
            with pytest.raises(ServerError, match=r"identity of this provider is gone .*home"):
                async with asyncio.timeout(WAIT_S):
                    await running.task
            assert not process.is_running()

    run(test, tmp_path)


def test_a_disk_that_is_full_is_cleared_before_anything_is_written(tmp_path, monkeypatch):
    """A script had filled it, the agent was killed, and no other one could be started."""
    home = tmp_path / "home"
    rest = home / "gone" / "rest"
    written = []

    def full(path, content):
        written.append((path.name, rest.exists()))
        raise OSError(errno.ENOSPC, "No space left on device")

    async def test(server):
        async with Running(server, home):
            await server.hear(Measured)
        rest.mkdir(parents=True)
        monkeypatch.setattr(identity, "write_private", full)
        async with Running(server, home, token=False):
            await server.hear(Measured)

    run(test, tmp_path)
    assert written == [("identity.json", False)]
