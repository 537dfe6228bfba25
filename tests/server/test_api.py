"""Who may ask what, what is refused, and that a refusal changes nothing."""

import asyncio
import hashlib
import http.client
import json
import queue
import shutil
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import msgspec
import pytest
from a_job import make_job, ref, submit, upload
from servers import running_server

from ravnest.api.requests import Problem
from ravnest.api.tokens import Token
from ravnest.server.folders import Folders
from ravnest.server.service import files as files_module
from ravnest.server.service.app import table
from ravnest.server.service.files import Files, Quota, _placing
from ravnest.server.service.problems import Refusal
from ravnest.server.service.ratelimit import RATES, Rate
from ravnest.server.service.saying import Saying

OWNER = "owner"
NOTHING = hashlib.sha256(b"").hexdigest()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    limits = {"most_upload_bytes": 10_000_000, "quota": Quota(30_000_000)}
    with running_server(folder, dashboard="token", **limits) as server:
        yield server


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_job(tmp_path_factory.mktemp("job"))


@pytest.fixture
def requester(server):
    with server.client(server.token("requester")) as client:
        yield client


def code(answer):
    return msgspec.json.decode(answer.content, type=Problem).code


def test_strangers_learn_nothing_but_health_and_the_authority(server):
    routes = [one for one in table(server.ready.service) if one.right is not None]
    assert len(routes) > 25
    with httpx.Client(base_url=server.url, verify=_context(server)) as stranger:
        assert stranger.get("/healthz").json()["status"] == "ok"
        assert "BEGIN CERTIFICATE" in stranger.get("/api/v1/authority").text
        for one in routes:
            path = one.path.replace("{provider:number}", "1")
            answer = stranger.request(one.method, path.replace("{", "").replace("}", ""))
            assert answer.status_code == 401, one.path
        long = f"/api/v1/providers/{'9' * 5000}/action"
        for path in (
            long,
            "/nothing",
            "/api/v1/nothing",
            "/api/v2/overview",
            "/..%2f..%2fetc/passwd",
            "/api/v1/jobs/",
            "/api/v1/overview/",
        ):
            assert stranger.get(path).status_code == 401


def _context(server):
    return ssl.create_default_context(cadata=server.authority)


@pytest.mark.parametrize(
    ("role", "may"),
    [
        ("viewer", {"ask", "look"}),
        ("requester", {"ask", "look", "submit", "fetch", "steer"}),
        ("operator", {"ask", "look", "submit", "fetch", "steer", "operate"}),
        ("provider", {"ask", "enrol"}),
    ],
)
def test_a_role_may_what_the_table_says(server, role, may, monkeypatch):
    # So many refusals at once would count as an attack.
    monkeypatch.setattr(server.ready.service.gate, "_count_wrong", lambda address: None)
    with server.client(server.token(role)) as client:
        for one in table(server.ready.service):
            if one.right is None or one.path.endswith("/stream"):
                continue
            path = one.path.replace("{provider:number}", "99").replace("{", "").replace("}", "")
            answer = client.request(one.method, server.url + path)
            assert (answer.status_code == 403) == (one.right not in may), one.path


@pytest.mark.parametrize(
    "header", ["Basic abc", "Bearer", "Bearer x", "Bearer rav1_AAAA", "Bearer rvc1_1_x", "x"]
)
def test_wrong_tokens_are_refused_and_not_repeated(server, header):
    answer = httpx.get(
        f"{server.url}/api/v1/overview", headers={"Authorization": header}, verify=_context(server)
    )
    assert (answer.status_code, code(answer)) in ((401, "unauthorized"), (429, "limited"))
    assert "AAAA" not in answer.text


@pytest.mark.parametrize("kind", ["stranger", "call", "wrong"])
def test_whoever_asks_too_often_loses_the_connection(tmp_path, monkeypatch, kind):
    """Or one who asks now and then could keep any number of them."""
    monkeypatch.setitem(RATES, kind, Rate(0.0, 0.0))
    with running_server(tmp_path, dashboard="token") as server:
        bearer = {"stranger": None, "call": server.operator, "wrong": "rav_wrong"}[kind]
        with server.client(bearer) as client:
            answer = client.get("overview")
            assert (answer.status_code, code(answer)) == (429, "limited")
            assert answer.headers["connection"] == "close"


