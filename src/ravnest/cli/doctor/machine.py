"""This machine: versions, memory, disk, GPU, the port to listen on, the sandbox."""

import importlib
import importlib.metadata
import platform
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ravnest import __version__
from ravnest.agent.addresses import split_host_port
from ravnest.cli.doctor.findings import Check, Finding, broken, note, ok
from ravnest.cli.loading import load_torch
from ravnest.errors import NodeError
from ravnest.planning.figures import quantity, size
from ravnest.sandbox.bubblewrap import remedy, why_not

OLDEST_PYTHON = (3, 11)
TORCH = ((2, 6), (2, 14))
"""From … to below …, as the package itself asks for."""
LITTLE_DISK, MUCH_DISK = 10**9, 10**10
LITTLE_MEMORY = 10**9
NEEDED = ("numpy", "safetensors", "msgspec", "httpx", "websockets", "grpcio", "cryptography")


def checks(home: Path, listen: str | None) -> dict[str, Check]:
    return {
        "python": python,
        "ravnest": installed,
        "torch": torch_build,
        "gpu": gpu,
        "memory": memory,
        "disk": lambda: disk(home),
        "port": lambda: port(listen),
        "sandbox": sandbox,
    }


def python() -> Iterator[Finding]:
    text = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < OLDEST_PYTHON:
        yield broken("python", text, "Ravnest needs Python 3.11 or newer: make a new environment")
    else:
        yield ok("python", text)


def installed() -> Iterator[Finding]:
    missing = []
    for name in NEEDED:
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        remedy = "install Ravnest again with its dependencies: pip install /path/to/ravnest"
        yield broken("ravnest", f"ravnest {__version__} without {', '.join(missing)}", remedy)
    else:
        yield ok("ravnest", f"ravnest {__version__} with everything it needs")


def _torch() -> Any:
    load_torch()
    return importlib.import_module("torch")


def torch_build() -> Iterator[Finding]:
    try:
        torch = _torch()
    except ImportError as error:
        yield broken("torch", f"torch cannot be imported: {error}", "install torch: see README.md")
        return
    found = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    kind = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    text = f"torch {torch.__version__} {kind}, {quantity(torch.get_num_threads(), 'thread')}"
    low, high = TORCH
    if low <= found < high:
        yield ok("torch", text)
    else:
        wanted = f"{low[0]}.{low[1]} or newer and older than {high[0]}.{high[1]}"
        yield broken("torch", text, f"Ravnest is tested with torch {wanted}: install one of these")


def gpu() -> Iterator[Finding]:
    try:
        torch = _torch()
    except ImportError:
        return
    kinds = {"cuda": torch.cuda, "xpu": torch.xpu}
    there = {kind: module for kind, module in kinds.items() if module.is_available()}
    for kind, module in there.items():
        for number in range(module.device_count()):
            facts = module.get_device_properties(number)
            yield ok("gpu", f"{kind}:{number} is {facts.name} with {size(facts.total_memory)}")
    if there:
        return
    if torch.backends.mps.is_available():
        yield ok("gpu", "mps: the GPU of this Mac")
    elif not has_driver():
        yield ok("gpu", "none found: this machine computes on its CPU")
    elif torch.version.cuda is None:
        text = "there is an NVIDIA driver, but this torch was built without CUDA"
        yield note("gpu", text, "install torch's build for CUDA to use the GPU: see README.md")
    else:
        text = f"there is an NVIDIA driver, but torch {torch.__version__} cannot use it"
        yield note("gpu", text, "run nvidia-smi: the driver may be too old, or another is loaded")


def has_driver() -> bool:
    return shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia").exists()


def memory() -> Iterator[Finding]:
    import psutil

    found = psutil.virtual_memory()
    text = f"{size(found.available)} of {size(found.total)} free"
    if found.available < LITTLE_MEMORY:
        yield note("memory", text, "close other programs: too little for most stages")
    else:
        yield ok("memory", text)


def disk(home: Path) -> Iterator[Finding]:
    place = home
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    text = f"{size(free)} free in {place}"
    remedy = "packages and data of a job are kept here while it runs: free some space"
    if free < LITTLE_DISK:
        yield broken("disk", text, remedy)
    elif free < MUCH_DISK:
        yield note("disk", text, remedy)
    else:
        yield ok("disk", text)


def port(listen: str | None) -> Iterator[Finding]:
    """Whether a provider could listen there. That others get through is known after joining."""
    where = listen or "a free port"
    try:
        host, number = split_host_port(listen or "0.0.0.0:0", "--listen")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((host, number))
            tried.listen()
    except (NodeError, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        remedy = "choose another with --listen HOST:PORT, or join with --no-listen (all by relay)"
        yield broken("port", f"nothing can listen at {where}: {reason}", remedy)
    else:
        yield ok("port", f"a provider could listen at {where}")


def sandbox() -> Iterator[Finding]:
    """For foreign graphs and scripts on a provider, and for models on a server."""
    workers, planning = why_not(), why_not(network=False)
    if workers is None and planning is None:
        yield ok("sandbox", "bwrap works: foreign graphs and scripts run in a sandbox")
        return
    whose = "`ravnest server` checks and plans models" if workers is None else "foreign graphs run"
    yield note("sandbox", f"{workers or planning}; {whose} without a sandbox", remedy())
