"""How much memory of a GPU is free now, asked without becoming one of those who use it.

Torch would make a context on the device for every question, which takes half a gigabyte there. The
programs of its maker say it for nothing: `nvidia-smi`, and files of the kernel for AMD.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

_NVIDIA = ("nvidia-smi", "--query-gpu=uuid,memory.free", "--format=csv,noheader,nounits")
_ASKED_FOR_S = 10.0
_BUSES = Path("/sys/bus/pci/devices")


async def free_bytes(ids: Sequence[str]) -> int | None:
    """Of the device with one of these ids (see `workload.Speed`); None if nobody says it."""
    if not ids:
        return None
    amd = next((free for one in ids if (free := _amd(one)) is not None), None)
    return amd if amd is not None else _nvidia(await _told(), ids)


def _nvidia(told: str, ids: Sequence[str]) -> int | None:
    for line in told.splitlines():
        uuid, _, free = (word.strip() for word in line.partition(","))
        if uuid.removeprefix("GPU-") in ids and free.isdigit():
            return int(free) << 20
    return None


async def _told() -> str:
    try:
        process = await asyncio.create_subprocess_exec(
            *_NVIDIA,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return ""
    try:
        async with asyncio.timeout(_ASKED_FOR_S):
            out, _ = await process.communicate()
    except TimeoutError:
        return ""
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return out.decode(errors="replace")


def _amd(bus: str) -> int | None:
    folder = _BUSES / bus
    try:
        total, used = (
            int((folder / f"mem_info_vram_{name}").read_text()) for name in ("total", "used")
        )
    except (OSError, ValueError):
        return None
    return max(0, total - used)
