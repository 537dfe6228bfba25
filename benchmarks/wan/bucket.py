"""Two network namespaces joined by a slow cable: the kernel's token bucket, no delay."""

import contextlib
import os
import subprocess
from collections.abc import Iterator

from benchmarks.wan.network import Chain


@contextlib.contextmanager
def two_hosts(mbps: float) -> Iterator[Chain]:
    tag = f"rvb{os.getpid()}"
    names = (f"{tag}-0", f"{tag}-1")
    addresses = ("10.8.0.1", "10.8.0.2")
    cable = (f"v{os.getpid()}a", f"v{os.getpid()}b")
    bucket = f"tbf rate {mbps}mbit burst 256kb latency 60ms"
    try:
        for name in names:
            _ip(f"netns add {name}")
        _ip(f"link add {cable[0]} type veth peer name {cable[1]}")
        for name, end, address in zip(names, cable, addresses, strict=True):
            _ip(f"link set {end} netns {name}")
            _ip(f"-n {name} addr add {address}/24 dev {end}")
            _ip(f"-n {name} link set {end} up")
            _ip(f"-n {name} link set lo up")
            words = ["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", end, "root"]
            subprocess.run([*words, *bucket.split()], check=True)
        yield Chain(names, addresses)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)
