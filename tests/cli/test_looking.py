"""`status`, `job` and `token`, against a server that is made up."""

import io
import re
import sys
import types

import msgspec
import pytest
from web.fake_server import Site, token
from web.simulation import JOB, Simulation

from ravnest.api.views import JobDetail, JobView, Overview, ProviderView
from ravnest.cli import main, provider, screen
from ravnest.planning.figures import size
from ravnest.session import Job

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def site():
    simulation = Simulation()
    simulation.advance(25.0)
    with Site(simulation) as running:
        yield running


@pytest.fixture
def ravnest(site, capsys):
    """Runs a command as the operator; what it printed."""

    def run(*argv, code=0, role="operator"):
        where = ["--server", site.url, "--insecure", "--token", token(role)]
        found = main([*argv, *where])
        shown = capsys.readouterr()
        assert found == code, shown.err
        return shown.out if code == 0 else shown.err

    return run


def test_status_shows_everything_the_dashboard_shows(ravnest, site):
    text = ravnest("status")
    now = site.hub.simulation.overview()
    assert all(one.name in text for one in (*now.providers, *now.jobs))
    offered = sum(one.worker_limit_bytes for one in now.providers if one.state != "away")
    assert f"{size(offered)} offered" in text
    assert "cluster 1" in text
    assert "by relay" in text
    assert "% busy" in text
    assert "ring 2 (19.5 MB): workshop-pc, ada-laptop" in text
    assert "The pool holds 61.9 GB of the 74.2 GB" in text
    assert all(one.text in text for one in now.events[-8:])
    assert "\x1b" not in text  # no terminal, no colours
    assert site.url in text.splitlines()[0], "other servers may have the same name"


def test_status_as_json_is_the_overview(ravnest, site):
    found = msgspec.json.decode(ravnest("status", "--json", role="viewer"), type=Overview)
    assert [one.id for one in found.jobs] == list(site.hub.simulation.jobs)


def test_status_says_that_a_server_has_no_sandbox(ravnest, site):
    assert "without a sandbox" not in ravnest("status")
    site.change(lambda simulation: setattr(simulation, "no_sandbox", "bubblewrap is missing"))
    said = "looks at models without a sandbox: bubblewrap is missing"
    assert said in ravnest("status").splitlines()[0]


def test_status_of_an_empty_server_says_what_to_do(capsys):
    with Site(Simulation(machines=0)) as site:
        assert main(["status", "--server", site.url, "--insecure"]) == 0
    text = capsys.readouterr().out
    assert "ravnest token make provider" in text
    assert "ravnest submit" in text


def test_status_goes_on_with_every_change(site, monkeypatch, capsys):
    """Told by the server as it happens; the watching ends with the interruption."""
    written = []

    class Watched(io.StringIO):
        def write(self, text):
            if not text.strip():
                return len(text)
            written.append(text)
            if len(written) == 1:
                site.advance(60.0)
            else:
                raise KeyboardInterrupt
            return len(text)

    monkeypatch.setattr(sys, "stdout", Watched())
    assert main(["status", "--watch", "--json", "--server", site.url, "--insecure"]) == 130
    first, second = (msgspec.json.decode(text, type=Overview) for text in written)
    assert second.server.now == first.server.now + 60.0


def test_a_server_is_remembered(ravnest, capsys):
    ravnest("job", "list")
    assert main(["status"]) == 0
    assert "ada-laptop" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [[], ["--server"]])
def test_a_token_from_the_environment_is_not_written_down(site, home, monkeypatch, argv, capsys):
    monkeypatch.setenv("RAVNEST_SERVER", site.url)
    monkeypatch.setenv("RAVNEST_TOKEN", token("viewer"))
    assert main(["status", "--insecure", *argv, *([site.url] if argv else [])]) == 0
    assert not (home / "servers.json").exists()


def test_without_a_server_the_error_says_how_to_name_one(capsys):
    assert main(["status"]) == 1
    assert "--server" in capsys.readouterr().err


def test_an_unknown_token_is_refused_in_the_servers_words_and_forgotten(ravnest, site, capsys):
    ravnest("job", "list")
    other = token("viewer")[:-4] + "AAAA"
    assert main(["status", "--server", site.url, "--insecure", "--token", other]) == 1
    assert "expired" in capsys.readouterr().err
    assert main(["status"]) == 0, "the one before is still known"


def test_jobs_are_listed(ravnest):
    text = ravnest("job", "list")
    assert "cifar10-resnet18" in text
    found = msgspec.json.decode(ravnest("job", "list", "--json"), type=list[JobView])
    assert found[0].name == "cifar10-resnet18"


