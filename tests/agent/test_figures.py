"""How speeds are measured, and what of the machine is offered."""

import asyncio
import contextlib
import itertools
import shutil
import subprocess
import sys
import threading
import types

import msgspec
import psutil
import pytest

from ravnest.agent import joining, links, machine, workload
from ravnest.agent.links import measure_link, settled_mbps
from ravnest.agent.machine import (
    a_name,
    memory_for_training,
    threads_of,
    with_default_cap,
)
from ravnest.agent.pacing import Bucket
from ravnest.agent.settings import AgentSettings
from ravnest.agent.upkeep import Upkeep
from ravnest.agent.workload import Speed
from ravnest.api.limits import Name
from ravnest.api.machine import Caps
from ravnest.api.work import WORKER_OVERHEAD_BYTES
from ravnest.client.answers import AnswerError
from ravnest.errors import NodeError, ServerError
from ravnest.sandbox.environment import compute_environment

CPU = Speed(device="cpu", gflops=1.0, torch="2")
GPU = Speed(
    device="cuda:0",
    gflops=1.0,
    torch="2",
    device_memory_bytes=8 << 30,
    device_free_bytes=4 << 30,
)


def test_the_workload_is_counted_as_planning_counts():
    """The figure is used to scale what planning has counted with torch's own counter."""
    program = (
        "import torch; from torch.utils.flop_counter import FlopCounterMode\n"
        "from ravnest.agent.workload import _Steps\n"
        "step = _Steps(torch, torch.device('cpu'))._made(0.25, None)\n"
        "with FlopCounterMode(display=False) as counter:\n"
        "    step()\n"
        "print(counter.get_total_flops())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert int(done.stdout) == workload.step_flops(0.25), done.stderr


def test_a_measurement_that_gives_no_figures_is_told_in_a_line(monkeypatch):
    monkeypatch.setattr(machine.sys, "executable", shutil.which("echo"))
    with pytest.raises(NodeError, match=r"cpu gave no figures .*ravnest\.agent\.workload"):
        asyncio.run(machine.measure_speeds("cpu", 1))


def test_memory_is_offered_within_the_cap_and_without_what_a_worker_needs_itself():
    assert memory_for_training(Caps(memory_bytes=1 << 30), CPU) == (1 << 30) - WORKER_OVERHEAD_BYTES
    assert memory_for_training(Caps(memory_bytes=1000), CPU) == 0
    assert 0 < memory_for_training(Caps(), CPU) < psutil.virtual_memory().total


@pytest.mark.parametrize("speed", [CPU, GPU], ids=["cpu", "cuda"])
def test_the_owner_is_told_the_memory_that_the_owner_allows(tmp_path, monkeypatch, speed):
    """On a card it was told with what Python and torch take, which is not there."""
    told = []
    free = types.SimpleNamespace(available=8 << 30, total=16 << 30)
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: free)
    caps = Caps(memory_bytes=10**9, device_memory_bytes=10**9)
    settings = AgentSettings(address=None, home=tmp_path, name="ada", caps=caps)
    slots = joining.slots_of(settings, [speed], "", lambda event, text: told.append(text))
    joining._tell(slots[0], slots, settings)
    assert ", 1.0 GB of memory offered" in told[0]
    assert "at most 1.0 GB of memory (--memory)" in told[1]
    assert ("at most 1.0 GB on cuda:0 (--gpu-memory)" in told[1]) == (speed is GPU)


def test_threads_are_the_owners_and_never_more_than_there_are():
    assert threads_of(Caps(threads=1)) == 1
    assert threads_of(Caps(threads=99_999)) == psutil.cpu_count()
    assert 1 <= threads_of(Caps()) <= psutil.cpu_count()


def test_a_workers_environment_has_its_threads_and_no_secrets(monkeypatch):
    secrets = ("RAVNEST_JOIN_TOKEN", "AWS_SECRET_ACCESS_KEY", "https_proxy", "SSH_AUTH_SOCK")
    # They begin as those do that are needed.
    secrets += ("NVIDIA_API_KEY", "NVIDIA_ANYTHING", "TORCH_HUB_TOKEN", "Python_Index_Password")
    secrets += ("CUDA_API_KEY", "NCCL_SECRET", "HIP_PASSPHRASE", "MKL_CREDENTIALS", "OMP_AUTH")
    for name in secrets:
        monkeypatch.setenv(name, "secret")
    needed = ("PATH", "HOME", "TMPDIR", "LC_ALL", "CUDA_VISIBLE_DEVICES", "PYTHONPATH")
    needed += ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE")
    for name in needed:
        monkeypatch.setenv(name, f"/of the owner/{name}")
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    environment = compute_environment(3)
    assert environment["OMP_NUM_THREADS"] == "3"
    assert set(needed) <= set(environment)
    assert not set(secrets) & set(environment)


