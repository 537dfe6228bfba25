"""Jobs on their way in: what happens while one is looked at, and that none becomes two."""

import asyncio
import contextlib
import hashlib
import http.client
import os
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from a_job import make_job, submit, upload
from fake_agent import FakeAgent
from servers import TIMEOUT_S, running_server

from ravnest.api.requests import SUBMISSION_KEY
from ravnest.server.changes import Remove
from ravnest.server.folders import blob_key, owner_key
from ravnest.server.planjob.outcome import PlanOutcome
from ravnest.server.service import forgetting, intake, ratelimit
from ravnest.server.service.keeping import ABANDONED_S
from ravnest.server.service.specs import HASHES, hashes_in
from ravnest.server.service.views import Progress
from ravnest.server.store import open_store


class Desk:
    """Where models are checked: each waits here until it is let through."""

    def __init__(self):
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()
        self.outcome = PlanOutcome()
        self.owners = []

    async def do(self, folder, order):
        self.owners.append(order.owner)
        self.loop = asyncio.get_running_loop()
        self.entered.release()
        await self.loop.run_in_executor(None, self.open.wait, TIMEOUT_S)
        return self.outcome


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_job(tmp_path_factory.mktemp("job"))


@contextlib.contextmanager
def held_server(folder, **options):
    with running_server(folder, **options) as server:
        desk = Desk()
        server.ready.service.workshop.do = desk.do
        with (
            server.client(server.token("requester")) as client,
            ThreadPoolExecutor(4) as threads,
        ):
            try:
                yield server, client, desk, threads
            finally:
                desk.open.set()


def post(client, spec, key=None, spaces=0):
    headers = {SUBMISSION_KEY: key} if key else {}
    content = msgspec.json.encode(spec) + b" " * spaces
    return client.post("jobs", content=content, headers=headers, timeout=60)


def delete(client, job):
    return client.post(f"jobs/{job}/action", json={"action": "delete"})


def here(server):
    """Hashes of the files that are kept."""
    return {path.name for path in server.ready.service.folders.blobs.glob("*/*")}


def is_held(desk):
    assert desk.entered.acquire(timeout=TIMEOUT_S)


def test_files_of_a_job_that_is_looked_at_stay_when_another_one_is_deleted(tmp_path, made):
    with held_server(tmp_path) as (server, client, desk, threads):
        upload(client, made[1])
        desk.open.set()
        other = submit(client, made[0])["id"]
        is_held(desk)
        desk.open.clear()
        coming = threads.submit(post, client, made[0])
        is_held(desk)
        assert delete(client, other).status_code == 204
        desk.open.set()
        job = coming.result(TIMEOUT_S).json()["id"]
        assert here(server) == {*made[1]}
        assert delete(client, job).status_code == 204
        assert here(server) == set()


def test_files_that_somebody_was_told_are_here_stay_when_their_job_is_deleted(tmp_path, made):
    """Whoever was told so does not upload them, and submits a job that needs them."""
    with held_server(tmp_path) as (server, client, desk, _):
        desk.open.set()
        upload(client, made[1])
        job = submit(client, made[0])["id"]
        wanted = made[0].train.shards[0].files[0].sha256
        assert client.head(f"blobs/{wanted}").status_code == 200
        assert delete(client, job).status_code == 204
        assert here(server) == {wanted}
        upload(client, {sha256: path for sha256, path in made[1].items() if sha256 != wanted})
        again = submit(client, made[0])["id"]
        assert delete(client, again).status_code == 204
        assert here(server) == set()


def test_a_job_whose_files_are_gone_when_it_was_looked_at_is_refused(tmp_path, made):
    with held_server(tmp_path) as (server, client, desk, threads):
        upload(client, made[1])
        coming = threads.submit(post, client, made[0])
        is_held(desk)
        sha256 = made[0].train.shards[0].files[0].sha256
        server.ready.service.files.forget({blob_key(owner_key("requester", "requester"), sha256)})
        desk.open.set()
        assert coming.result(TIMEOUT_S).status_code == 409
        assert client.get("jobs").json() == []
        assert not list(server.ready.service.folders.jobs.iterdir())


