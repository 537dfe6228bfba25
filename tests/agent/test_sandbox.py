"""Workers as an agent starts them: what a hostile graph reaches once it has the process."""

import pytest
from made import assignment
from running import Running, assign, run, task, work

from ravnest.agent import errand, joining
from ravnest.api.control import Begin, Hello, Reported
from ravnest.api.machine import Caps
from ravnest.errors import NodeError

GONE = "bubblewrap (bwrap) is not installed"


@pytest.fixture
def owner(tmp_path, monkeypatch):
    """What others must not get: a file, and variables that a worker has no use for."""
    (tmp_path / "owner").mkdir()
    (tmp_path / "owner" / "secret").write_text("")
    for name in ("DATABASE", "PYTHON_TOKEN", "http_proxy"):
        monkeypatch.setenv(name, "SECRET")


@pytest.fixture
def no_sandbox(monkeypatch):
    for module in (joining, errand):
        monkeypatch.setattr(module, "why_not", lambda: GONE)


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize("script", [False, True])
def test_a_worker_reaches_its_own_folder_and_the_network(tmp_path, owner, script):
    """Of a job without a script it had the owner's home, and could do all that the owner can."""

    async def test(server):
        caps = Caps(scripts="sandboxed")
        async with Running(server, tmp_path / "home", caps=caps) as running:
            given = task(server, "look around", script=script)
            await assign(server, given)
            await server.say(7, Begin(assignment=given.id))
            said = await server.hear(Reported)
            assert said.report.notes == ()
            assert (tmp_path / "home/work/a7/mine").exists()
            assert running.told("sandbox") == ["foreign graphs run in a sandbox"]

    run(test, tmp_path)
    assert [path.name for path in (tmp_path / "owner").iterdir()] == ["secret"]


def test_an_owner_without_a_sandbox_is_warned_and_the_server_knows(tmp_path, no_sandbox):
    async def test(server):
        async with Running(server, tmp_path / "home") as running:
            assert (await server.hear(Hello)).facts.no_sandbox == GONE
            assert (await work(server, task(server))).end.outcome == "done"
            (warning,) = running.told("sandbox")
            assert warning.startswith("WARNING")
            assert f"without a sandbox: {GONE}" in warning
            assert "--require-sandbox" in warning

    run(test, tmp_path)


def test_an_owner_who_requires_a_sandbox_does_not_join_without(tmp_path, no_sandbox):
    async def test(server):
        running = Running(server, tmp_path / "home", require_sandbox=True)
        async with running:
            with pytest.raises(NodeError, match=r"--require-sandbox: bubblewrap .* not installed"):
                await running.task

    run(test, tmp_path)


@pytest.mark.parametrize("scripts", ["sandboxed", "always"])
@pytest.mark.parametrize("required", [False, True])
def test_nothing_runs_outside_a_sandbox_that_its_owner_wants(
    tmp_path, no_sandbox, scripts, required
):
    settings = Running.settings(
        None, tmp_path, caps=Caps(scripts=scripts), require_sandbox=required
    )
    refused = {
        kind: errand.reason_against(assignment(script=kind == "script"), settings)
        for kind in ("script", "graph")
    }
    assert (refused["graph"] is not None) == required
    assert (refused["script"] is not None) == (required or scripts == "sandboxed")
    assert all(GONE in reason for reason in refused.values() if reason)
