"""Jobs as files and as arguments, before anything is looked at."""

import re
import sys

import pytest

from ravnest.errors import JobError
from ravnest.session.programs import load_request
from ravnest.session.request import SETTINGS, JobRequest

OWN = {
    "helpers",
    "elsewhere",
    *(f"ravnest_job_{name}" for name in ("both", "helpers", "job", "starred", "train")),
}
PROGRAM = """
import re
import sys
import helpers

def job():
    return {"model": helpers.model, "data": (1, 2), "epochs": int(sys.argv[1]), "max_clusters": 2,
            "optimizer_params": {"lr": 0.1, "momentum": 0.5}}

if __name__ == "__main__":
    raise SystemExit("not meant to be run")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Nothing of the programs stays behind."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    (tmp_path / "helpers.py").write_text("model = 'a model'\ndef rows():\n    return [1, 2, 3]\n")
    yield tmp_path
    for name in OWN & (set(sys.modules) - before):
        del sys.modules[name]


def write(path, text):
    path.write_text(text)
    return path


def test_a_program_returns_what_it_wants(folder):
    before = list(sys.argv)
    request = load_request(write(folder / "job.py", PROGRAM), ["7"])
    assert request.model == "a model"
    assert request.data == (1, 2)
    assert request.training().epochs == 7
    assert request.planning().max_clusters == 2
    assert sys.argv == before


def test_the_command_line_wins(folder):
    path = write(folder / "job.py", PROGRAM)
    overrides = {"epochs": 3, "name": "mine", "optimizer_params": {"lr": 0.5}}
    request = load_request(path, ["7"], overrides)
    assert request.training().epochs == 3
    assert request.name == "mine"
    assert request.optimizer_params == {"lr": 0.5, "momentum": 0.5}


def test_parameters_of_the_optimizer_are_set_one_by_one(folder):
    path = write(folder / "job.py", PROGRAM)
    with pytest.raises(JobError, match=r"optimizer_params is 3; .* optimizer_params.lr=0.1"):
        load_request(path, ["7"], {"optimizer_params": 3})


def test_settings_may_stand_together_or_among_the_others():
    request = JobRequest.of({"model": 1, "data": 2, "settings": {"epochs": 3, "seed": 5}})
    changed = JobRequest.of(request, settings={"epochs": 4}, batch_size=8).training()
    assert (changed.epochs, changed.seed, changed.batch_size) == (4, 5, 8)
    with pytest.raises(JobError, match="no argument 'epoch'; did you mean epochs"):
        JobRequest.of(request, settings={"epoch": 4})
    with pytest.raises(JobError, match="no argument 'nonsense'; there are average_optim, "):
        JobRequest.of(request, settings={"nonsense": 3})


@pytest.mark.parametrize(
    "text",
    [
        "job = dict(model=1, data=2)",
        "from ravnest import JobRequest\njob = JobRequest(model=1, data=2)",
        "from ravnest import JobRequest\ndef job():\n    return JobRequest(model=1, data=2)",
    ],
)
def test_a_job_may_be_written_in_several_ways(folder, text):
    request = load_request(write(folder / "job.py", text))
    assert (request.model, request.data) == (1, 2)


def test_a_toml_file_takes_from_python_what_toml_cannot_say(folder):
    text = """
model = "helpers.py:model"
data = "images"
validation = "helpers.py:rows"
loss = "cross_entropy"
epochs = 4
pipeline = "sync"
optimizer_params = {lr = 0.25}
"""
    request = load_request(write(folder / "job.toml", text))
    assert request.model == "a model"
    assert request.data == str(folder / "images")
    assert request.validation == [1, 2, 3]
    assert request.training().schedule == "sync"
    assert request.optimizer_params == {"lr": 0.25}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("job.py", "", r"job.py has no job\(\): .*function job\(\)"),
        ("job.py", "def job():\n    return 3", "gives int"),
        (
            "train.py",
            "from ravnest import Node\nNode()",
            r"has no job\(\): it is a provider script",
        ),
        (
            "train.py",
            "import ravnest\nravnest.clusterize()",
            'provider script.*"script": "train.py"',
        ),
        ("job.py", "job = dict(model=1)", "a job needs data"),
        ("job.py", "job = dict(model=1, data=2, epoch=3)", "did you mean epochs="),
        (
            "job.py",
            "job = dict(model=1, data=2, setings=3)",
            r"no argument 'setings'(?!.*settings=)",
        ),
        ("job.toml", "model = ", "no TOML"),
        ("job.toml", 'model = "helpers.py:modell"\ndata = 1', "nothing called 'modell'"),
        ("job.txt", "job = dict()", "neither Python"),
    ],
)
def test_a_file_that_is_no_job_says_what_is_missing(folder, name, text, message):
    with pytest.raises(JobError, match=message):
        load_request(write(folder / name, text))


def test_a_file_may_have_both_a_job_and_a_node(folder):
    """Then it says what it wants; the same from a helper, where it is not seen beforehand."""
    both = "from ravnest import Node\ndef job():\n    return dict(model=1, data=2)"
    assert load_request(write(folder / "both.py", both)).model == 1
    write(folder / "elsewhere.py", both)
    starred = "from ravnest import Node\nfrom elsewhere import *"
    assert load_request(write(folder / "starred.py", starred)).data == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "epochs is 0; it must be at least 1"),
        ({"epochs": 10**7}, "epochs is 10000000; it must be at most 1e+06"),
        ({"batch_size": "many"}, "batch_size is 'many'; it must be a whole number"),
        ({"pipeline": "fast"}, "pipeline is 'fast'; it must be 'async' or 'sync'"),
        ({"precision": "fp8"}, "precision is 'fp8'; it must be 'bf16' or 'fp16'"),
        ({"clip_grad_norm": "a"}, "clip_grad_norm is 'a'; it must be a number or left out"),
        ({"idle_gain": 0.5}, "idle_gain is 0.5; it must be at least 1"),
        ({"compression": "c" * 200}, "which cannot be: Expected `str` of length <= 100"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    request = JobRequest.of({"model": 1, "data": 2, **settings})
    with pytest.raises(JobError, match=re.escape(message)):
        request.training() and request.planning()


def test_every_setting_reaches_the_server():
    """The schedule of the pipeline has another name here: `schedule` is the learning rate's."""
    assert {"pipeline", "micro_batches", "epochs", "max_runs"} <= set(SETTINGS)
    assert "schedule" not in SETTINGS
    assert JobRequest.of({"model": 1, "data": 2, "micro_batches": "auto"}).planning()