def test_whoever_sends_too_much_may_send_it_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setitem(RATES, "upload", Rate(0.0, 0.0))
    with running_server(tmp_path) as server, server.client(server.operator) as client:
        answer = client.put(f"blobs/{NOTHING}", content=b"")
        assert answer.status_code == 429
        assert "connection" not in answer.headers


def test_whoever_asks_for_what_they_may_not_is_limited_as_for_wrong_tokens(tmp_path):
    with running_server(tmp_path, tls=False) as server:
        with server.client(server.token("viewer")) as viewer:
            codes = [viewer.get("tokens").status_code for _ in range(40)]
            assert codes[0] == 403
            assert codes[-1] == 429
            assert viewer.get("overview").status_code == 200
        with server.client("rav1_AAAA") as wrong:
            assert wrong.get("overview").status_code == 429
        with server.client(server.operator) as operator:
            assert operator.get("tokens").status_code == 200


def test_a_token_of_another_server_is_refused(server):
    foreign = str(Token.make("operator", b"x" * 16))
    with server.client(foreign) as client:
        assert client.get("tokens").status_code == 401


def test_a_revoked_token_is_refused_from_then_on(server):
    token = server.token("viewer")
    with server.client(token) as viewer, server.client(server.operator) as operator:
        assert viewer.get("overview").status_code == 200
        assert operator.delete(f"tokens/{Token.parse(token).id}").status_code == 204
        assert viewer.get("overview").status_code == 401
        listed = {one["id"]: one for one in operator.get("tokens").json()}
        assert listed[Token.parse(token).id]["revoked"]
        assert operator.delete("tokens/unknown").status_code == 404


# ---- files


def test_a_file_is_kept_once_under_its_hash(server, requester):
    content = b"content " * 300_000
    sha256 = hashlib.sha256(content).hexdigest()
    assert requester.head(f"blobs/{sha256}").status_code == 404
    for _ in range(2):
        assert requester.put(f"blobs/{sha256}", content=content).status_code == 204
    assert requester.head(f"blobs/{sha256}").headers["x-size"] == str(len(content))


@pytest.mark.parametrize("name", ["..%2f..%2fx", "a" * 63, "A" * 64, "%2e%2e", "a" * 200])
def test_a_file_with_a_name_that_is_no_hash_is_refused(server, requester, name):
    answer = requester.put(f"blobs/{name}", content=b"x")
    assert answer.status_code in (400, 404)


def test_another_content_than_announced_leaves_nothing_behind(server, requester):
    wrong = hashlib.sha256(b"right").hexdigest()
    answer = requester.put(f"blobs/{wrong}", content=b"wrong")
    assert (answer.status_code, code(answer)) == (400, "invalid")
    assert requester.head(f"blobs/{wrong}").status_code == 404
    assert not list(server.ready.service.folders.incoming.iterdir())


def test_an_oversized_upload_is_refused_announced_or_not(server, requester):
    def pieces():
        for _ in range(12):
            yield b"x" * 1_000_000

    announced = requester.put(f"blobs/{NOTHING}", content=b"x" * 11_000_000)
    assert (announced.status_code, code(announced)) == (413, "too_large")
    try:
        unannounced = requester.put(f"blobs/{NOTHING}", content=pieces())
        assert code(unannounced) == "too_large"
    except httpx.TransportError:
        pass  # the server has closed before everything was said
    assert not list(server.ready.service.folders.incoming.iterdir())


def test_files_beyond_the_quota_are_refused(server, requester):
    held = server.ready.service.files.held_bytes
    sizes = [9_000_000] * 4
    answers = []
    for number, size in enumerate(sizes):
        content = bytes([number + 1]) * size
        sha256 = hashlib.sha256(content).hexdigest()
        answers.append(requester.put(f"blobs/{sha256}", content=content).status_code)
    assert answers[-1] == 413
    assert server.ready.service.files.held_bytes <= 30_000_000
    assert server.ready.service.files.held_bytes > held


def a_store_for(folder, **more):
    folders = Folders(folder)
    folders.make()
    return Files(folders, **{"most_bytes": 10_000, "quota": Quota(10_000)} | more)


