"""Large jobs are read and written piece by piece, with the same outcome as at once."""

import threading

import msgspec
import pytest
from a_job import make_job
from servers import running_server

from ravnest.api.jobs import JobSpec, Shards
from ravnest.server.service import specs
from ravnest.server.service.api import requesters
from ravnest.server.service.specs import read_spec, write_spec

replace = msgspec.structs.replace


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return make_job(tmp_path_factory.mktemp("job"))[0]


@pytest.fixture(scope="module")
def large(small):
    return replace(small, train=replace(small.train, shards=small.train.shards * 1234))


def fault_of(read, content):
    with pytest.raises(msgspec.DecodeError) as found:
        read(content)
    return type(found.value), str(found.value)


def at_once(content):
    return msgspec.json.decode(content, type=JobSpec)


@pytest.mark.parametrize("which", ["small", "large"])
def test_a_job_is_read_and_written_as_at_once(which, request):
    spec = request.getfixturevalue(which)
    content = msgspec.json.encode(spec)
    assert write_spec(spec) == content
    assert read_spec(content) == spec
    assert read_spec(bytearray(content)) == spec


def test_the_shards_of_a_large_job_are_read_one_by_one(small, large, monkeypatch):
    seen = []

    def spy(pieces, name):
        seen.append((name, len(pieces)))
        return read_shards(pieces, name)

    read_shards = specs._read_shards
    monkeypatch.setattr(specs, "_read_shards", spy)
    read_spec(msgspec.json.encode(small))
    assert not seen
    read_spec(msgspec.json.encode(large))
    assert seen == [("train", len(large.train.shards))]


@pytest.mark.parametrize(
    "broken",
    [
        lambda job: job["train"]["shards"][700].update(rows=0),
        lambda job: job["train"]["shards"][700]["files"][1].update(path="../up"),
        lambda job: job["train"]["shards"][700].update(more=1),
        lambda job: job["train"]["shards"].__setitem__(700, 5),
        lambda job: job["train"].update(shards=job["train"]["shards"] * (Shards // 1000)),
        lambda job: job["train"].update(shards={}),
        lambda job: job["train"].update(shards=[]),
        lambda job: job["train"].pop("shards"),
        lambda job: job["train"].update(fields=7),
        lambda job: job["train"].update(more=1),
        lambda job: job.update(train=[]),
        lambda job: job.update(validation=None, name=""),
        lambda job: job.pop("train"),
        lambda job: job.update(script=None, recipe=None),
    ],
)
def test_what_is_wrong_is_said_in_the_same_words(large, broken):
    job = msgspec.json.decode(msgspec.json.encode(large))
    broken(job)
    content = msgspec.json.encode(job)
    assert fault_of(read_spec, content) == fault_of(at_once, content)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"train":', b"5", b'{"a": 1} x', b"\xff"])
def test_what_is_no_job_is_refused_in_the_same_words(content):
    assert fault_of(read_spec, content) == fault_of(at_once, content)


def test_jobs_are_not_read_in_the_event_loop(tmp_path, small, monkeypatch):
    threads = []

    def read(content):
        threads.append(threading.current_thread().name)
        return read_spec(content)

    monkeypatch.setattr(requesters, "read_spec", read)
    with running_server(tmp_path, tls=False) as server, server.client(server.operator) as client:
        answer = client.post("jobs", content=msgspec.json.encode(small))
        assert answer.status_code == 409, answer.text  # no file of it is there
        answer = client.post("jobs", content=b"[]")
        assert "no valid JobSpec" in answer.json()["error"]
    assert [name.partition("_")[0] for name in threads] == ["files", "files"]
