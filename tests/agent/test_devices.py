"""GPUs, without one: their answers replaced by those of a device that the test makes up."""

import asyncio
import json
import subprocess
import sys
import types

import psutil
import pytest
from running import Running, run, task, train
from toyserver import WAIT_S

from ravnest.agent import vram, workload
from ravnest.agent.joining import slots_of, usable
from ravnest.agent.machine import (
    device_share,
    memory_beside,
    memory_for_training,
    share_of,
    with_default_cap,
)
from ravnest.agent.settings import AgentSettings
from ravnest.agent.workload import Speed, rising, step_bytes, step_flops
from ravnest.api.control import Admit, Assign, Hello, Measured, Refused, Rejected
from ravnest.api.machine import Caps
from ravnest.api.work import DEVICE_CONTEXT_BYTES, DEVICE_WORKER_BYTES
from ravnest.errors import NodeError, ServerError

GB = 10**9
GPUS = [
    Speed(
        device=f"cuda:{number}",
        device_name="Fake 9000",
        device_memory_bytes=24 * GB,
        device_free_bytes=20 * GB,
        device_ids=(f"uuid-{number}",),
        gflops=10_000.0,
        rates={"bf16": 80_000.0, "fp16": 81_000.0},
        torch="2",
    )
    for number in range(2)
]


class Machine:
    """nvidia-smi, as it would answer."""

    def __init__(self, monkeypatch):
        self.free_mib = {"uuid-0": 20_000, "uuid-1": 20_000}
        monkeypatch.setattr(vram, "_told", self.told)

    async def told(self):
        return "".join(f"GPU-{one}, {free}\n" for one, free in self.free_mib.items())


def test_what_is_free_is_asked_for_by_the_number_that_a_gpu_has_in_the_world(monkeypatch, tmp_path):
    """Torch numbers GPUs otherwise than the programs of their maker."""
    machine = Machine(monkeypatch)
    machine.free_mib["uuid-1"] = 7
    assert asyncio.run(vram.free_bytes(("uuid-1", "0000:65:00.0"))) == 7 << 20
    assert asyncio.run(vram.free_bytes(("uuid-9",))) is None
    assert asyncio.run(vram.free_bytes(())) is None
    monkeypatch.setattr(vram, "_BUSES", tmp_path)
    (tmp_path / "0000:65:00.0").mkdir()
    for name, value in (("total", 24 * GB), ("used", 23 * GB)):
        (tmp_path / "0000:65:00.0" / f"mem_info_vram_{name}").write_text(f"{value}\n")
    assert asyncio.run(vram.free_bytes(("uuid-9", "0000:65:00.0"))) == GB


def test_a_machine_without_that_program_does_not_say_what_is_free(monkeypatch):
    monkeypatch.setattr(vram, "_NVIDIA", ("there is no such program",))
    assert asyncio.run(vram.free_bytes(("uuid-0",))) is None


def test_memory_of_the_machine_and_of_its_gpus_are_two_limits():
    gpu = GPUS[0]
    caps = Caps(memory_bytes=8 * GB, device_memory_bytes=6 * GB)
    assert with_default_cap(caps, gpu) == (caps, 8 * GB)
    assert memory_for_training(caps, gpu) == 6 * GB - DEVICE_CONTEXT_BYTES
    assert memory_for_training(Caps(), gpu, free=10 * GB) == 9 * GB - DEVICE_CONTEXT_BYTES
    assert memory_for_training(caps, gpu, free=10 << 20) == 0
    assert memory_beside(caps, gpu) <= 8 * GB - DEVICE_WORKER_BYTES
    assert device_share(caps, gpu) == pytest.approx((6 * GB - DEVICE_CONTEXT_BYTES) / (24 * GB))
    assert device_share(Caps(), gpu) == 1.0
    cpu = Speed(device="cpu", gflops=1.0, torch="2")
    assert (memory_beside(caps, cpu), device_share(caps, cpu)) == (None, 1.0)


def test_what_the_owner_allows_is_for_all_workers_together(monkeypatch):
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 8)
    shared = share_of(Caps(memory_bytes=8 * GB, threads=5, bandwidth_mbps=30.0), 2)
    assert (shared.memory_bytes, shared.threads, shared.bandwidth_mbps) == (4 * GB, 2, 15.0)
    assert share_of(Caps(threads=1), 4).threads == 1
    _, alone = with_default_cap(Caps(), GPUS[0])
    _, half = with_default_cap(Caps(), GPUS[0], 2)
    assert half == pytest.approx(alone / 2, rel=0.2)


