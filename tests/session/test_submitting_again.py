"""A submission whose answer was lost is sent again, and makes no second job."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from session.fake_office import Office
from starlette.responses import Response
from torch import nn

from ravnest.api.requests import SUBMISSION_KEY
from ravnest.client.http import BrokenOffError
from ravnest.errors import ServerError
from ravnest.session import Session, submitting


class Forgetful(Office):
    """Takes a job, and the line breaks before all of its answer is said."""

    def __init__(self, losses):
        super().__init__()
        self.losses = losses
        self.by_key = []

    async def _submit(self, request):
        key = request.headers[SUBMISSION_KEY]
        known = dict(self.by_key)
        answer = known.get(key) or await super()._submit(request)
        self.by_key.append((key, answer))
        if self.losses:
            self.losses -= 1
            return Response(b"{", headers={"Content-Length": "1000"})
        return answer


def submit(office):
    with Session(office.url, insecure=True) as session:
        rows = {"x": torch.randn(16, 4), "y": torch.randint(0, 2, (16,))}
        return session.submit(nn.Linear(4, 2), torch.randn(4, 4), rows, batch_size=4)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(submitting, "delay_s", lambda attempt: 0.0)


def test_a_submission_whose_answer_is_lost_is_repeated_under_its_key():
    with Forgetful(losses=2) as office:
        job = submit(office)
        assert [key for key, _ in office.by_key] == [office.by_key[0][0]] * 3
        assert list(office.jobs) == [job.id]


def test_another_submission_has_another_key():
    with Forgetful(losses=0) as office:
        first, second = submit(office), submit(office)
        assert first.id != second.id
        assert len({key for key, _ in office.by_key}) == 2


class Busy(Forgetful):
    """Says a few times that this is not the moment."""

    def __init__(self, *statuses):
        super().__init__(losses=0)
        self.statuses = list(statuses)
        self.keys = []

    async def _submit(self, request):
        self.keys.append(request.headers[SUBMISSION_KEY])
        if self.statuses:
            problem = b'{"error": "not now", "code": "limited"}'
            return Response(problem, self.statuses.pop(0))
        return await super()._submit(request)


def test_a_submission_waits_for_a_server_that_has_no_room_for_it_or_ends(monkeypatch):
    waits = []
    monkeypatch.setattr(submitting, "delay_s", lambda attempt: waits.append(attempt) or 0.0)
    with Busy(*[429] * submitting._ATTEMPTS, 503, 429) as office:
        job = submit(office)
        assert list(office.jobs) == [job.id]
        assert len(set(office.keys)) == 1
        assert waits == [4, 5, 6, 7, 8, 9, 10, 11]


def test_a_submission_does_not_wait_for_ever(monkeypatch):
    monkeypatch.setattr(submitting, "_TRIED_S", -1.0)
    with Busy(429) as office, pytest.raises(ServerError, match="not now"):
        submit(office)
    assert len(office.keys) == 1


def test_a_submission_outlasts_a_server_that_ends_and_is_away_for_a_while(caplog):
    with Busy(503) as office:
        office.losses = 2 * submitting._ATTEMPTS
        job = submit(office)
        assert list(office.jobs) == [job.id]
        assert len(set(office.keys)) == 1
    (told,) = [one for one in caplog.records if one.levelname == "WARNING"]
    assert told.getMessage().endswith("not now; trying again for up to 30 min …")


def test_a_server_that_has_ended_is_not_waited_for_for_ever(monkeypatch):
    ten_minutes = itertools.count(0.0, 600.0)
    monkeypatch.setattr(submitting, "time", SimpleNamespace(monotonic=lambda: next(ten_minutes)))
    with Busy(503) as office:
        office.losses = 1000
        with pytest.raises(BrokenOffError):
            submit(office)
    assert len(office.keys) == 4


class Foreign(Office):
    """Of another release, or none at all."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    async def _submit(self, request):
        return Response(self.answer)


@pytest.mark.parametrize("answer", [b"{}", b'{"id":"\xff"}', b'{"x":' + b"[" * 100_000])
def test_an_answer_that_is_not_understood_is_said_to_be(answer):
    with (
        Foreign(answer) as office,
        pytest.raises(ServerError, match=r"answers to /jobs with .* not understand.* same version"),
    ):
        submit(office)
