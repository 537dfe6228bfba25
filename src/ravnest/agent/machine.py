"""What this machine is, and what of it may be used for training.

Never loads torch: what only torch knows is asked from `workload.py` in a process of its own.
"""

import asyncio
import contextlib
import os
import platform
import re
import sys
from pathlib import Path

import msgspec
import psutil

from ravnest.agent.workload import ALL, Speed
from ravnest.api.limits import NOT_UNDERSTOOD, plain
from ravnest.api.machine import Caps, MachineFacts
from ravnest.api.work import DEVICE_CONTEXT_BYTES, DEVICE_WORKER_BYTES, WORKER_OVERHEAD_BYTES
from ravnest.errors import NodeError
from ravnest.release import VERSION
from ravnest.sandbox.bubblewrap import temporary_bytes
from ravnest.sandbox.environment import compute_environment

_MOST_SAID = 200
_KEPT_FREE = 0.1
"""Of what is free now, for whatever else the machine does."""
_DEFAULT_CAP = 0.8
"""Of what is free when the agent starts, where the owner says nothing."""
_WORKLOAD_S = 1.0
_WORKLOAD_DEADLINE_S = 180.0
"""The first import of torch on a slow disk takes a while."""


def facts_of(speed: Speed, no_sandbox: str = "") -> MachineFacts:
    return MachineFacts(
        hostname=a_name(platform.node()),
        system=f"{platform.system()} {platform.release()} {platform.machine()}"[:200],
        python=platform.python_version(),
        torch=speed.torch,
        ravnest=VERSION,
        cores=psutil.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        device=speed.device,
        device_name=plain(speed.device_name)[:200],
        device_memory_bytes=speed.device_memory_bytes,
        no_sandbox=plain(no_sandbox)[:200],
    )


def a_name(text: str) -> str:
    """The same as a `Name`, with other characters left out."""
    kept = re.sub(r"[^\w .:+/@()-]", "", text, flags=re.ASCII).strip()
    kept = re.sub(r"^\W+", "", kept)
    return kept[:100] or "machine"


def threads_of(caps: Caps) -> int:
    """How many threads a worker may compute with: the owner's cap, never more than there are."""
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    with contextlib.suppress(AttributeError):
        # In a container there may be fewer than the machine has.
        cores = min(cores, len(os.sched_getaffinity(0)))
    return cores if caps.threads is None else min(caps.threads, psutil.cpu_count() or caps.threads)


def share_of(caps: Caps, workers: int) -> Caps:
    """What one of so many workers on this machine may have of it. Memory of a device it has for
    itself."""
    if workers == 1:
        return caps
    bandwidth, memory = caps.bandwidth_mbps, caps.memory_bytes
    return msgspec.structs.replace(
        caps,
        memory_bytes=None if memory is None else memory // workers,
        threads=max(1, threads_of(caps) // workers),
        bandwidth_mbps=None if bandwidth is None else bandwidth / workers,
    )


def with_default_cap(caps: Caps, speed: Speed, workers: int = 1) -> tuple[Caps, int]:
    """The caps of one of so many workers, and the bytes that it may take of the machine's memory at
    most. The owner's cap, or most of what is free now: then a little less is offered than the
    worker may take."""
    if caps.memory_bytes is not None:
        return caps, caps.memory_bytes
    most = int(psutil.virtual_memory().available * _DEFAULT_CAP / workers)
    return msgspec.structs.replace(caps, memory_bytes=int(most * (1 - _KEPT_FREE))), most


def memory_for_training(caps: Caps, speed: Speed, free: int | None = None) -> int:
    """Bytes that a stage may take on the device, within the caps. `free` is what is free there
    now; None if that is not known, and was measured once."""
    if not speed.device_memory_bytes:
        return _of_the_machine(caps, WORKER_OVERHEAD_BYTES)
    if free is None:
        # The one who has measured had a context of its own, which is gone.
        free = speed.device_free_bytes + DEVICE_CONTEXT_BYTES
    most = int(free * (1 - _KEPT_FREE))
    if caps.device_memory_bytes is not None:
        most = min(most, caps.device_memory_bytes)
    return max(0, most - DEVICE_CONTEXT_BYTES)


def memory_beside(caps: Caps, speed: Speed) -> int | None:
    """Bytes of the machine's memory that a stage on a device may take; None if that is the same."""
    return _of_the_machine(caps, DEVICE_WORKER_BYTES) if speed.device_memory_bytes else None


def _of_the_machine(caps: Caps, overhead: int) -> int:
    free = int(psutil.virtual_memory().available * (1 - _KEPT_FREE))
    if caps.memory_bytes is not None:
        free = min(free, caps.memory_bytes)
    return max(0, free - overhead)


def device_share(caps: Caps, speed: Speed) -> float:
    """Of the device's memory, that torch may take beside its own context."""
    most, total = caps.device_memory_bytes, speed.device_memory_bytes
    if most is None or not total:
        return 1.0
    return min(1.0, max(1, most - DEVICE_CONTEXT_BYTES) / total)


async def measure_speeds(
    devices: str | None, threads: int, seconds: float = _WORKLOAD_S
) -> list[Speed]:
    """Of those devices (`cuda:0,cuda:1`), or of every GPU. Threads are for all together."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "ravnest.agent.workload",
        devices or ALL,
        str(threads),
        str(seconds),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=compute_environment(threads),
    )
    try:
        async with asyncio.timeout(_WORKLOAD_DEADLINE_S):
            out, err = await process.communicate()
    except TimeoutError:
        raise NodeError(
            f"measuring {devices or 'this machine'} took longer than {_WORKLOAD_DEADLINE_S:.0f} s"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        last = err.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        raise NodeError(f"the device {devices or 'of this machine'} cannot be used: {last[0]}")
    try:
        return msgspec.json.decode(out, type=list[Speed])
    except NOT_UNDERSTOOD as error:
        said = out[:_MOST_SAID].decode(errors="replace")
        raise NodeError(
            f"measuring {devices or 'this machine'} gave no figures ({error}): does Python print "
            f"something of its own when it starts? It said {said!r}"
        ) from None


def free_disk(folder: Path) -> int:
    return int(psutil.disk_usage(str(folder)).free)


class Load:
    """Of the machine and of one process on it, since it was last asked. The figures are read from
    files; where that fails for once, they are as before."""

    def __init__(self) -> None:
        self._cpu, self._memory_free = 0.0, 0
        self.cpu()

    def cpu(self) -> float:
        with contextlib.suppress(psutil.Error, OSError):
            self._cpu = float(psutil.cpu_percent()) / 100.0
        return self._cpu

    def memory_free(self) -> int:
        with contextlib.suppress(psutil.Error, OSError):
            self._memory_free = int(psutil.virtual_memory().available)
        return self._memory_free

    @staticmethod
    def process_memory(pid: int | None) -> int:
        """With its children, and with what lies in the temporary folders of its sandbox; 0 if it
        is gone."""
        if pid is None:
            return 0
        total, temporary = 0, None
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            for each in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.Error, OSError):
                    total += each.memory_info().rss
                    # All that are in a sandbox are in the same one.
                    temporary = temporary_bytes(each.pid) if temporary is None else temporary
        return total + (temporary or 0)
