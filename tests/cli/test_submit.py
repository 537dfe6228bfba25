"""`ravnest submit` with files as people write them, and a server that is fake."""

import io
import sys

import pytest
import torch
from rich.console import Console
from rich.progress import Progress
from session.fake_office import PLAN, Office

from ravnest.api.views import Me, PlanView, Series
from ravnest.cli import main

OWN = "ravnest_job_"
PROGRAM = """
import sys
import torch
from torch import nn

def job():
    torch.manual_seed(1)
    print("loading", *sys.argv[1:])
    return {
        "model": nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)),
        "example_args": (torch.rand(8, 4),),
        "data": (torch.rand(50, 4), torch.randint(3, (50,))),
        "optimizer": "sgd",
        "optimizer_params": {"momentum": 0.5},
        "epochs": 2,
    }
"""


@pytest.fixture(autouse=True)
def _project(tmp_path, monkeypatch, home):
    """A folder of somebody who has never used a server."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(PROGRAM)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(OWN):
            del sys.modules[name]


@pytest.fixture
def office():
    with Office() as running:
        yield running


@pytest.fixture
def submit(office, capsys, monkeypatch):
    def run(*argv, code=0, typed="", file="job.py"):
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        found = main(["submit", file, "--server", office.url, "--insecure", *argv])
        shown = capsys.readouterr()
        assert found == code, shown.err
        return shown

    return run


def test_one_command_from_the_file_to_the_trained_model(submit, office, tmp_path):
    shown = submit("--yes", "-o", "trained")
    lines = shown.out.splitlines()
    assert lines[:2] == ["loading", PLAN]
    assert lines[-1] == "score: accuracy 0.975"
    assert "speed:" not in shown.out  # nothing is known of it
    state = torch.load("trained/trained_state_dict.pt", weights_only=True)
    torch.manual_seed(1)
    assert torch.equal(state["0.weight"], torch.nn.Linear(4, 8).weight)
    assert (tmp_path / "trained" / "trained_state_dict.safetensors").exists()
    steps = ("reading job.py", "capturing Sequential", "packing the data", "uploading ")
    assert [step for step in steps if step not in shown.err] == []
    assert "submitted j0 (job) to" in shown.err
    assert office.specs["j0"].start == "at once"


def test_quietly(submit):
    (line,) = submit("--yes", "--detach", "--quiet").err.splitlines()
    assert line.startswith("submitted j0 (job) to")


def test_the_weights_of_another_job_are_moved_aside(submit, tmp_path):
    submit("--yes")
    folder = tmp_path / "trained"
    before = (folder / "trained_state_dict.safetensors").read_bytes()
    assert "is now" not in submit("--yes").err  # the same weights again: nothing to keep
    (tmp_path / "job.py").write_text(PROGRAM.replace("manual_seed(1)", "manual_seed(2)"))
    shown = submit("--yes").err
    assert "was there already, and is now trained_state_dict.1.pt" in shown
    assert (folder / "trained_state_dict.1.safetensors").read_bytes() == before
    assert (folder / "trained_state_dict.safetensors").read_bytes() != before
    names = ("trained_state_dict", "trained_state_dict.1")
    endings = ("pt", "safetensors")
    assert {one.name for one in folder.iterdir()} == {f"{n}.{e}" for n in names for e in endings}


def test_the_plan_is_shown_before_it_starts(submit, office):
    shown = submit(typed="y\n")
    assert PLAN in shown.out
    assert "Start training?" in shown.err
    assert office.specs["j0"].start == "asked"
    assert office.actions == [("j0", "start")]


@pytest.mark.parametrize(("typed", "code"), [("n\n", 0), ("", 1)])
def test_without_consent_the_job_stays_as_it_is(submit, office, tmp_path, typed, code):
    shown = submit(typed=typed, code=code)
    assert "ravnest job start j0" in shown.err
    assert office.actions == []
    assert not (tmp_path / "trained").exists()


@pytest.mark.parametrize(
    ("file", "name"), [("my job!.py", "my job"), ("übung.py", "übung"), ("-.py", "Sequential")]
)
def test_a_job_is_called_like_its_file_as_far_as_names_go(submit, office, tmp_path, file, name):
    (tmp_path / file).write_text(PROGRAM)
    submit("--yes", "--detach", file=str(tmp_path / file))
    assert [spec.name for spec in office.specs.values()] == [name]


def test_options_override_what_the_file_says(submit, office):
    options = ["--epochs", "7", "--batch-size", "5", "--lr", "0.25", "--name", "mine"]
    more = ["--set", "max-clusters=2", "--set", "metrics=['accuracy']", "--set", "pipeline=sync"]
    shown = submit("--yes", "--detach", *options, *more, "--", "fast", "--deep")
    assert shown.out.splitlines() == ["loading fast --deep", "j0"]
    spec = office.specs["j0"]
    assert (spec.name, spec.training.epochs, spec.training.batch_size) == ("mine", 7, 5)
    assert spec.recipe.optimizer.params == {"momentum": 0.5, "lr": 0.25}
    assert spec.planning.max_clusters == 2
    assert spec.training.schedule == "sync"
    assert spec.recipe.metrics[0].name == "accuracy"


def test_a_pool_that_is_too_small_is_waited_for(submit, office):
    office.reason = "2 GB more are needed"
    shown = submit("--detach", typed="y\n")
    told = shown.err.splitlines()
    steps = [
        "the server checks the model …",
        "waiting: 2 GB more are needed",
        "planning with 4 providers",
    ]
    assert [line for line in told if line in steps] == steps
    assert PLAN in shown.out


def test_interrupted_it_says_how_to_come_back(submit, monkeypatch):
    def interrupted(job, **_):
        raise KeyboardInterrupt

    monkeypatch.setattr("ravnest.session.job.Job.follow", interrupted)
    assert "ravnest job follow j0" in submit("--yes", code=130).err


@pytest.mark.parametrize(
    ("options", "told"),
    [(["--yes"], "goes on without you: ravnest job follow j0"), ([], "ravnest job start j0")],
)
def test_interrupted_before_there_is_a_plan_it_says_what_becomes_of_the_job(
    submit, monkeypatch, options, told
):
    def interrupted(job, *_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("ravnest.session.job.Job.plan", interrupted)
    assert told in submit(*options, code=130).err


@pytest.mark.parametrize("at", ["start", "stop"])
def test_an_interrupt_leaves_the_cursor_visible(submit, monkeypatch, at):
    """However early or late it comes."""
    out = Console(file=io.StringIO(), force_terminal=True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("ravnest.cli.screen.console", lambda *_: out)

    stop = Progress.stop

    def interrupted(bars):
        stop(bars)  # so that nothing else writes
        out.show_cursor(False)
        raise KeyboardInterrupt

    monkeypatch.setattr(Progress, at, interrupted)
    submit("--yes", code=130)
    assert out.file.getvalue().endswith("\x1b[?25h")


def test_in_the_end_its_speed_is_compared_with_the_plan(submit, office):
    office.plan = PlanView(
        steps_per_s=100.0,
        single_machine_steps_per_s=90.0,
        batch_size=16,
        parameters=1,
        model="Sequential",
        clusters=1,
        providers=2,
    )
    office.series = Series(points={"train/loss@0": ((1, 0.1, 10.0, 0.5), (41, 4.0, 20.0, 0.4))})
    shown = submit("--yes", "--batch-size", "16").out.splitlines()
    assert shown[-2] == (
        "speed: 64 samples/s on average, 4% of the 1,600 that the plan has expected: "
        "is something else running on the machines?"
    )


def test_an_error_of_the_file_is_shown_as_python_shows_it(submit, tmp_path):
    (tmp_path / "job.py").write_text("rows = []\n\ndef job():\n    return rows[3]\n")
    shown = submit(code=1).err
    assert "IndexError" in shown
    assert "job.py" in shown
    assert "programs.py" not in shown
    assert "load_request" not in shown


def test_a_module_that_is_missing_is_named_with_what_brings_it(submit, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    (tmp_path / "job.py").write_text("import sklearn\n")
    shown = submit(code=1).err
    assert "ModuleNotFoundError" in shown
    assert shown.splitlines()[-1] == "sklearn comes with: pip install 'scikit-learn'"


def test_mistakes_of_a_job_are_one_line(submit, office, tmp_path):
    (tmp_path / "job.py").write_text(PROGRAM.replace('"sgd"', '"sdg"'))
    assert "did you mean 'sgd'" in submit("--yes", code=1).err
    assert "KEY=VALUE" in submit("--set", "fast", code=2).err
    whole = submit("--set", "optimizer_params=3", "--lr", "0.1", code=2).err
    assert "'optimizer_params.lr=0.1' sets a part of optimizer_params" in whole
    assert "not a number that ends" in submit("--lr", "nan", code=2).err
    assert office.uploads == 0


def test_a_token_that_cannot_submit_is_found_before_the_file_runs(submit, office):
    office.me = Me(role="provider", name="ada")
    shown = submit(code=1)
    assert "this is a provider token" in shown.err
    assert "loading" not in shown.out
