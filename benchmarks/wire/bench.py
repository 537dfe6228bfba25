"""How fast do links carry tensors between two processes, and what does it cost?

    python3 dev.py bench wire

Loopback, one process at each end: links over gRPC and over TCP, gloo's send/recv, plain sockets.
Throughput with 64 MB tensors (GB/s), processor time of both ends per GB, and the round trip of a
4 kB tensor. All in one run, in turn; medians.
"""

import asyncio
import multiprocessing as mp
import os
import socket
import statistics
import struct
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from ravnest.wire.encoding import Parcel
from ravnest.wire.endpoint import Endpoint
from ravnest.wire.grpc_network import GrpcNetwork
from ravnest.wire.link import Arrived, Up
from ravnest.wire.messages import Command
from ravnest.wire.peers import Peer
from ravnest.wire.streams import Network
from ravnest.wire.tcp_network import TcpNetwork

LARGE, SMALL = 64 << 20, 4 << 10
COUNT, TRIPS = 12, 300
Report = "mp.Queue[tuple[str, float]]"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# ---- our links -------------------------------------------------------------------------------


async def link_end(network: Network, rank: int, ports: list[int], report: Report) -> None:
    events: asyncio.Queue[object] = asyncio.Queue()

    def heard(event: object) -> None:
        if isinstance(event, Arrived):
            event.link.consumed()
        events.put_nowait(event)

    async def arrived() -> None:
        while not isinstance(await events.get(), Arrived):
            pass

    me, other = (Peer(f"node_{r}", f"127.0.0.1:{ports[r]}") for r in (rank, 1 - rank))
    endpoint = Endpoint(network, run="bench", node=me.node, on_event=heard)
    await endpoint.listen(me.address)
    link = await (endpoint.dial(other) if rank == 0 else endpoint.expect(other))
    while not isinstance(await events.get(), Up):
        pass
    for name, size, count in (("trip", SMALL, TRIPS), ("bulk", LARGE, COUNT)):
        parcel = Parcel(Command(order="flush"), (torch.ones(size // 4),))
        done = Parcel(Command(order="done"))
        before, started = time.process_time(), time.perf_counter()
        for _ in range(count):
            if rank == 0:
                link.send(parcel)
            if name == "trip" or rank == 1:
                await arrived()
            if rank == 1 and name == "trip":
                link.send(parcel)
        if name == "bulk":
            link.send(done) if rank == 1 else await arrived()
        report.put((f"{name} s", time.perf_counter() - started))
        report.put((f"{name} cpu", time.process_time() - before))
    await endpoint.close()


def over_grpc(rank: int, ports: list[int], report: Report) -> None:
    asyncio.run(link_end(GrpcNetwork(), rank, ports, report))


def over_tcp(rank: int, ports: list[int], report: Report) -> None:
    asyncio.run(link_end(TcpNetwork(), rank, ports, report))


# ---- the others ------------------------------------------------------------------------------


def gloo(rank: int, ports: list[int], report: Report) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(ports[0]))
    dist.init_process_group("gloo", rank=rank, world_size=2)

    def send(tensor: torch.Tensor) -> None:
        dist.send(tensor, 1 - rank)

    def receive(tensor: torch.Tensor) -> None:
        dist.recv(tensor, 1 - rank)

    exchange(rank, send, receive, report)
    dist.destroy_process_group()


def sockets(rank: int, ports: list[int], report: Report) -> None:
    if rank == 0:
        with socket.create_server(("127.0.0.1", ports[0])) as server:
            connection, _ = server.accept()
    else:
        for _ in range(100):
            try:
                connection = socket.create_connection(("127.0.0.1", ports[0]))
                break
            except OSError:
                time.sleep(0.05)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(tensor: torch.Tensor) -> None:
        connection.sendall(struct.pack("<Q", tensor.nbytes))
        connection.sendall(tensor.view(torch.uint8).numpy().data)

    def receive(tensor: torch.Tensor) -> None:
        header = bytearray(8)
        fill(memoryview(header))
        fill(tensor.view(torch.uint8).numpy().data)

    def fill(view: memoryview) -> None:
        while len(view):
            view = view[connection.recv_into(view) :]

    exchange(rank, send, receive, report)
    connection.close()


def exchange(
    rank: int,
    send: Callable[[torch.Tensor], None],
    receive: Callable[[torch.Tensor], None],
    report: Report,
) -> None:
    for name, size, count in (("trip", SMALL, TRIPS), ("bulk", LARGE, COUNT)):
        tensor = torch.ones(size // 4)
        before, started = time.process_time(), time.perf_counter()
        for _ in range(count):
            if rank == 0:
                send(tensor)
            if name == "trip" or rank == 1:
                receive(tensor)
            if name == "trip" and rank == 1:
                send(tensor)
        if name == "bulk":
            tiny = torch.ones(1)
            send(tiny) if rank == 1 else receive(tiny)
        report.put((f"{name} s", time.perf_counter() - started))
        report.put((f"{name} cpu", time.process_time() - before))


def measure(contestant: Callable[[int, list[int], Report], None]) -> dict[str, float]:
    context = mp.get_context("spawn")
    report = context.Queue()
    ports = [free_port(), free_port()]
    ends = [context.Process(target=contestant, args=(r, ports, report)) for r in (0, 1)]
    for end in ends:
        end.start()
    found: dict[str, list[float]] = {}
    for _ in range(8):
        name, value = report.get(timeout=120)
        found.setdefault(name, []).append(value)
    for end in ends:
        end.join()
    gigabytes = COUNT * LARGE / 1e9
    return {
        "GB/s": gigabytes / max(found["bulk s"]),
        "cpu s/GB": sum(found["bulk cpu"]) / gigabytes,
        "round trip ms": max(found["trip s"]) / TRIPS * 1e3,
    }


def main() -> None:
    contestants = {
        "link over gRPC": over_grpc,
        "link over TCP": over_tcp,
        "gloo send/recv": gloo,
        "plain sockets": sockets,
    }
    rounds = [{name: measure(run) for name, run in contestants.items()} for _ in range(3)]
    for name in contestants:
        middle = {
            what: statistics.median(one[name][what] for one in rounds) for what in rounds[0][name]
        }
        print(f"{name:16}", "  ".join(f"{what} {value:.2f}" for what, value in middle.items()))


if __name__ == "__main__":
    main()