def test_uploads_of_unknown_size_pass_the_quota_not_even_together(tmp_path):
    async def story():
        files = a_store_for(tmp_path)
        half_way, go_on = asyncio.Barrier(3), asyncio.Event()

        async def body(content):
            yield content[:2000]
            await half_way.wait()
            await go_on.wait()
            yield content[2000:]

        contents = [bytes([number]) * 6000 for number in range(2)]
        sending = [
            asyncio.create_task(
                files.receive_blob(OWNER, hashlib.sha256(c).hexdigest(), None, body(c))
            )
            for c in contents
        ]
        await half_way.wait()
        go_on.set()
        ends = await asyncio.gather(*sending, return_exceptions=True)
        assert sorted(str(end)[:24] for end in ends) == ["None", "the server keeps at most"]
        assert files.held_bytes == 6000
        files.close()

    asyncio.run(story())


def test_bytes_that_were_only_announced_keep_nobody_from_the_quota(tmp_path, monkeypatch):
    monkeypatch.setattr(files_module, "_AHEAD", 100)

    async def story():
        files = a_store_for(tmp_path)
        content, half_way, go_on = b"x" * 9000, asyncio.Event(), asyncio.Event()

        async def slow():
            yield content[:50]
            half_way.set()
            await go_on.wait()
            yield content[50:]

        async def quick():
            yield b"y" * 9000

        coming = asyncio.create_task(
            files.receive_blob(OWNER, hashlib.sha256(content).hexdigest(), 9000, slow())
        )
        await half_way.wait()
        # More than there is, and that is known before all of it has come.
        with pytest.raises(Refusal, match="100 are taken, 100 of them by files on their way"):
            await files.receive_blob(OWNER, NOTHING, 9901, quick())
        await files.receive_blob(OWNER, hashlib.sha256(b"y" * 9000).hexdigest(), 9000, quick())
        go_on.set()
        with pytest.raises(Refusal, match="9000 are taken, 0 of them"):
            await coming
        assert files.held_bytes == 9000
        files.close()

    asyncio.run(story())


def test_of_many_files_that_come_at_once_less_is_gathered_of_each(tmp_path, monkeypatch):
    """Or a thousand that stand still would hold a gigabyte."""
    monkeypatch.setattr(files_module, "_PIECES", 256 << 10)

    async def story():
        files = a_store_for(tmp_path, most_bytes=1 << 30, quota=Quota(1 << 30))
        begun, all_here, go_on = asyncio.Barrier(3), asyncio.Barrier(4), asyncio.Event()

        async def body(content):
            await begun.wait()
            yield content
            await all_here.wait()
            await go_on.wait()

        contents = [bytes([number]) * (128 << 10) for number in range(3)]
        sending = [
            asyncio.create_task(
                files.receive_blob(OWNER, hashlib.sha256(c).hexdigest(), None, body(c))
            )
            for c in contents
        ]
        await all_here.wait()
        sizes = [path.stat().st_size for path in (tmp_path / "incoming").iterdir()]
        go_on.set()
        await asyncio.gather(*sending)
        files.close()
        assert sizes == [128 << 10] * 3

    asyncio.run(story())


def test_the_same_file_sent_several_times_at_once_is_counted_once(tmp_path):
    async def story():
        files = a_store_for(tmp_path)
        content = b"same" * 500
        all_here = asyncio.Barrier(3)

        async def body():
            yield content
            await all_here.wait()

        sha256 = hashlib.sha256(content).hexdigest()
        await asyncio.gather(*(files.receive_blob(OWNER, sha256, 2000, body()) for _ in range(3)))
        assert files.held_bytes == 2000
        files.close()

    asyncio.run(story())


def test_a_disk_that_fills_while_a_file_comes_is_noticed(tmp_path, monkeypatch):
    async def story():
        files = a_store_for(tmp_path, most_bytes=1 << 30, quota=Quota(1 << 30))

        async def body():
            yield bytes(1 << 20)
            usage = shutil.disk_usage(tmp_path)._replace(free=0)
            monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
            for _ in range(20):
                yield bytes(1 << 20)

        with pytest.raises(Refusal, match="disk of the server is full") as refused:
            await files.receive_blob(OWNER, NOTHING, None, body())
        assert refused.value.status == 507
        assert not list((tmp_path / "incoming").iterdir())
        files.close()

    asyncio.run(story())


@pytest.mark.parametrize("method", ["HEAD", "PUT"])
def test_who_waits_for_a_file_that_is_being_removed_holds_up_nobody_else(
    server, requester, monkeypatch, method
):
    content, waiting, touch = b"wanted", threading.Event(), Files.touch

    def watched(self, sha256):
        waiting.set()
        return touch(self, sha256)

    monkeypatch.setattr(Files, "touch", watched)
    path = f"blobs/{hashlib.sha256(content).hexdigest()}"
    with ThreadPoolExecutor() as threads, _placing:
        asking = threads.submit(requester.request, method, path, content=content)
        assert waiting.wait(30)
        health = httpx.get(f"{server.url}/healthz", verify=_context(server), timeout=30)
        assert health.status_code == 200
        assert not asking.done()
    assert asking.result().status_code == (404 if method == "HEAD" else 204)