def test_a_model_is_checked_in_the_name_of_whoever_submits_it(tmp_path, made):
    """Everybody gets a turn, so it matters whose it is."""
    with held_server(tmp_path) as (server, _, desk, _):
        desk.open.set()
        for name in ("ada", "grace"):
            with server.client(server.token("requester", name=name)) as client:
                upload(client, made[1])
                submit(client, made[0])
        assert desk.owners == ["ada", "grace"]


def test_jobs_that_are_looked_at_count_among_those_there_may_be(tmp_path, made):
    with held_server(tmp_path, most_jobs=1) as (_, client, desk, threads):
        upload(client, made[1])
        first = threads.submit(post, client, made[0])
        is_held(desk)
        refused = post(client, made[0])
        assert (refused.status_code, "as many jobs" in refused.text) == (409, True)
        desk.open.set()
        assert first.result(TIMEOUT_S).status_code == 200
        assert post(client, made[0]).status_code == 409


def test_few_submissions_of_one_token_are_on_their_way_at_once(tmp_path, made, monkeypatch):
    monkeypatch.setattr(intake, "MOST_AT_ONCE", 1)
    with held_server(tmp_path) as (server, client, desk, threads):
        upload(client, made[1])
        first = threads.submit(post, client, made[0], "submission-1")
        is_held(desk)
        for key in ("submission-1", "submission-2"):
            refused = post(client, made[0], key)
            assert (refused.status_code, "1 submissions with" in refused.text) == (429, True)
            assert refused.headers["Retry-After"]
        with server.client(server.token("requester")) as other:
            upload(other, made[1])
            second = threads.submit(post, other, made[0])
            is_held(desk)
            desk.open.set()
            assert {one.result(TIMEOUT_S).status_code for one in (first, second)} == {200}
        assert post(client, made[0]).status_code == 200


def test_large_submissions_are_in_memory_only_within_a_bound(tmp_path, made, monkeypatch):
    monkeypatch.setattr(ratelimit, "MAX_BYTES_PER_CALLER", 300_000)
    monkeypatch.setattr(ratelimit, "MAX_BYTES", 400_000)
    spaces = 300_000
    with held_server(tmp_path) as (server, client, desk, threads):
        upload(client, made[1])
        coming = [threads.submit(post, client, made[0], None, spaces)]
        is_held(desk)
        refused = post(client, made[0], None, spaces)
        assert (refused.status_code, "of this caller" in refused.text) == (429, True)
        with server.client(server.token("requester")) as other:
            upload(other, made[1])
            refused = post(other, made[0], None, spaces)
            assert (refused.status_code, "all requests that" in refused.text) == (429, True)
            for one in (client, other):
                coming.append(threads.submit(post, one, made[0]))
                is_held(desk)
            desk.open.set()
            assert {one.result(TIMEOUT_S).status_code for one in coming} == {200}
            assert post(other, made[0], None, spaces).status_code == 200
        assert server.ready.service.desk.memory.in_use == 0


def test_a_submission_that_is_sent_again_is_still_one_job(tmp_path, made):
    with held_server(tmp_path) as (server, client, desk, threads):
        upload(client, made[1])
        first = threads.submit(post, client, made[0], "submission-1")
        is_held(desk)
        again = threads.submit(post, client, made[0], "submission-1")
        desk.open.set()
        job = first.result(TIMEOUT_S).json()["id"]
        assert again.result(TIMEOUT_S).json()["id"] == job
        assert post(client, made[0], "submission-1").json()["id"] == job
        assert len(client.get("jobs").json()) == 1
        with server.client(server.token("requester")) as other:
            upload(other, made[1])
            assert post(other, made[0], "submission-1").json()["id"] != job
        assert post(client, made[0], "submission-2").json()["id"] != job
        assert post(client, made[0], "no key!").status_code == 400


