"""`ravnest.Session`: from the model in a script to the trained one, with a fake server."""

import inspect
import json

import pytest
import torch
from session.fake_office import PLAN, Office
from torch import nn

import ravnest
from ravnest import Job, Session
from ravnest.api.views import Me
from ravnest.data.text import text_windows
from ravnest.errors import JobError, ServerError, TokenError
from ravnest.session.results import write_result

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def office():
    with Office() as running:
        yield running


@pytest.fixture
def session(office):
    with Session(office.url, insecure=True) as open_session:
        yield open_session


@pytest.fixture
def submission():
    torch.manual_seed(1)
    return {
        "model": nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)),
        "example_args": (torch.rand(8, 4),),
        "data": (torch.rand(50, 4), torch.randint(3, (50,))),
    }


def test_a_model_goes_out_and_comes_back(session, office, submission, tmp_path, capsys):
    sent = []
    job = session.submit(
        **submission,
        epochs=4,
        batch_size=8,
        name="three kinds",
        start="asked",
        progress=lambda what, done, size: sent.append((done, size)),
    )
    assert isinstance(job, Job)
    assert job.plan() == PLAN
    assert job.state == "planned"
    job.start()
    ended = job.follow()
    assert (ended.state, ended.epoch) == ("done", 4.0)
    assert job.metrics == {"accuracy": 0.975}
    assert "Fused" in capsys.readouterr().out
    submission["model"].load_state_dict(job.result(), strict=True)
    path = job.save(tmp_path / "trained" / "model.pt")
    submission["model"].load_state_dict(torch.load(path, weights_only=True), strict=True)
    assert job.save(tmp_path / "model.safetensors").stat().st_size > 0
    assert sent[-1] == (sent[-1][1], sent[-1][1])
    assert office.specs[job.id].training.epochs == 4


def test_a_submission_that_broke_off_goes_on_where_it_was(session, office, submission):
    """What has arrived is not sent again."""
    office.breaks_after = 3
    with pytest.raises(ServerError, match="goes down"):
        session.submit(**submission)
    assert (office.uploads, office.jobs) == (3, {})
    office.breaks_after = None
    job = session.submit(**submission)
    assert office.uploads == len(office.specs[job.id].files())
    session.submit(**submission, epochs=9)
    assert office.uploads == len(office.specs[job.id].files())


def test_a_mistake_sends_nothing(session, office, submission):
    with pytest.raises(JobError, match="cross_entrpy"):
        session.submit(**submission, loss="cross_entrpy")
    assert office.uploads == 0


def test_what_happens_can_be_heard(session, submission):
    job = session.submit(**submission)
    heard = []
    assert job.follow(heard.append).state == "done"
    assert [one.job.state for one in heard] == ["running", "done"]
    assert [event.text for one in heard for event in one.events] == ["Fused"]


def test_a_pool_that_is_too_small_is_an_error_or_is_waited_for(session, office, submission):
    office.reason = "2 GB more are needed"
    job = session.submit(**submission, start="asked")
    why = r"a plan for job j0 \(waiting: 2 GB more are needed\).*the job stays .*delete\(\)"
    with pytest.raises(ravnest.JobError, match=why):
        job.plan(timeout_s=-1)
    office.reason = ""
    said = []
    again = session.submit(**submission, start="asked")
    office.wait_for("four more hours", again.id)
    assert again.plan(waiting=said.append) == PLAN
    assert said == ["waiting: four more hours", "planning with 4 providers"]


def test_a_script_on_a_busy_pool_waits_and_says_for_what(session, office, submission, caplog):
    """It ended after two minutes, and left its job on the server without a word about it."""
    assert inspect.signature(Job.plan).parameters["timeout_s"].default is None
    office.reason = "no provider is free"
    job = session.submit(**submission, start="asked")
    assert job.plan() == PLAN
    told = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert told == ["job j0 is waiting: no provider is free"]


def test_jobs_are_found_by_id_and_by_name_and_the_last_one(session, office, submission):
    with pytest.raises(JobError, match="no job on"):
        session.job()
    for name in ("one", "other"):
        session.submit(**submission, name=name)
    assert [one.name for one in session.jobs()] == ["one", "other"]
    assert session.job().name == "other"
    assert session.job("j0").name == session.job("one").name == "one"
    with pytest.raises(JobError, match="may be any of j0"):
        session.job("j")


def test_what_numbers_mean_comes_back_beside_the_weights(session, submission, tmp_path, caplog):
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(4, 4)

        def forward(self, tokens):
            return self.table(tokens)

    (tmp_path / "text.txt").write_text("ä \nb" * 30, encoding="utf-8")
    windows = text_windows(tmp_path / "text.txt", 5, tokens="characters")
    example = torch.zeros(4, 5, dtype=torch.int64)
    job = session.submit(Tokens(), (example,), windows, batch_size=4)
    folder = tmp_path / "trained"
    folder.mkdir()
    (folder / "vocabulary.json").write_text("mine")
    names = [path.name for path in write_result(job, folder)]
    weights = "trained_state_dict"
    assert names == [f"{weights}.pt", f"{weights}.safetensors", "vocabulary.json"]
    assert json.loads((folder / "vocabulary.json").read_text("utf-8")) == ["\n", " ", "b", "ä"]
    assert (folder / "vocabulary.1.json").read_text() == "mine"
    other = session.submit(**submission)
    write_result(other, folder)
    assert not (folder / "vocabulary.json").exists(), "it belongs to other weights"
    assert (folder / "vocabulary.2.json").exists()


def test_the_last_job_is_the_last_of_ones_own(session, office, submission):
    mine, theirs = Me(role="requester", name="ada"), Me(role="requester", name="bob")
    for office.me, name in ((mine, "mine"), (theirs, "theirs")):
        session.submit(**submission, name=name)
    office.me = mine
    assert session.job().name == "mine"
    office.me = Me(role="operator", name="ada")
    with pytest.raises(JobError, match=r"ada has submitted no job .*: j0 \(mine, by ada\), j1"):
        session.job()
    for role in ("viewer", "onlooker"):
        office.me = Me(role=role, name="ada")
        assert session.job().name == "theirs", "who owns nothing means the last of all"


def test_steering_says_what_is_wanted(session, office, submission):
    job = session.submit(**submission)
    for action in (job.pause, job.go_on, job.stop, job.resume, job.delete):
        action()
    words = [word for _, word in office.actions]
    assert words == ["pause", "continue", "stop", "resume", "delete"]


@pytest.mark.parametrize(
    ("role", "said"), [("viewer", "this is a viewer token"), ("onlooker", "no token was given")]
)
def test_only_requesters_are_let_on(session, office, submission, role, said):
    """Also where looking needs no token: it is found before a model is captured for minutes."""
    office.me = Me(role=role, name="ada")
    with pytest.raises(TokenError, match=f"{said}; submitting takes a requester token"):
        session.submit(**submission | {"model": "captured by nobody"})


def test_a_session_without_a_server_says_how_to_name_one():
    with pytest.raises(ServerError, match="RAVNEST_SERVER"):
        Session()
