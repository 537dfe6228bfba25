"""`ravnest doctor`: what it says of machines and servers that are well, and of others."""

import datetime
import socket
import subprocess
import sys
import types
from pathlib import Path

import msgspec
import pytest
from made import CAPS, FACTS
from servers import running_server
from web.fake_server import Site, token
from web.simulation import Simulation

from ravnest.agent.identity import enrol
from ravnest.api.tokens import Token
from ravnest.cli import main
from ravnest.cli.doctor import machine, server
from ravnest.cli.doctor.findings import Finding, examine
from ravnest.client.address import ServerAddress
from ravnest.errors import ServerError
from ravnest.sandbox import bubblewrap as sandbox
from ravnest.sandbox import confine

pytestmark = pytest.mark.usefixtures("home")


def only(found):
    (one,) = found
    return one


def test_a_machine_that_is_well_passes(capsys):
    code = main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert code == (1 if any(line.startswith("BROKEN") for line in lines) else 0)
    checks = [line.split()[1] for line in lines if not line.startswith(" ")]
    assert {"python", "ravnest", "torch", "gpu", "memory", "disk", "port", "sandbox"} <= set(checks)
    assert "none is known on this machine yet" in lines[-1]


def test_a_list_of_servers_that_is_damaged_is_said_to_be(home, capsys):
    home.mkdir()
    (home / "servers.json").write_text("{")
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert f"BROKEN  server    {home / 'servers.json'} cannot be understood" in shown
    assert "none is known" not in shown


def test_json_says_the_same(capsys):
    main(["doctor", "--json"])
    found = msgspec.json.decode(capsys.readouterr().out, type=list[Finding])
    assert found[0].check == "python"
    assert found[0].verdict == "ok"


def test_a_port_that_is_taken_is_broken_with_the_remedy(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["doctor", "--listen", where]) == 1
    shown = capsys.readouterr().out
    assert f"BROKEN  port      nothing can listen at {where}: Address already in use" in shown
    assert "--no-listen" in shown


@pytest.mark.parametrize("listen", ["somewhere", "9000", "127.0.0.1:99999", "203.0.113.1:80"])
def test_an_address_that_is_none_is_broken(listen):
    assert only(machine.port(listen)).verdict == "broken"


@pytest.mark.parametrize(
    ("free", "verdict"), [(10**8, "broken"), (5 * 10**9, "note"), (10**12, "ok")]
)
def test_disk_space_is_judged(monkeypatch, tmp_path, free, verdict):
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=free))
    assert only(machine.disk(tmp_path / "not" / "there" / "yet")).verdict == verdict


@pytest.mark.parametrize(("version", "verdict"), [("2.5.1", "broken"), ("2.13.0+cpu", "ok")])
def test_the_release_of_torch_is_judged(monkeypatch, version, verdict):
    import torch

    monkeypatch.setattr(torch, "__version__", version)
    assert only(machine.torch_build()).verdict == verdict


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_each_gpu_is_told_whoever_made_it(monkeypatch, kind):
    import torch

    module, other = getattr(torch, kind), {"cuda": torch.xpu, "xpu": torch.cuda}[kind]
    monkeypatch.setattr(other, "is_available", lambda: False)
    monkeypatch.setattr(module, "is_available", lambda: True)
    monkeypatch.setattr(module, "device_count", lambda: 2)
    facts = types.SimpleNamespace(name="A card", total_memory=8 * 10**9)
    monkeypatch.setattr(module, "get_device_properties", lambda number: facts)
    texts = [finding.text for finding in machine.gpu()]
    assert [text.split(" with ")[0] for text in texts] == [f"{kind}:{n} is A card" for n in (0, 1)]