def test_the_key_of_one_submission_is_not_taken_for_another(tmp_path, made):
    other = msgspec.structs.replace(made[0], name="another one")
    with held_server(tmp_path) as (_, client, desk, threads):
        upload(client, made[1])
        first = threads.submit(post, client, made[0], "submission-1")
        is_held(desk)
        refused = [post(client, other, "submission-1")]
        desk.open.set()
        assert first.result(TIMEOUT_S).status_code == 200
        refused.append(post(client, other, "submission-1"))
        assert [(one.status_code, "has one of its own" in one.text) for one in refused] == [
            (409, True)
        ] * 2
        assert [job["name"] for job in client.get("jobs").json()] == [made[0].name]


def test_a_submission_is_known_again_after_a_restart(tmp_path, made):
    with held_server(tmp_path) as (_, client, desk, _threads):
        desk.open.set()
        upload(client, made[1])
        job = post(client, made[0], "submission-1").json()["id"]
        bearer = client.headers["Authorization"].removeprefix("Bearer ")
    with running_server(tmp_path) as server, server.client(bearer) as client:
        assert post(client, made[0], "submission-1").json()["id"] == job


def test_a_refused_submission_is_refused_again_and_can_be_repeated(tmp_path, made):
    with held_server(tmp_path) as (_, client, desk, _threads):
        desk.open.set()
        upload(client, made[1])
        desk.outcome = PlanOutcome(error="it has an operator that nobody knows")
        for _ in range(2):
            refused = post(client, made[0], "submission-1")
            assert (refused.status_code, "was refused: it has" in refused.text) == (400, True)
        desk.outcome = PlanOutcome(error="the process ended with -9", crashed=True)
        refused = post(client, made[0], "submission-1")
        assert (refused.status_code, "could not be checked" in refused.text) == (400, True)
        desk.outcome = PlanOutcome()
        assert post(client, made[0], "submission-1").status_code == 200


def test_a_token_that_is_revoked_while_its_job_is_checked_makes_none(tmp_path, made):
    with held_server(tmp_path) as (server, _, desk, threads):
        bearer = server.token("requester", name="mallory")
        with server.client(bearer) as client, server.client(server.operator) as operator:
            upload(client, made[1])
            coming = threads.submit(post, client, made[0])
            is_held(desk)
            id = next(
                one["id"] for one in operator.get("tokens").json() if one["name"] == "mallory"
            )
            assert operator.delete(f"tokens/{id}").status_code == 204
            desk.open.set()
            refused = coming.result(TIMEOUT_S)
            assert (refused.status_code, "revoked" in refused.text) == (401, True)
            assert operator.get("jobs").json() == []
        assert not list(server.ready.service.folders.jobs.iterdir())


def test_whoever_submits_when_the_server_ends_is_told_to_come_again(tmp_path, made, caplog):
    """At once, not when the check would have ended."""
    with held_server(tmp_path) as (server, client, desk, threads):
        upload(client, made[1])
        coming = threads.submit(post, client, made[0], "submission-1")
        is_held(desk)
        server.ready.stop()
        told = coming.result(TIMEOUT_S)
        assert (told.status_code, "the server ends" in told.text) == (503, True)
        assert told.headers["Retry-After"]
        bearer = client.headers["Authorization"].removeprefix("Bearer ")
        desk.open.set()
        server.thread.join(TIMEOUT_S)
    assert "Traceback" not in caplog.text
    with running_server(tmp_path) as server, server.client(bearer) as client:
        assert not list(server.ready.service.folders.jobs.iterdir())
        assert post(client, made[0], "submission-1").status_code == 200


def test_of_two_who_delete_a_job_one_is_told_that_it_is_gone(tmp_path, made):
    with held_server(tmp_path) as (server, client, desk, threads):
        desk.open.set()
        upload(client, made[1])
        job = submit(client, made[0])["id"]
        core = server.ready.service.core
        read, both, meeting = core.read, [], threading.Barrier(2)

        async def when_both_ask(question):
            answer = await read(question)
            if len(both) < 2:
                both.append(1)
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(None, meeting.wait, TIMEOUT_S)
            return answer

        core.read = when_both_ask
        asked = [threads.submit(delete, client, job) for _ in range(2)]
        assert {one.result(TIMEOUT_S).status_code for one in asked} == {204, 404}


