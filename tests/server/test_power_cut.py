"""The power may fail at any time: what records refer to is on disk before they are."""

import asyncio
import hashlib
import os
from types import SimpleNamespace

import msgspec
import pytest
from a_job import make_job

from ravnest.plan import ProviderSpec
from ravnest.server.folders import Folders, blob_key
from ravnest.server.planjob.__main__ import _done
from ravnest.server.planjob.outcome import ORDER, PlanOrder
from ravnest.server.service.files import Files, Quota
from ravnest.server.service.intake import Intake


class Disk:
    """Which files and folders have been told to be on disk."""

    def __init__(self):
        self._numbers = set()

    def sync(self, descriptor):
        self._numbers.add(os.fstat(descriptor).st_ino)

    def lacks(self, *paths):
        return [path for path in paths if path.stat().st_ino not in self._numbers]


@pytest.fixture
def disk(monkeypatch):
    disk = Disk()
    monkeypatch.setattr(os, "fsync", disk.sync)
    return disk


@pytest.fixture
def folders(tmp_path):
    folders = Folders(tmp_path / "server")
    folders.make()
    return folders


def test_a_plan_is_on_disk_before_it_is_told(tmp_path, disk):
    spec, _ = make_job(tmp_path / "job")
    folder = tmp_path / "plan"
    folder.mkdir()
    pool = tuple(
        ProviderSpec(
            id=id,
            address=f"provider-{id}:1",
            memory_bytes=1 << 30,
            bandwidth_mbps=100.0,
            gflops=50.0,
        )
        for id in (1, 2)
    )
    model = str(tmp_path / "job" / "model")
    order = PlanOrder(task="plan", spec=spec, job="j", model=model, run=1, pool=pool)
    (folder / ORDER).write_bytes(msgspec.json.encode(order))
    outcome = _done(order, folder)
    assert outcome.error == ""
    there = list(folder.rglob("*"))
    assert any(path.name == "weights.safetensors" for path in there)
    assert disk.lacks(folder, *there) == []


def test_a_model_is_on_disk_before_its_job_is_recorded(tmp_path, folders, disk):
    spec, made = make_job(tmp_path / "job")
    for file in spec.model:
        blob = folders.blob(blob_key("owner", file.sha256))
        blob.parent.mkdir(exist_ok=True)
        blob.write_bytes(made[file.sha256].read_bytes())
    Intake._place_model(SimpleNamespace(_folders=folders), spec, "owner", folders.job("j"))
    model = folders.job("j") / "model"
    assert len(list(model.iterdir())) == len(spec.model)
    assert disk.lacks(folders.jobs, folders.job("j"), model, *model.iterdir()) == []


def test_a_file_that_was_received_is_found_again(folders, disk):
    files = Files(folders, most_bytes=1 << 20, quota=Quota(1 << 20))
    sha256 = hashlib.sha256(b"x").hexdigest()

    async def body():
        yield b"x"

    asyncio.run(files.receive_blob("owner", sha256, 1, body()))
    files.close()
    blob = folders.blob(blob_key("owner", sha256))
    assert disk.lacks(blob, blob.parent, folders.blobs) == []
