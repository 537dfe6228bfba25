"""Shares of a server: files of one owner are their own, and leave room for results of others."""

import asyncio
import contextlib
import hashlib
import shutil
from collections import namedtuple

import msgspec
import pytest
from a_job import make_job, submit, upload
from fake_work import train
from looking import job_is, until
from servers import running_server
from test_jobs import assigned, pool

from ravnest.api.work import WorkEnd
from ravnest.server.folders import Folders
from ravnest.server.planjob.outcome import PlanOutcome
from ravnest.server.room import SPARE_BYTES
from ravnest.server.service.files import Files, Quota
from ravnest.server.service.problems import Refusal

MB = 1 << 20
Usage = namedtuple("Usage", "total used free")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_job(tmp_path_factory.mktemp("job"), start="asked")


@pytest.fixture
def owners(request, tmp_path):
    """A server with these options, and clients of two requesters."""
    options = dict(getattr(request, "param", {}))
    plans = options.pop("plans", False)
    with (
        running_server(tmp_path / "server", **options) as server,
        server.client(server.token("requester", name="ada")) as ada,
        server.client(server.token("requester", name="bob")) as bob,
    ):
        if not plans:  # what is in the model is not looked at here, which takes seconds
            server.ready.service.workshop.do = accepted
        yield server, ada, bob


async def accepted(folder, order):
    return PlanOutcome()


def post(client, spec):
    return client.post("jobs", content=msgspec.json.encode(spec), timeout=120)


def put(client, content):
    return client.put(f"blobs/{hashlib.sha256(content).hexdigest()}", content=content)


# ---- possession


def test_a_hash_alone_gives_nobody_the_file_of_somebody_else(owners, made):
    _, ada, bob = owners
    spec, files = made
    upload(ada, files)
    for sha256 in files:
        assert ada.head(f"blobs/{sha256}").status_code == 200
        assert bob.head(f"blobs/{sha256}").status_code == 404
    assert post(ada, spec).status_code == 200
    refused = post(bob, spec)
    assert refused.status_code == 409
    assert f"not uploaded yet: {len(files)} files" in refused.text
    # What bob lacks one of is not told apart from what nobody has.
    one, *others = files
    upload(bob, {sha256: files[sha256] for sha256 in others})
    refused = post(bob, spec)
    assert (refused.status_code, one in refused.text) == (409, True)
    # Another content under that hash proves nothing.
    assert bob.put(f"blobs/{one}", content=b"made up").status_code == 400
    assert post(bob, spec).status_code == 409
    upload(bob, {one: files[one]})
    assert post(bob, spec).status_code == 200


def test_files_of_an_owner_stay_when_another_one_deletes_the_same(owners, made):
    _, ada, bob = owners
    spec, files = made
    jobs = []
    for client in (ada, bob):
        upload(client, files)
        jobs.append(submit(client, spec)["id"])
    assert ada.post(f"jobs/{jobs[0]}/action", json={"action": "delete"}).status_code == 204
    assert all(ada.head(f"blobs/{sha256}").status_code == 404 for sha256 in files)
    assert all(bob.head(f"blobs/{sha256}").status_code == 200 for sha256 in files)


def test_a_successor_of_a_token_has_the_files_of_the_former(owners):
    server, ada, _ = owners
    assert put(ada, b"content").status_code == 204
    with server.client(server.token("requester", name="ada", replace=True)) as successor:
        sha256 = hashlib.sha256(b"content").hexdigest()
        assert successor.head(f"blobs/{sha256}").status_code == 200
        assert ada.head(f"blobs/{sha256}").status_code == 401


# ---- quota


@pytest.mark.parametrize("owners", [{"quota": Quota(9 * MB, 4 * MB, MB)}], indirect=True)
def test_an_owner_who_fills_its_share_leaves_that_of_others(owners, made):
    server, ada, bob = owners
    answers = [put(ada, bytes([number]) * MB) for number in range(5)]
    assert [answer.status_code for answer in answers] == [204] * 4 + [413]
    error = answers[-1].json()["error"]
    for figure in (4 * MB, "--owner-quota", "ravnest job delete"):
        assert str(figure) in error
    spec, files = made
    upload(bob, files)
    assert post(bob, spec).status_code == 200
    # All of the quota but the reserve may be handed in, by whoever has a share of it.
    with server.client(server.token("requester", name="eve")) as eve:
        answers = [put(eve, bytes([number]) * MB) for number in range(5)]
    assert answers[3].status_code == 413
    assert f"beside {MB} for results (--reserve)" in answers[3].json()["error"]
    assert server.ready.service.files.held_bytes < 8 * MB


@pytest.mark.parametrize("owners", [{"quota": Quota(9 * MB, 2 * MB, MB)}], indirect=True)
def test_operators_have_no_share_of_their_own(owners):
    server, *_ = owners
    with server.client(server.operator) as operator:
        answers = [put(operator, bytes([number]) * MB) for number in range(9)]
    assert [answer.status_code for answer in answers] == [204] * 8 + [413]


@pytest.mark.parametrize("owners", [{"owner_jobs": 2}], indirect=True)
def test_an_owner_has_so_many_jobs_that_have_not_ended(owners, made):
    _, ada, bob = owners
    spec, files = made
    upload(ada, files)
    upload(bob, files)
    first, _ = (submit(ada, spec)["id"] for _ in range(2))
    refused = post(ada, spec)
    assert refused.status_code == 409
    assert "ada has 2 jobs that have not ended" in refused.text
    assert "--owner-jobs" in refused.text
    submit(bob, spec)
    assert ada.post(f"jobs/{first}/action", json={"action": "stop"}).status_code == 200
    submit(ada, spec)
    resumed = ada.post(f"jobs/{first}/action", json={"action": "resume"})
    assert (resumed.status_code, "--owner-jobs" in resumed.text) == (409, True)


