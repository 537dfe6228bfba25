"""Providers of a benchmark, all on this machine."""

import json
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from ravnest.launch import launch, planned_nodes
from ravnest.rundir import RunDir


def free_addresses(count: int) -> list[str]:
    """Taken all at once, so that no two are the same."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    found = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return found


def equal_pool(folder: Path, addresses: Sequence[str], machine: Mapping[str, float]) -> RunDir:
    """A fresh `node_data` with as many equal machines as there are addresses."""
    run = RunDir(folder / "node_data")
    run.root.mkdir()
    pool = {str(n): {"IP": where, "benchmarks": machine} for n, where in enumerate(addresses)}
    run.pool_file.write_text(json.dumps(pool))
    return run


def printed_by(
    command: Sequence[str], run: RunDir, folder: Path, environment: Mapping[str, str]
) -> str:
    """What the providers of a plan print, one process each; ends the benchmark if one fails."""
    lines: list[str] = []
    outcome = launch(
        command,
        planned_nodes(run),
        folder=folder,
        show=lambda _, line: lines.append(line),
        environment=environment,
    )
    printed = "\n".join(lines)
    if outcome.failures:
        raise SystemExit(printed)
    return printed
