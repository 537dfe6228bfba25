"""Ports on this machine for processes that listen on them a moment later.

Such a process is being started for seconds, and meanwhile the port is nobody's. Systems give ports
from 32768 upwards to connections that go out, so these are below: only who wants exactly this one
can take it.
"""

import contextlib
import secrets
import socket

_LOWEST, _COUNT = 20_000, 12_000


def free_ports(count: int) -> list[int]:
    """So many different ones, of the loopback address."""
    found: dict[int, None] = {}
    with contextlib.ExitStack() as held:
        while len(found) < count:
            # Not `random`: programs with equal seeds would get equal ports.
            port = _LOWEST + secrets.randbelow(_COUNT)
            with contextlib.suppress(OSError):  # somebody has it
                listener = socket.create_server(("127.0.0.1", port))
                held.enter_context(listener)
                found[port] = None
    return list(found)