def test_a_provider_that_was_removed_while_somebody_spoke_is_not_steered(tmp_path):
    with running_server(tmp_path) as server, server.client(server.operator) as operator:
        token = server.token("provider")
        agent = asyncio.run(FakeAgent.enrol(server.url, token, authority=server.authority))
        path = f"/api/v1/providers/{agent.provider}/action"
        context = ssl.create_default_context(cadata=server.authority)
        with contextlib.closing(
            http.client.HTTPSConnection("127.0.0.1", server.ready.port, context=context, timeout=30)
        ) as slow:
            slow.putrequest("POST", path)
            slow.putheader("Authorization", f"Bearer {server.operator}")
            body = b'{"action": "pause"}'
            slow.putheader("Content-Length", str(len(body)))
            slow.endheaders()
            slow.send(body[:5])
            removed = operator.post(f"{server.url}{path}", json={"action": "remove"})
            assert removed.status_code == 204
            slow.send(body[5:])
            assert slow.getresponse().status == 404


def test_nothing_is_known_of_a_job_that_was_deleted(tmp_path, made):
    with held_server(tmp_path) as (server, client, desk, _):
        desk.open.set()
        upload(client, made[1])
        job = submit(client, made[0])["id"]
        service = server.ready.service
        service.reports.progress[job] = Progress.of(service.job_view(job), 0.0)
        assert delete(client, job).status_code == 204
        assert service.job_view(job) is None
        assert service.reports.progress == {}


# ---- files without a job


def test_a_store_without_hashes_beside_its_jobs_is_completed(tmp_path, made):
    with held_server(tmp_path) as (server, client, desk, _):
        desk.open.set()
        upload(client, made[1])
        job = submit(client, made[0])["id"]
        service = server.ready.service
        service.core.store.write([Remove(HASHES, job)]).result(TIMEOUT_S)
        database = str(service.folders.database)
    with running_server(tmp_path) as server, server.client(server.operator) as operator:
        assert server.ready.service.files.held_bytes > 0
        delete(operator, job)
        assert server.ready.service.files.held_bytes == 0
    store = open_store(database)
    assert store.ask(lambda db: db.records(HASHES)).result() == []
    store.close()


def test_the_hashes_of_a_job_are_all_that_are_in_it(made):
    assert hashes_in(msgspec.json.encode(made[0])) == set(made[0].files())


def test_files_that_nobody_has_asked_for_in_days_are_removed(tmp_path, made):
    """But not those of a job that is being looked at, however long ago they came."""
    with held_server(tmp_path) as (server, client, desk, threads):
        service = server.ready.service
        upload(client, made[1])
        left, wanted = (hashlib.sha256(content).hexdigest() for content in (b"left", b"wanted"))
        client.put(f"blobs/{left}", content=b"left")
        client.put(f"blobs/{wanted}", content=b"wanted")
        coming = threads.submit(post, client, made[0])
        is_held(desk)
        long_ago = time.time() - ABANDONED_S - 60
        for path in service.folders.blobs.glob("*/*"):
            os.utime(path, (long_ago, long_ago))
        assert client.head(f"blobs/{wanted}").status_code == 200
        forgetting = service.keeping.forget_abandoned()
        asyncio.run_coroutine_threadsafe(forgetting, desk.loop).result(TIMEOUT_S)
        assert here(server) == {*made[1], wanted}
        desk.open.set()
        assert coming.result(TIMEOUT_S).status_code == 200


def test_abandoned_files_are_looked_for_every_hour(tmp_path, monkeypatch):
    monkeypatch.setattr(forgetting, "EVERY_S", 0.01)
    times = threading.Semaphore(0)
    with running_server(tmp_path) as server:
        keeping = server.ready.service.keeping

        async def looked():
            times.release()

        keeping.forget_abandoned = looked
        for _ in range(2):
            assert times.acquire(timeout=TIMEOUT_S)