@pytest.mark.parametrize(
    ("method", "path", "route"),
    [
        ("PUT", f"/api/v1/blobs/{NOTHING}", "/api/v1/blobs/{sha256}"),
        ("POST", "/api/v1/jobs", "/api/v1/jobs"),
    ],
)
def test_a_sender_that_goes_away_in_the_middle_leaves_nothing_and_is_no_failure_of_the_server(
    server, requester, monkeypatch, method, path, route
):
    outcomes = queue.SimpleQueue()
    monkeypatch.setattr(server.ready.service.desk, "_count", lambda *what: outcomes.put(what))
    connection = http.client.HTTPSConnection(
        "127.0.0.1", server.ready.port, context=_context(server), timeout=30
    )
    connection.putrequest(method, path)
    connection.putheader("Authorization", requester.headers["Authorization"])
    connection.putheader("Content-Length", "100000")
    connection.endheaders()
    connection.send(b"x" * 1000)
    connection.close()
    assert outcomes.get(timeout=30) == (route, "invalid")
    assert not list(server.ready.service.folders.incoming.iterdir())


# ---- jobs


def jobs_of(server):
    with server.client(server.operator) as operator:
        return operator.get("jobs").json()


def refused_job(server, requester, body):
    before = jobs_of(server)
    answer = requester.post("jobs", content=body, timeout=120)
    assert jobs_of(server) == before
    return answer


def changed(spec, path, value):
    """The job as JSON, with one place in it changed."""
    document = msgspec.json.decode(msgspec.json.encode(spec))
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return msgspec.json.encode(document)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("recipe", "optimizer", "name"), "adamm", "adamm"),
        (("recipe", "losses", 0, "name"), "cross_entropyy", "cross_entropyy"),
        (("recipe", "inputs", 0, "field"), "z", "z"),
        (("train", "shards", 0, "files", 0, "path"), "../../etc/passwd", "path"),
        (("train", "shards", 0, "files", 0, "path"), "data/train/../../x", "path"),
        (("train", "shards", 0, "files", 0, "path"), "data/.hidden", "path"),
        (("train", "shards", 0, "files", 0, "path"), "elsewhere/x", "data/train"),
        (("train", "shards", 0, "rows"), 1000, "rows"),
        (("train", "fields", 0, "dtype"), "object", "object"),
        (("training", "epochs"), 0, "epochs"),
        (("training", "batch_size"), "many", "batch_size"),
        (("name",), "a\nb", "name"),
        (("surprise",), 1, "surprise"),
        (("model", 0, "path"), "deep/card.json", "folder"),
    ],
)
def test_a_job_that_makes_no_sense_is_refused_with_the_place(
    server, requester, made, path, value, says
):
    answer = refused_job(server, requester, changed(made[0], path, value))
    assert (answer.status_code, code(answer)) == (400, "invalid")
    assert says in answer.json()["error"]


def test_a_job_whose_files_are_not_there_is_told_which(server, requester, made):
    other = changed(made[0], ("train", "shards", 0, "files", 0, "sha256"), NOTHING)
    answer = refused_job(server, requester, other)
    assert (answer.status_code, code(answer)) == (409, "conflict")
    assert NOTHING in answer.json()["error"]


def test_files_of_a_deleted_job_are_removed_unless_another_job_has_them(tmp_path, made):
    spec, files = made
    with running_server(tmp_path / "server") as server, server.client(server.operator) as operator:
        upload(operator, files)
        one, two = (submit(operator, spec)["id"] for _ in range(2))
        folders, held = server.ready.service.folders, server.ready.service.files.held_bytes
        # Nothing is left of how they were looked at.
        assert [path.name for path in folders.job(one).iterdir()] == ["model"]
        assert operator.post(f"jobs/{one}/action", json={"action": "delete"}).status_code == 204
        assert server.ready.service.files.held_bytes == held
        assert operator.post(f"jobs/{two}/action", json={"action": "delete"}).status_code == 204
        assert server.ready.service.files.held_bytes == 0
        assert not list(folders.blobs.glob("*/*"))
        assert operator.get("jobs").json() == []
        assert operator.get(f"jobs/{one}").status_code == 404


