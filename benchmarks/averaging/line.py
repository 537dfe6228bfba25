"""Two members of a ring across an emulated wide-area link: how much of the line do rounds use?

In a ring of two each direction of the line carries the vector once. Beside it plain sockets that
send as much both ways at once: what is left of the line after headers, and after TCP has found its
speed again, which it forgets whenever it has had nothing to do. Needs root.
"""

import argparse
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch

from benchmarks.averaging.member import Member
from benchmarks.wan.network import chain_of_hosts
from ravnest.wire.grpc_network import GrpcNetwork
from ravnest.wire.tcp_network import TcpNetwork

MEGABYTES, ROUNDS = 400, 3
NETWORKS = {"TCP": TcpNetwork, "gRPC": GrpcNetwork}


def member(rank: int, addresses: list[str], network: str, codec: str) -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(MEGABYTES * 250_000, generator=generator)
    ring = Member(NETWORKS[network], addresses, rank, values, codec or None)
    for _ in range(ROUNDS):
        with torch.no_grad():
            ring.parameter.add_(torch.randn(values.numel()), alpha=0.01)
        ring.round()
        print(ring.exchange_s, flush=True)
    ring.close()


def sockets(rank: int, addresses: list[str]) -> None:
    host, _, port = addresses[0].rpartition(":")
    if rank == 0:
        with socket.create_server((host, int(port))) as server:
            line, _ = server.accept()
    else:
        line = dialled(host, int(port))
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    data, room = bytes(1 << 20), memoryview(bytearray(1 << 20))
    whole = MEGABYTES * 1_000_000
    for _ in range(ROUNDS):
        time.sleep(1.0)
        started = time.perf_counter()
        sending = threading.Thread(target=lambda: [line.sendall(data) for _ in range(whole >> 20)])
        sending.start()
        left = whole >> 20 << 20
        while left:
            left -= line.recv_into(room[: min(left, len(room))])
        sending.join()
        print(time.perf_counter() - started, flush=True)


def dialled(host: str, port: int) -> socket.socket:
    for _ in range(100):
        try:
            return socket.create_connection((host, port))
        except OSError:
            time.sleep(0.1)
    raise SystemExit("nobody listens")


def measure(network: str, codec: str, mbps: float, delay_ms: float) -> float:
    """Seconds of an exchange; the first round, in which TCP learns the line, does not count."""
    nature = ("--mbps", str(mbps), "--delay-ms", str(delay_ms))
    with chain_of_hosts(2, *nature) as chain:
        addresses = ["10.9.0.1:7301", "10.9.0.2:7302"]
        command = [sys.executable, "-m", "benchmarks.averaging.line", "--network", network]
        ends = [
            subprocess.Popen(
                chain.inside(r, [*command, "--codec", codec, "--rank", str(r), *addresses]),
                stdout=subprocess.PIPE,
                text=True,
                cwd=Path(__file__).parents[2],
            )
            for r in (0, 1)
        ]
        printed = [end.communicate(timeout=300)[0] for end in ends]
    if any(end.returncode for end in ends):
        raise SystemExit("a member failed")
    return statistics.median(float(line) for text in printed for line in text.split()[1:])


def main() -> None:
    mbps, delay_ms = 500.0, 20.0
    ideal = MEGABYTES * 8 / mbps
    print(f"{MEGABYTES} MB over {mbps:g} Mbit/s, {2 * delay_ms:g} ms there and back")
    plain = measure("sockets", "", mbps, delay_ms)
    print(f"  plain sockets     {plain:6.2f} s, {ideal / plain:.2f} of the line", flush=True)
    for network, codec in (("TCP", ""), ("gRPC", ""), ("TCP", "fp16"), ("TCP", "int8")):
        seconds = measure(network, codec, mbps, delay_ms)
        print(
            f"  ring, {network:4} {codec or 'plain':6} {seconds:6.2f} s, {ideal / seconds:.2f} of "
            f"the line, {plain / seconds:.2f} of plain sockets",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int)
    parser.add_argument("--network", default="TCP")
    parser.add_argument("--codec", default="")
    parser.add_argument("addresses", nargs="*")
    given = parser.parse_args()
    if given.rank is None:
        main()
    elif given.network == "sockets":
        sockets(given.rank, given.addresses)
    else:
        member(given.rank, given.addresses, given.network, given.codec)