# ---- how fast


class Device:
    """One whose calls take so long each, and that computes so fast."""

    def __init__(self, call_s, flops, bytes=None):
        self.call_s, self.flops, self.bytes = call_s, flops, bytes
        self.sizes = []

    def __call__(self, size, budget_s):
        self.sizes.append(size)
        if self.bytes is not None and step_bytes(size) > self.bytes:
            raise RuntimeError("out of memory")
        return self.call_s * 60 + step_flops(size) / self.flops


@pytest.mark.parametrize("flops", [2e10, 1e12, 1e14, 1e15])
def test_a_device_is_measured_with_layers_that_keep_it_busy(flops):
    """It was always 6.8 GFLOP, in which a fast device waits for its calls."""
    device = Device(1e-5, flops)
    assert rising(device, 1.0, None) == pytest.approx(flops, rel=0.15)
    # Not for minutes where it is slow.
    assert step_flops(device.sizes[-1]) / flops < 0.5


def test_measuring_keeps_within_the_memory_that_is_free():
    device = Device(1e-5, 1e15)
    rising(device, 1.0, 4 * step_bytes(2.0))
    assert device.sizes[-1] == 2.0
    assert rising(Device(1e-5, 1e15, bytes=step_bytes(4.0)), 1.0, None) > 0
    with pytest.raises(RuntimeError, match="out of memory"):
        rising(Device(1e-5, 1e15, bytes=1), 1.0, None)


