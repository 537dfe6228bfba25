"""A wide-area link between two network namespaces, played by one process.

    python link.py --ends left right --addresses 10.9.0.1 10.9.0.2 --mbps 100 --delay-ms 40

Both ends get a tun device. Whatever the kernel sends into one comes out of the other after the
delay, at the rate, with jitter that keeps the order, and with losses; a queue of limited length in
front of the rate drops what does not fit, as a router does. Needs root and /dev/net/tun.

Packets may be super-packets of up to 64 kB, as network cards take them from the kernel: so Python
can carry hundreds of Mbit/s. With --loss they are real packets of 1,500 bytes.
"""

import argparse
import ctypes
import fcntl
import os
import random
import select
import signal
import struct
import subprocess
import time
from collections import deque
from dataclasses import dataclass, field

CLONE_NEWNET = 0x40000000
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
OFFLOADS = 0x01 | 0x02 | 0x04  # checksums, large TCP segments over IPv4 and IPv6
HEADER = 10  # of a super-packet: how the kernel wants it cut
MTU, SEGMENT, SEGMENT_HEADERS = 1500, 1448, 52
LARGEST = 65536 + HEADER


@dataclass(frozen=True)
class Nature:
    """What the link does to packets."""

    bytes_per_s: float
    delay_s: float
    jitter_s: float
    loss: float
    queue_s: float


def enter_namespace(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(handle, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {path}")
    finally:
        os.close(handle)


def open_end(namespace: str, device: str, own: str, other: str, *, super_packets: bool) -> int:
    """A tun device inside the namespace, as a file of this process."""
    enter_namespace(f"/var/run/netns/{namespace}")
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = IFF_TUN | IFF_NO_PI | (IFF_VNET_HDR if super_packets else 0)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", device.encode(), flags))
    if super_packets:
        fcntl.ioctl(tun, TUNSETOFFLOAD, OFFLOADS)
    for command in (
        f"addr add {own}/32 peer {other}/32 dev {device}",
        f"link set {device} mtu {MTU} txqueuelen 1000 up",
        "link set lo up",
    ):
        subprocess.run(["ip", *command.split()], check=True)
    return tun


@dataclass
class Direction:
    """Packets on their way from one end to the other."""

    source: int
    target: int
    nature: Nature
    header: int
    line_free_at: float = 0.0
    last_due: float = 0.0
    under_way: deque[tuple[float, bytes]] = field(default_factory=deque)

    def take(self) -> None:
        """Everything that the kernel has for us."""
        for _ in range(64):
            try:
                packet = os.read(self.source, LARGEST)
            except BlockingIOError:
                return
            self._accept(packet, time.monotonic())

    def _accept(self, packet: bytes, now: float) -> None:
        nature = self.nature
        if nature.loss and random.random() < nature.loss:
            return
        due = now
        if nature.bytes_per_s:
            if self.line_free_at - now > nature.queue_s:
                return
            due = max(now, self.line_free_at) + self._line_bytes(packet) / nature.bytes_per_s
            self.line_free_at = due
        due += nature.delay_s + random.random() * nature.jitter_s
        self.last_due = max(due, self.last_due)
        self.under_way.append((self.last_due, packet))

    def _line_bytes(self, packet: bytes) -> int:
        """As many as if a super-packet had been cut into segments with headers of their own."""
        size = len(packet) - self.header
        return size + (size // SEGMENT) * SEGMENT_HEADERS if size > MTU else size

    def deliver(self, now: float) -> None:
        while self.under_way and self.under_way[0][0] <= now:
            _, packet = self.under_way.popleft()
            try:
                os.write(self.target, packet)
            except OSError:
                continue  # a full device drops packets, as any other would

    def wait_s(self, now: float) -> float | None:
        return max(0.0, self.under_way[0][0] - now) if self.under_way else None


def carry(ends: tuple[int, int], nature: Nature, header: int) -> None:
    directions = {
        here: Direction(here, there, nature, header) for here, there in (ends, (ends[1], ends[0]))
    }
    while True:
        now = time.monotonic()
        for direction in directions.values():
            direction.deliver(now)
        waits = [w for d in directions.values() if (w := d.wait_s(time.monotonic())) is not None]
        ready, _, _ = select.select(list(directions), [], [], min(waits, default=None))
        for end in ready:
            directions[end].take()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ends", nargs=2, required=True, help="names of the namespaces")
    parser.add_argument("--addresses", nargs=2, required=True)
    parser.add_argument("--device", default="wan0")
    parser.add_argument("--mbps", type=float, default=0.0, help="each direction; 0 is unlimited")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="one way")
    parser.add_argument("--jitter-ms", type=float, default=0.0)
    parser.add_argument("--loss", type=float, default=0.0, help="share of packets")
    parser.add_argument("--queue-ms", type=float, default=100.0)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    super_packets = not options.loss
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    ends = [
        open_end(namespace, options.device, own, other, super_packets=super_packets)
        for namespace, own, other in zip(
            options.ends, options.addresses, reversed(options.addresses), strict=True
        )
    ]
    ctypes.CDLL(None).setns(home, CLONE_NEWNET)
    nature = Nature(
        bytes_per_s=options.mbps * 1e6 / 8,
        delay_s=options.delay_ms / 1e3,
        jitter_s=options.jitter_ms / 1e3,
        loss=options.loss,
        queue_s=options.queue_ms / 1e3,
    )
    print("UP", flush=True)
    carry((ends[0], ends[1]), nature, HEADER if super_packets else 0)


if __name__ == "__main__":
    main()