def test_a_requester_steers_only_their_own_jobs(tmp_path, made):
    with running_server(tmp_path / "server") as server:
        mine, other = server.token("requester"), server.token("requester")
        with server.client(mine) as me, server.client(other) as them:
            upload(me, made[1])
            job = submit(me, made[0])["id"]
            assert them.post(f"jobs/{job}/action", json={"action": "stop"}).status_code == 403
            assert them.get(f"jobs/{job}/result").status_code == 403
            # There is none yet; they may ask.
            assert me.get(f"jobs/{job}/result").status_code == 404
            assert me.post(f"jobs/{job}/action", json={"action": "stop"}).status_code == 200
            with server.client(server.operator) as operator:
                answer = operator.post(f"jobs/{job}/action", json={"action": "resume"})
                assert answer.json()["state"] == "waiting"


def test_a_token_made_anew_under_the_same_name_has_the_jobs_of_the_old_one(tmp_path, made):
    with running_server(tmp_path / "server") as server:
        with server.client(server.token("requester", name="ann")) as before:
            upload(before, made[1])
            job = submit(before, made[0])["id"]
            new = server.token("requester", name="ann", replace=True)
            assert before.get("jobs").status_code == 401, "the former is revoked"
        with server.client(new) as now:
            assert now.get(f"jobs/{job}/result").status_code == 404
            assert now.post(f"jobs/{job}/action", json={"action": "stop"}).status_code == 200


def test_the_name_of_an_operator_gives_a_requester_nothing(tmp_path, made):
    with running_server(tmp_path / "server") as server:
        namesake = server.token("requester", name="operator")
        with server.client(server.operator) as operator, server.client(namesake) as requester:
            upload(operator, made[1])
            job = submit(operator, made[0])
            assert job["owner"] == "operator"
            assert requester.get(f"jobs/{job['id']}/result").status_code == 403


def test_a_model_with_a_forbidden_operator_is_refused(server, made, tmp_path):
    """A package that asks for something outside the list of operators, with hashes that fit."""
    spec, files = made
    folder = next(path for path in files.values() if path.name == "graph.json").parent
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    graph = json.loads((tmp_path / "graph.json").read_bytes())
    graph["train"]["operations"][0]["op"] = "aten::system.default"
    _replace(tmp_path, "graph.json", json.dumps(graph).encode(), ["manifest.json", "card.json"])
    model = tuple(ref(tmp_path / file.path) for file in spec.model)
    bad = msgspec.structs.replace(spec, model=model)
    paths = files | {file.sha256: tmp_path / file.path for file in model}
    with server.client(server.operator) as operator:
        upload(operator, paths)
        answer = refused_job(server, operator, msgspec.json.encode(bad))
    assert (answer.status_code, code(answer)) == (400, "invalid")
    assert "system" in answer.json()["error"]
    assert str(server.ready.service.folders.root) not in answer.json()["error"]
    assert not list(server.ready.service.folders.jobs.iterdir())


