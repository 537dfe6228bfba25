"""Network namespaces in a row, neighbours joined by wide-area links; gone again afterwards."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

LINK = Path(__file__).with_name("link.py")


@dataclass(frozen=True)
class Chain:
    """Hosts that can talk to their neighbours only."""

    namespaces: tuple[str, ...]
    addresses: tuple[str, ...]
    """Of each host, as the one before it knows it."""

    def inside(self, host: int, command: Sequence[str]) -> list[str]:
        """The command, to be run on that host."""
        return ["ip", "netns", "exec", self.namespaces[host], *command]


@contextlib.contextmanager
def chain_of_hosts(hosts: int, *nature: str) -> Iterator[Chain]:
    """`nature` are options of link.py, the same for every link."""
    tag = f"rvn{os.getpid()}"
    names = tuple(f"{tag}-{host}" for host in range(hosts))
    links: list[subprocess.Popen[str]] = []
    addresses = ["127.0.0.1"]
    try:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True)
            subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        for number in range(hosts - 1):
            ends = (f"10.9.{number}.1", f"10.9.{number}.2")
            command = [sys.executable, str(LINK), "--ends", *names[number : number + 2]]
            command += ["--addresses", *ends, "--device", f"wan{number}", *nature]
            links.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            addresses.append(ends[1])
        for link in links:
            assert link.stdout is not None
            if link.stdout.readline().strip() != "UP":
                raise RuntimeError("a link did not come up; this needs root and /dev/net/tun")
        yield Chain(names, tuple(addresses))
    finally:
        for link in links:
            link.terminate()
            link.wait()
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