def test_a_job_is_shown_by_the_beginning_of_its_id(ravnest, monkeypatch):
    text = ravnest("job", "show", "job-r")
    assert "job-resnet" in text
    assert re.search(r"speed +483 samples/s on average, 102% of the 474 that the plan", text)
    assert "Run 1 begins" in text
    assert "lab-gpu-1" in text
    monkeypatch.delattr(Job, "series")  # it is long, and not part of the answer
    found = msgspec.json.decode(ravnest("job", "show", "job-r", "--json"))
    assert msgspec.convert(found["detail"], JobDetail).job.id == JOB


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["job", "show", "job-x"], "there is no job 'job-x'; the last ones are"),
        (["job", "show", "job-"], "may be any of"),
    ],
)
def test_an_id_that_means_no_single_job_is_an_error(ravnest, argv, message):
    assert message in ravnest(*argv, code=1)


@pytest.mark.parametrize(
    ("word", "action"),
    [(word, word) for word in ("start", "stop", "pause", "continue", "resume")],
)
def test_jobs_are_steered(ravnest, site, word, action):
    text = ravnest("job", word, "job-r")
    assert "job-resnet (cifar10-resnet18)" in text
    assert site.hub.simulation.actions[-1] == (JOB, action)


def test_deleting_asks_first(ravnest, site, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    asked = ravnest("job", "delete", "job-r", code=1)
    assert "(cifar10-resnet18), which is running, with its results? [y/N]" in asked
    assert asked.endswith("not deleted\n")
    assert site.hub.simulation.actions == []
    assert "which was running" in ravnest("job", "delete", "job-r", "--yes")
    assert site.hub.simulation.actions == [(JOB, "delete")]


def test_only_those_who_may_steer_a_job(ravnest):
    refusal = ravnest("job", "stop", "job-r", code=1, role="viewer")
    assert "operator token" in refusal
    assert "error: job job-r" in refusal


def test_a_job_is_followed_to_its_end(ravnest, site):
    text = ravnest("job", "follow", "job-d")
    assert text.splitlines()[-1].endswith("loss 0.041; validation: accuracy 0.978, loss 0.09")


def test_whoever_has_followed_a_job_is_told_how_to_fetch_it(site, capsys):
    assert main(["job", "follow", "job-d", "--server", site.url, "--insecure"]) == 0
    assert capsys.readouterr().err.splitlines()[-1].endswith("ravnest job fetch job-digits")


def test_a_machine_that_has_joined_nothing_has_no_status(home, capsys):
    assert main(["provider", "status"]) == 1
    assert "has joined no server yet" in capsys.readouterr().err
    for name in ("a", "b"):
        (home / "provider" / "identity" / name).mkdir(parents=True)
        text = f'{{"provider": 1, "name": "me", "server": "https://{name}:1"}}'
        (home / "provider" / "identity" / name / "identity.json").write_text(text)
    assert main(["provider", "status"]) == 1
    assert "joined 2 servers, say which: https://a:1, https://b:1" in capsys.readouterr().err


def test_a_slow_line_is_not_shown_as_none(site, capsys):
    """Of 0.1 Mbit/s, which an owner may allow, nothing was left."""
    view = next(iter(site.hub.simulation.providers.values()))
    slow = msgspec.structs.replace(view, up_mbps=0.1, down_mbps=0.25)
    client = types.SimpleNamespace(address=site.url, get=lambda path, type: slow)
    provider._show_status(None, client)
    assert "0.1 Mbit/s up, 0.25 Mbit/s down" in capsys.readouterr().out


def test_a_token_is_printed_alone(ravnest):
    assert ravnest("token", "make", "provider", "--hours", "2") == token("provider") + "\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59, "59 s"), (60, "1 min"), (3700, "1 h 1 min"), (200_000, "2 d 7 h")],
)
def test_durations_have_two_units(seconds, text):
    assert screen.elapsed(seconds) == text


def test_an_epoch_that_has_not_ended_is_not_shown_as_if_it_had():
    far = JobView(id="j", name="n", owner="o", state="running", submitted_at=0.0, epoch=1.996)
    shown = io.StringIO()
    screen.console(shown).print(screen.job_table([far], 0.0), screen.job_facts(far, 0.0))
    assert "1.99 / 1" in shown.getvalue()
    assert "1.99 of 1, step 0" in shown.getvalue()


def test_a_provider_that_is_paused_at_work_is_shown_as_both():
    one = ProviderView(id=1, name="p", state="training", since=0, seen_at=0, paused=True)
    out = io.StringIO()
    screen.console(out).print(screen.provider_table([one]))
    assert "training, then paused" in out.getvalue()