def test_without_a_cap_of_its_owner_a_worker_may_take_most_of_what_is_free(monkeypatch):
    free = types.SimpleNamespace(available=10 << 30, total=16 << 30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    caps, most = with_default_cap(Caps(), CPU)
    assert most == 8 << 30
    # A stage is planned for less than its worker may take.
    assert memory_for_training(caps, CPU) < most - WORKER_OVERHEAD_BYTES
    own = Caps(memory_bytes=3 << 30)
    assert with_default_cap(own, CPU) == (own, 3 << 30)
    assert with_default_cap(own, GPU) == (own, 3 << 30)


def test_a_strangers_program_does_not_learn_who_the_owner_is(monkeypatch, tmp_path):
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.setenv("TMPDIR", "/home/ada/tmp")
    environment = compute_environment(1, home=tmp_path)
    assert (environment["HOME"], "TMPDIR" in environment) == (str(tmp_path), False)
    assert "ada" not in (environment["USER"], environment["LOGNAME"])


@pytest.mark.parametrize("text", ["", "…", " -x", "tür\n7", "a" * 300, "(a)", "ada's laptop"])
def test_any_hostname_becomes_a_name(text):
    assert msgspec.convert(a_name(text), Name) == a_name(text)


class Line:
    """A line of that speed, with a slow beginning."""

    def __init__(self, mbps, start_s=0.0, limit=None):
        self.mbps, self.start_s, self.limit = mbps, start_s, limit
        self.sizes = []

    def __call__(self, size):
        if self.limit is not None and len(self.sizes) >= self.limit:
            raise AnswerError("too many", 429, "limited", b"")
        self.sizes.append(size)
        return self.start_s + size * 8 / 1e6 / self.mbps


@pytest.mark.parametrize("mbps", [0.1, 1, 10, 100, 1000])
def test_a_speed_is_found_in_few_seconds(mbps):
    line = Line(mbps, start_s=0.01)
    assert settled_mbps(line, latency_s=0.01) == pytest.approx(mbps, rel=0.05)
    # A slow line is not kept busy for longer than it takes to know that it is slow.
    assert sum(line.sizes) * 8 / 1e6 / mbps < 6


def test_a_line_that_settles_is_not_measured_further():
    line = Line(1000)
    settled_mbps(line)
    assert max(line.sizes) == 1 << 20


def test_what_was_found_before_the_server_had_enough_counts():
    assert settled_mbps(Line(1e6, limit=2)) == pytest.approx(1e6)
    with pytest.raises(AnswerError):
        settled_mbps(Line(1e6, limit=0))


def test_a_bucket_gives_the_owners_speed_over_time():
    now = [0.0]
    bucket = Bucket(8.0, clock=lambda: now[0])
    sent = 0
    while now[0] < 10:
        now[0] += bucket.take(10_000)
        sent += 10_000
    assert sent / 1e6 / now[0] == pytest.approx(1.0, rel=0.05)


def test_a_bucket_does_not_save_up_for_ever():
    now = [0.0]
    bucket = Bucket(8.0, clock=lambda: now[0])
    now[0] = 1000.0
    assert bucket.take(1_000_000) == pytest.approx(0.75)


def test_the_owner_of_a_slow_line_is_told_how_slow_it_is():
    async def measured(client):
        return types.SimpleNamespace(up_mbps=0.1, down_mbps=0.3, latency_ms=2.0)

    told = []
    measuring = types.SimpleNamespace(measure_link=measured)
    around = types.SimpleNamespace(client=None, up=None, down=None)
    asyncio.run(Upkeep(around, measuring, lambda *it: told.append(it)).measure())
    assert told == [("measured", "0.1 Mbit/s up, 0.3 down, 2.0 ms to the server")]


class Counting(Bucket):
    """Lets everything through at once."""

    def __init__(self):
        self.taken = []

    def take(self, size):
        self.taken.append(size)
        return 0.0


def test_a_line_is_measured_within_what_its_owner_allows():
    """It was measured as it is, whatever --bandwidth said."""
    sent, received = [], []

    class Client:
        closed = threading.Event()

        @contextlib.contextmanager
        def open(self, method, path, *, query=None, content=(), headers=None):
            sent.extend(map(len, content))
            received.append(0 if query is None else query["bytes"])
            pieces = [bytes(received[-1] // 2), bytes(received[-1] - received[-1] // 2)]
            yield types.SimpleNamespace(iter_raw=lambda: pieces)

    up, down = Counting(), Counting()
    measure_link(Client(), up=up, down=down, clock=itertools.count(0, 0.1).__next__)
    assert up.taken == sent
    # Pings are not held up by whatever else the agent receives.
    assert received[:5] == [1] * 5
    assert sum(down.taken) == sum(received[5:])
    assert sum(sent) > 1 << 20
    assert sum(received) > 1 << 20


@pytest.mark.parametrize("piece", [b"z" * 1000, b""], ids=["too much", "too slowly"])
def test_a_server_that_sends_without_end_is_not_measured_for_ever(monkeypatch, piece):
    class Endless:
        @contextlib.contextmanager
        def open(self, *_, **__):
            yield types.SimpleNamespace(iter_raw=lambda: itertools.repeat(piece, 100_000))

    monkeypatch.setattr(links, "_LONGEST_S", 1000.0 if piece else -1.0)
    with pytest.raises(ServerError, match="does not end where it should"):
        measure_link(Endless())
