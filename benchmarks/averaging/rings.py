"""Rings of 2 and 4 processes beside gloo's all_reduce, in turn, in the same processes."""

import multiprocessing as mp
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.averaging.member import Member
from benchmarks.local import free_addresses
from ravnest.wire.grpc_network import GrpcNetwork
from ravnest.wire.tcp_network import TcpNetwork

MEGABYTES, ROUNDS = 100, 7
CONTESTANTS: dict[str, tuple[Callable[[], Any], str | None]] = {
    "ring over TCP": (TcpNetwork, None),
    "ring over TCP, fp16": (TcpNetwork, "fp16"),
    "ring over TCP, int8": (TcpNetwork, "int8"),
    "ring over gRPC": (GrpcNetwork, None),
}


def process(rank: int, world: int, addresses: list[list[str]], store: int, report: Any) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    values = torch.randn(MEGABYTES * 250_000, generator=torch.Generator().manual_seed(rank))
    members = {
        name: Member(network, where, rank, values.clone(), codec)
        for (name, (network, codec)), where in zip(CONTESTANTS.items(), addresses, strict=True)
    }

    def all_reduce() -> None:
        dist.all_reduce(values)
        values.div_(world)

    runs: dict[str, Callable[[], None]] = {"gloo all_reduce": all_reduce}
    runs |= {name: member.round for name, member in members.items()}
    for number in range(ROUNDS + 1):
        for name, run in runs.items():
            dist.barrier()
            before, started = time.process_time(), time.perf_counter()
            run()
            spent = time.process_time() - before
            dist.barrier()
            if number:  # the first one warms up
                report.put((name, time.perf_counter() - started, spent))
    # What was averaged is the mean, whatever way it took.
    for name, member in members.items():
        off = (member.parameter.detach() - values).abs().max().item()
        assert off < (1e-6 if CONTESTANTS[name][1] is None else 1e-1), (name, off)
    for member in members.values():
        member.close()
    dist.destroy_process_group()


def compare(world: int) -> None:
    context = mp.get_context("spawn")
    report = context.Queue()
    addresses = [free_addresses(world) for _ in CONTESTANTS]
    store = int(free_addresses(1)[0].rpartition(":")[2])
    ends = [
        context.Process(target=process, args=(rank, world, addresses, store, report))
        for rank in range(world)
    ]
    for end in ends:
        end.start()
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(ROUNDS * world * (len(CONTESTANTS) + 1)):
        name, seconds, spent = report.get(timeout=300)
        found.setdefault(name, []).append((seconds, spent))
    for end in ends:
        end.join()
        if end.exitcode:
            raise SystemExit(f"a member ended with {end.exitcode}")
    gloo = statistics.median(seconds for seconds, _ in found["gloo all_reduce"])
    print(f"{world} processes, {MEGABYTES} MB, averaged MB/s (median of {ROUNDS}), CPU s of all")
    for name, times in found.items():
        middle = statistics.median(seconds for seconds, _ in times)
        spent = statistics.median(cpu for _, cpu in times) * world
        print(
            f"  {name:22} {MEGABYTES / middle:6.0f}   {gloo / middle:5.2f} x gloo   {spent:5.2f}",
            flush=True,
        )


def main() -> None:
    for world in (2, 4):
        compare(world)


if __name__ == "__main__":
    main()