@pytest.mark.parametrize("owners", [{"owner_jobs": 1, "most_jobs": 8}], indirect=True)
def test_jobs_that_have_ended_do_not_take_the_places_of_others(owners, made):
    _, ada, _ = owners
    spec, files = made
    upload(ada, files)
    for _ in range(2):
        id = submit(ada, spec)["id"]
        ada.post(f"jobs/{id}/action", json={"action": "stop"})
    refused = post(ada, spec)
    assert (refused.status_code, "ada has 2 of the 8 jobs" in refused.text) == (409, True)


# ---- the reserve


def test_a_disk_that_was_filled_by_submissions_takes_results(tmp_path, monkeypatch):
    """B's results come in, A's submissions do not: the last of the disk is for results."""
    folders = Folders(tmp_path)
    folders.make()
    files = Files(folders, most_bytes=1 << 30, quota=Quota(1 << 40, None, 50 * MB))
    usage = Usage(1 << 40, 0, SPARE_BYTES + 40 * MB)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    content = b"x" * 1000
    sha256 = hashlib.sha256(content).hexdigest()

    async def body():
        yield content

    async def story():
        with pytest.raises(Refusal, match="disk of the server is full") as refused:
            await files.receive_blob("a", sha256, 1000, body())
        assert refused.value.status == 507
        target = folders.results("job", 1, 1) / "trained.json"
        await files.receive_result("job", target, sha256, 1000, 1 << 20, body())
        assert target.read_bytes() == content

    asyncio.run(story())
    files.close()


def test_results_come_in_although_their_own_owner_has_filled_its_share(tmp_path):
    """What was trained is not lost for what its owner has handed in since."""
    folders = Folders(tmp_path)
    folders.make()
    files = Files(folders, most_bytes=1 << 30, quota=Quota(1 << 40, MB, 0), owner_of=lambda _: "a")
    content = b"x" * MB
    sha256 = hashlib.sha256(content).hexdigest()

    async def body(said):
        yield said

    async def story():
        await files.receive_blob("a", sha256, MB, body(content))
        with pytest.raises(Refusal, match="--owner-quota"):
            await files.receive_blob("a", hashlib.sha256(b"y").hexdigest(), 1, body(b"y"))
        for size in (MB, None):
            target = folders.results("job", 1, 1) / "trained.json"
            await files.receive_result("job", target, sha256, size, 1 << 30, body(content))
            assert target.read_bytes() == content
            target.unlink()

    asyncio.run(story())
    files.close()


def test_results_beyond_a_share_leave_as_much_as_they_take(tmp_path):
    """One owner's machines filled the reserve with results, and those of others were refused."""
    folders = Folders(tmp_path)
    folders.make()
    quota = Quota(20 * MB, 2 * MB, 6 * MB)
    files = Files(folders, most_bytes=1 << 30, quota=quota, owner_of=lambda job: job[0])
    brought = {"a": 0, "b": 0, "c": 0}

    async def bring(owner, **more):
        content = f"{owner}{brought[owner]}".encode().ljust(MB)
        sha256 = hashlib.sha256(content).hexdigest()
        target = folders.results(f"{owner}-job", 1, brought[owner]) / "trained.json"

        async def body():
            yield content

        await files.receive_result(f"{owner}-job", target, sha256, MB, MB, body(), **more)
        brought[owner] += 1

    async def story():
        for owner in brought:
            with contextlib.suppress(Refusal):
                for _ in range(20):
                    await bring(owner)
            with pytest.raises(Refusal, match="beyond its share"):
                await bring(owner)
        for _ in range(20 - sum(brought.values())):
            await bring("a", has_share=False)
        with pytest.raises(Refusal, match="--quota"):
            await bring("a", has_share=False)

    asyncio.run(story())
    files.close()
    # Of 20: 2 + 9, where 9 are left; then 2 + 3 beside 4; then 2 + 1, which leaves one.
    assert (brought["b"], brought["c"]) == (5, 3)


@pytest.mark.parametrize(
    "owners", [{"quota": Quota(3 * MB, None, MB), "plans": True}], indirect=True
)
def test_results_come_in_although_another_owner_has_filled_the_quota(owners, tmp_path):
    server, ada, bob = owners
    spec, files = make_job(tmp_path / "job", planning={"min_cluster_size": 1, "max_clusters": 1})

    async def story():
        upload(bob, files)
        async with pool(server, 1) as agents:
            job = submit(bob, spec)["id"]
            work = await assigned(agents, tmp_path)
            number = 0
            for repeats in (32 << 10, 256):  # to the last half of a kilobyte: the result is larger
                while put(ada, number.to_bytes(2) * repeats).status_code == 204:
                    number += 1
            assert put(bob, b"one more" * 8192).status_code == 413
            for agent, assignment in work.items():
                results = await train(agent, assignment, tmp_path / assignment.id, add=0.01)
                end = WorkEnd(outcome="done", epochs_done=2, saved=True)
                await agent.end(assignment, end, results)
            await until(server, job, job_is("done"))
            assert bob.get(f"jobs/{job}/result").status_code == 200

    asyncio.run(story())