def test_a_gpu_that_torch_cannot_use_is_said(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(machine, "has_driver", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "built without CUDA" in only(machine.gpu()).text
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert "nvidia-smi" in only(machine.gpu()).remedy


def test_a_sandbox_that_does_not_work_is_said(monkeypatch):
    """It is tried as an agent makes it: with another command it might work, or not."""
    monkeypatch.setattr(machine, "why_not", sandbox.why_not.__wrapped__)
    monkeypatch.setattr(machine.shutil, "which", lambda _: None)
    assert "bubblewrap (bwrap) is not installed" in only(machine.sandbox()).text
    monkeypatch.setattr(machine.shutil, "which", lambda _: "/usr/bin/bwrap")
    tried = []

    def run(command, **_):
        tried.append(command)
        return subprocess.CompletedProcess([], 1, "", "Operation not permitted")

    monkeypatch.setattr(sandbox.subprocess, "run", run)
    # It keeps what it has found out, and would tell other tests.
    monkeypatch.setattr(sandbox, "_user_namespace", lambda: ("--unshare-user",))
    found = only(machine.sandbox())
    assert "Operation not permitted" in found.text
    assert "sysctl" in found.remedy
    assert all(f" {each}" in found.remedy for each in confine._AUDIT)
    command = tried[-1]  # after the one for its version
    start = command.index(sys.executable, command.index(str(sandbox._CONFINE)))
    folder = Path(command[command.index("--bind") + 1])
    policy = sandbox.Policy(folder, folder.parent, network=False)
    assert command == sandbox.sandboxed(command[start:], policy)


def test_a_check_that_fails_itself_does_not_end_the_others():
    def fails():
        raise ServerError("no way")
        yield

    found = list(examine({"first": fails, "python": machine.python}))
    assert [(one.check, one.verdict) for one in found] == [("first", "broken"), ("python", "ok")]
    assert found[0].text == "no way"


# ---- the server ----------------------------------------------------------------------------------


@pytest.fixture
def site():
    with Site(Simulation(), open=False) as running:
        yield running


def visit(capsys, url, *more, code=0):
    assert main(["doctor", url, "--insecure", "--json", *more]) == code
    found = msgspec.json.decode(capsys.readouterr().out, type=list[Finding])
    return {one.check: one for one in found}


def test_a_server_that_is_well_passes(site, capsys):
    found = visit(capsys, site.url, "--token", token("viewer"))
    verdicts = {name: found[name].verdict for name in ("server", "clock", "token", "links")}
    assert set(verdicts.values()) == {"ok"}
    assert "takes this viewer token" in found["token"].text


def test_a_token_that_is_not_accepted_is_broken(site, capsys):
    other = token("viewer")[:-4] + "AAAA"
    found = visit(capsys, site.url, "--token", other, code=1)
    assert found["token"].verdict == "broken"
    assert "expired" in found["token"].text
    assert "ravnest token make" in found["token"].remedy


@pytest.mark.parametrize("fault", ["revoked", "expired", "used as often"])
def test_a_provider_token_is_shown_to_the_server(tmp_path, capsys, fault):
    with running_server(tmp_path / "server", tls=False) as running:
        given = running.token("provider", uses=1)
        found = visit(capsys, running.url, "--token", given)
        assert found["token"].verdict == "ok"
        assert "good for `ravnest join`" in found["token"].text
        if fault == "revoked":
            with running.client(running.operator) as operator:
                operator.delete(f"tokens/{Token.parse(given).id}").raise_for_status()
        elif fault == "expired":
            running.ready.service.gate._clock = lambda: 4e9
        else:
            address = ServerAddress.parse(running.url, insecure=True)
            enrol(tmp_path, address, Token.parse(given), name="x", facts=FACTS, caps=CAPS)
        found = visit(capsys, running.url, "--token", given, code=1)
        assert found["token"].verdict == "broken"
        assert fault in found["token"].text
        assert "ravnest token make" in found["token"].remedy


@pytest.mark.parametrize("role", ["provider", "viewer"])
def test_a_token_is_good_also_where_many_others_were_wrong(tmp_path, capsys, role):
    with running_server(tmp_path / "server", tls=False) as running:
        with running.client("nonsense") as stranger:
            answers = (stranger.get("whoami").status_code for _ in range(1000))
            assert 429 in answers
        found = visit(capsys, running.url, "--token", running.token(role))
        assert found["token"].verdict == "ok"


def test_a_server_that_is_not_there_is_broken(capsys):
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    found = visit(capsys, url, code=1)
    assert "connection refused" in found["server"].text
    assert "token" not in found


def test_what_is_no_server_is_said(site, capsys, monkeypatch):
    monkeypatch.setattr(server, "Health", list)
    assert "not as a Ravnest server" in visit(capsys, site.url, code=1)["server"].text


def test_a_name_without_an_address_is_broken(capsys):
    found = visit(capsys, "http://no-such-host.invalid:8470", code=1)
    assert found["name"].verdict == "broken"


@pytest.mark.parametrize(
    ("seconds", "verdict", "word"),
    [
        (0, "ok", "agrees"),
        (60, "note", "behind"),
        (-60, "note", "ahead"),
        (9999, "broken", "behind"),
    ],
)
def test_clocks_are_compared(site, capsys, monkeypatch, seconds, verdict, word):
    def theirs(text):
        now = datetime.datetime.now(datetime.UTC)
        return now + datetime.timedelta(seconds=seconds)

    monkeypatch.setattr(server.email.utils, "parsedate_to_datetime", theirs)
    found = visit(capsys, site.url, code=1 if verdict == "broken" else 0)
    assert found["clock"].verdict == verdict
    assert word in found["clock"].text


@pytest.mark.parametrize("token_too", [False, True])
def test_a_machine_that_has_joined_hears_what_the_server_knows_of_it(
    tmp_path, home, capsys, token_too
):
    """By its own credential: whoever lends a machine need not have a token to look with."""
    with running_server(tmp_path / "server", tls=False, dashboard="token") as running:
        given = Token.parse(running.token("provider"))
        more = ["--token", running.token("viewer")] if token_too else []
        address = ServerAddress.parse(running.url, insecure=True)
        own = enrol(home / "provider", address, given, name="shed", facts=FACTS, caps=CAPS)
        found = visit(capsys, running.url, *more)
        assert f"provider {own.provider} (shed), away" in found["provider"].text
        assert "ravnest join" in found["provider"].remedy
        assert "Mbit/s to it" in found["links"].text
        with running.client(running.operator) as operator:
            removal = operator.post(f"providers/{own.provider}/action", json={"action": "remove"})
            removal.raise_for_status()
        found = visit(capsys, running.url, *more, code=1)
        assert f"does not know provider {own.provider} any more" in found["provider"].text
        assert "join again" in found["provider"].remedy
        assert "measured when this machine joins" in found["links"].text


@pytest.mark.parametrize("options", [[], ["--home"]])
def test_on_a_provider_the_server_that_it_has_joined_is_checked(tmp_path, home, capsys, options):
    """It said that no server is known, on a machine that works for one."""
    folder = tmp_path / "elsewhere" if options else home / "provider"
    with running_server(tmp_path / "server", dashboard="token") as running:
        given = Token.parse(running.token("provider"))
        enrol(folder, ServerAddress.parse(running.url), given, name="shed", facts=FACTS, caps=CAPS)
        main(["doctor", "--json", *options, *([str(folder)] if options else [])])
    told = msgspec.json.decode(capsys.readouterr().out, type=list[Finding])
    found = {one.check: one for one in told}
    assert running.url in found["server"].text
    assert "a machine that has joined needs none" in found["token"].text
    assert "(shed), away" in found["provider"].text


@pytest.mark.parametrize(
    ("number", "verdict", "word"),
    [(2, "ok", "reached directly"), (4, "note", "relay"), (5, "note", "ravnest join")],
)
def test_how_a_machine_is_reached_is_said(number, verdict, word):
    (one,) = [one for one in Simulation().overview().providers if one.id == number]
    found = server._known(one)
    assert found.verdict == verdict
    assert word in found.text + found.remedy