def _replace(folder, name, content, listed_in):
    """A file with other content, and everything that pins it."""
    (folder / name).write_bytes(content)
    for listing in listed_in:
        document = json.loads((folder / listing).read_bytes())
        for entry in document["files"]:
            path = folder / entry["name"]
            entry["size"] = path.stat().st_size
            entry["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        (folder / listing).write_bytes(json.dumps(document).encode())


def test_bodies_that_are_no_json_or_too_large_are_refused(server, requester):
    for body in (b"", b"{", b"[]", b"\xff", b'{"train":' + b"[" * 100_000):
        assert requester.post("jobs", content=body).status_code == 400
    with server.client(server.operator) as operator:
        large = b'{"role":"viewer","name":"' + b"x" * 2_000_000 + b'"}'
        assert operator.post("tokens", content=large).status_code == 413


def test_a_name_without_end_in_a_body_is_no_line_without_end_in_the_log(tmp_path, caplog):
    """On a server of its own: an address has so many lines of the log, and other tests use them."""
    body = b'{"%s": 1}' % (b"x" * 500_000)
    with running_server(tmp_path) as server, server.client(server.token("requester")) as requester:
        answer = requester.post("/jobs/none/action", content=body)
    assert answer.status_code == 400
    assert code(answer) == "invalid"
    (line,) = [record for record in caplog.messages if "JobAction" in record]
    assert len(line) < 5000


def test_jobs_of_others_cannot_be_steered_and_unknown_ones_not_found(server, requester):
    assert requester.post("jobs/zzz/action", json={"action": "stop"}).status_code == 404
    assert requester.get("jobs/zzz").status_code == 404
    assert requester.get("jobs/zzz/result").status_code == 404


# ---- looking


def test_numbers_in_a_query_are_checked(server, requester):
    for query in ("limit=0", "limit=x", "limit=nan", "limit=1e9", "before=-1"):
        assert requester.get(f"events?{query}").status_code == 400
    assert requester.get("events?limit=5").status_code == 200


def test_every_route_is_documented_with_its_structures(server, requester):
    document = requester.get("openapi.json").json()
    for one in table(server.ready.service):
        path = one.path.replace(":path", "").replace(":number", "")
        operation = document["paths"][path][one.method.lower()]
        assert operation["summary"] == one.summary
        assert ("requestBody" in operation) == (one.body is not None)
    text = json.dumps(document)
    for name in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert name in document["components"]["schemas"]


def test_metrics_count_what_was_refused(server, requester):
    requester.get("jobs/zzz")
    text = httpx.get(
        f"{server.url}/metrics",
        headers={"Authorization": requester.headers["Authorization"]},
        verify=_context(server),
    ).text
    assert 'ravnest_requests_total{outcome="not_found",route="/api/v1/jobs/{job}"}' in text
    assert 'ravnest_providers{state="idle"} 0.0' in text


def test_pages_come_with_a_strict_policy_and_are_not_sent_twice(server):
    with httpx.Client(base_url=server.url, verify=_context(server)) as stranger:
        page = stranger.get("/")
        assert page.status_code == 200
        assert page.headers["content-security-policy"].startswith("default-src 'none'")
        assert page.headers["x-content-type-options"] == "nosniff"
        again = stranger.get("/", headers={"If-None-Match": page.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        for path in ("/static/../index.html", "/static/%2e%2e/%2e%2e/__init__.py", "/static/x"):
            assert stranger.get(path).status_code in (401, 404)


def test_too_many_wrong_tokens_are_slowed_down(tmp_path):
    with running_server(tmp_path) as server:
        headers = {"Authorization": "Bearer nonsense"}
        with httpx.Client(verify=_context(server), headers=headers) as client:
            answers = [client.get(f"{server.url}/api/v1/jobs").status_code for _ in range(40)]
        assert set(answers) == {401, 429}
        assert answers[0] == 401
        assert answers[-1] == 429


def test_refusals_are_said_until_they_are_too_many_and_then_counted():
    lines, now = [], 0.0
    rates = {"one": Rate(1, 2), "all": Rate(1, 3)}
    saying = Saying(lines.append, rates=rates, clock=lambda: now)
    for address in ("192.0.2.1",) * 4 + ("192.0.2.2",) * 2:
        saying.say(address, f"refused {address}")
    now = 1.0
    saying.say("192.0.2.3", "refused 100%")
    assert lines == [
        "refused 192.0.2.1",
        "refused 192.0.2.1",
        "refused 192.0.2.2; before this, 2 others were not said",
        "refused 100%; before this, 1 other was not said",
    ]


def test_a_flood_of_refusals_is_no_flood_of_lines(tmp_path, caplog):
    with running_server(tmp_path) as server, httpx.Client(verify=_context(server)) as client:
        headers = {"Authorization": "Bearer nonsense"}
        for _ in range(150):
            assert client.get(f"{server.url}/api/v1/jobs", headers=headers).is_error
    assert 0 < caplog.text.count("refused GET /api/v1/jobs") < 150


# ---- who may look without a token


@pytest.mark.parametrize(
    ("mode", "headers", "status"),
    [
        ("local", {}, 401),
        ("local", {"Host": "localhost:1"}, 401),
        ("local", {"X-Forwarded-For": "127.0.0.1"}, 401),
        ("open", {"Host": "attacker.example"}, 200),
        ("token", {}, 401),
    ],
)
def test_looking_without_a_token(tmp_path, mode, headers, status):
    with running_server(tmp_path, dashboard=mode) as server:
        answer = httpx.get(
            f"{server.url}/api/v1/overview", headers=headers, verify=_context(server)
        )
        assert answer.status_code == status
        steered = httpx.post(
            f"{server.url}/api/v1/tokens", headers=headers, verify=_context(server)
        )
        assert steered.status_code in (401, 403)
