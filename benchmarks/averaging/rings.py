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

    weights, flat = values.clone(), torch.empty_like(values)

    def all_reduce() -> None:
        dist.all_reduce(values)
        values.div_(world)

    def gloo_round() -> None:
        """The same work as a round: a snapshot, and the difference applied to the weights."""
        flat.copy_(weights)
        dist.all_reduce(flat)
        flat.div_(world).sub_(weights)
        weights.add_(flat)

    runs: dict[str, Callable[[], None]] = {"gloo all_reduce": all_reduce, "gloo round": gloo_round}
    runs |= {name: member.round for name, member in members.items()}
    for number in range(ROUNDS + 1):
        for name, run in runs.items():
            dist.barrier()
            before, started = time.process_time(), time.perf_counter()
            run()
            spent = time.process_time() - before
            dist.barrier()
            whole = time.perf_counter() - started
            exchange = members[name].exchange_s if name in members else whole
            if number:  # the first one warms up
                report.put((name, whole, exchange, spent))
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
    found: dict[str, list[tuple[float, ...]]] = {}
    for _ in range(ROUNDS * world * (len(CONTESTANTS) + 2)):
        name, *figures = report.get(timeout=300)
        found.setdefault(name, []).append(tuple(figures))
    for end in ends:
        end.join()
        if end.exitcode:
            raise SystemExit(f"a member ended with {end.exitcode}")
    middle = {
        name: [statistics.median(column) for column in zip(*times, strict=True)]
        for name, times in found.items()
    }
    bare, whole = middle["gloo all_reduce"][1], middle["gloo round"][0]
    print(f"{world} processes, {MEGABYTES} MB, medians of {ROUNDS}")
    for name, (seconds, exchange, spent) in middle.items():
        print(
            f"  {name:20} exchange {MEGABYTES / exchange:5.0f} MB/s {bare / exchange:5.2f} x gloo"
            f"   whole round {MEGABYTES / seconds:5.0f} MB/s {whole / seconds:5.2f} x gloo"
            f"   CPU s {spent * world:5.2f}",
            flush=True,
        )


def main() -> None:
    for world in (2, 4):
        compare(world)


if __name__ == "__main__":
    main()