def test_the_processor_is_measured_in_all_precisions():
    program = (
        "import msgspec; from ravnest.agent import workload\n"
        "print(msgspec.json.encode(workload.measure('cpu', 1, 0.02)).decode())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    import msgspec

    speed = msgspec.json.decode(done.stdout, type=Speed)
    assert speed.gflops > 0, done.stderr
    assert set(speed.rates) <= {"bf16", "fp16"}
    assert "bf16" in speed.rates


def test_every_gpu_is_offered_unless_some_are_named(monkeypatch):
    import torch

    for kind, count in (("cuda", 3), ("xpu", 0)):
        module = types.SimpleNamespace(
            is_available=lambda n=count: n > 0, device_count=lambda n=count: n
        )
        monkeypatch.setattr(torch, kind, module, raising=False)
    assert workload.devices_of("all") == ["cuda:0", "cuda:1", "cuda:2"]
    assert workload.devices_of("cuda,cuda:2") == ["cuda:0", "cuda:2"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert workload.devices_of("all") in (["cpu"], ["mps"])


def test_a_broken_card_is_left_out_unless_it_was_named(monkeypatch):
    def broken(device, threads, seconds):
        if device == "cuda:0":
            raise RuntimeError("CUDA error: out of memory\nCompile with …")
        return GPUS[1]

    monkeypatch.setattr(workload, "measure", broken)
    found = [workload._tried(device, 1, 1.0) for device in ("cuda:0", "cuda:1")]
    told = []
    show = lambda *line: told.append(line)  # noqa: E731
    assert usable(found, show, all_of_them=False) == [GPUS[1]]
    problem = "cuda:0 cannot be used: CUDA error: out of memory"
    assert told == [("left out", problem)]
    for speeds, named in ((found, True), (found[:1], False)):
        with pytest.raises(NodeError, match=problem):
            usable(speeds, show, all_of_them=named)


# ---- one provider for each


def settings_of(tmp_path, **more):
    address = types.SimpleNamespace(is_local=True)
    given = {"listen": "0.0.0.0:7700", "advertise": ("203.0.113.7:80",), "name": "ada", **more}
    return AgentSettings(address=address, home=tmp_path, **given)


def test_every_device_is_a_provider_with_a_name_and_ports_of_its_own(tmp_path):
    told = []
    show = lambda *line: told.append(line)  # noqa: E731
    first, second = slots_of(settings_of(tmp_path), GPUS, "", show)
    assert (first.settings.name, second.settings.name) == ("ada/cuda:0", "ada/cuda:1")
    assert first.settings.home == tmp_path
    assert second.settings.home == tmp_path / "devices" / "cuda-1"
    assert second.settings.hidden == first.settings.hidden == tmp_path.resolve()
    assert (first.settings.listen, second.settings.listen) == ("0.0.0.0:7700", "0.0.0.0:7701")
    assert second.settings.advertise == ("203.0.113.7:81",)
    second.show("x", "said")
    assert told == [("x", "cuda:1: said")]
    (alone,) = slots_of(settings_of(tmp_path), GPUS[:1], "", show)
    assert (alone.settings.name, alone.settings.is_named) == ("ada", False)
    (tmp_path / "devices").mkdir()
    (alone,) = slots_of(settings_of(tmp_path), GPUS[:1], "", show)
    assert alone.settings.is_named, "it may still be called ada/cuda:0"


def test_two_gpus_are_two_providers_that_know_of_the_short_way_between_them(tmp_path, monkeypatch):
    Machine(monkeypatch)

    async def test(server):
        home = tmp_path / "home"
        async with Running(server, home, speeds=GPUS) as running:
            heard = {}
            while len(heard) < 4:
                async with asyncio.timeout(WAIT_S):
                    who, said = await server.said.get()
                if isinstance(said, Hello | Measured):
                    heard[who, type(said)] = said
            assert {heard[one, Hello].name for one in (7, 8)} == {"toy/cuda:0", "toy/cuda:1"}
            for one, other in ((7, 8), (8, 7)):
                figures = heard[one, Measured].figures
                assert [(peer.provider, peer.mbps) for peer in figures.peers] == [(other, 8000.0)]
                assert figures.rates["bf16"] == 80_000
                assert figures.host_memory_bytes is not None
            assert (home / "devices" / "cuda-1" / "identity").is_dir()
            # A signal is for all of them.
            running.leave()
            async with asyncio.timeout(WAIT_S):
                await running.task
            assert sorted(running.told("goodbye")) == ["cuda:0: goodbye", "cuda:1: goodbye"]

    run(test, tmp_path)


def test_a_gpu_whose_memory_was_taken_meanwhile_is_told_and_takes_no_more(tmp_path, monkeypatch):
    """It was looked at once, when the machine joined."""
    machine = Machine(monkeypatch)

    async def test(server):
        async with Running(server, tmp_path / "home", speeds=GPUS[:1]):
            before = (await server.hear(Measured)).figures.memory_bytes
            assert before > 17 * GB
            machine.free_mib["uuid-0"] = 2_000
            now = (await server.hear(Measured)).figures.memory_bytes
            assert now < 2 * GB
            given = task(server, memory_bytes=16 * GB)
            await server.say(7, Assign(assignment=given))
            refused = await server.hear(Refused)
            assert not refused.lasting
            assert "needs 16.00 GB on cuda:0, and 1.26 GB are free" in refused.reason

    run(test, tmp_path)


def test_a_worker_is_told_what_it_may_take_of_the_device(tmp_path, monkeypatch):
    """Of the machine's memory the agent sees to it: the system would count addresses, which the
    libraries of a GPU take for all the memory there is."""
    Machine(monkeypatch)
    caps = Caps(memory_bytes=8 * GB, device_memory_bytes=6 * GB)

    async def test(server):
        home = tmp_path / "home"
        async with Running(server, home, speeds=GPUS[:1], caps=caps):
            await train(server, task(server, "patience"))
            order = json.loads((home / "records" / "a7" / "order.json").read_text())
            assert order["device_share"] == pytest.approx(device_share(caps, GPUS[0]))
            assert (order["device"], order["memory_bytes"]) == ("cuda:0", 0)

    run(test, tmp_path)


def test_one_of_several_providers_that_has_to_end_is_told_at_once_and_the_others_go_on(
    tmp_path, monkeypatch
):
    Machine(monkeypatch)

    async def test(server):
        async with Running(server, tmp_path / "home", speeds=GPUS) as running:
            await server.hear(Measured, 8)
            await server.say(8, Rejected(reason="this provider was removed", final=True))
            await running.tells("ended")
            assert running.told("ended")[0].startswith("cuda:1: does not take part any more")
            await server.say(7, Admit(provider=9, seconds=1.0))
            assert not running.task.done()
            running.leave()
            with pytest.raises(ServerError, match="was removed"):
                await running.task

    run(test, tmp_path)
