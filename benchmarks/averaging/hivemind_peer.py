"""hivemind's averager on the same vector: 2 and 4 members, each a process of its own.

    python benchmarks/averaging/hivemind_peer.py        (a Python with hivemind 1.1 in it)

What is timed is the exchange alone: once the group is assembled the members start together, and
each one's time runs until hivemind hands it the result. Looking for the group is left out.
hivemind's own settings stand: no compression, parts of half a megabyte, TLS between the members.
"""

import contextlib
import os
import select
import signal
import statistics
import subprocess
import sys
import time
from typing import Any

import torch

MEGABYTES, ROUNDS, PATIENCE_S, LOOKING_S = 100, 7, 60, 20


def meet(said: object) -> list[str]:
    """Say a word, and go on once every member has said one; these are they."""
    print(said, flush=True)
    return sys.stdin.readline().split() or sys.exit("the parent is gone")


def group(averager: Any) -> Any:
    """A step whose group is assembled; now and then hivemind leaves a member out of one."""
    while True:
        meet("looking")
        control = averager.step(
            wait=False, require_trigger=True, allow_retries=False, timeout=LOOKING_S
        )
        while control.stage.name in ("IDLE", "LOOKING_FOR_GROUP"):
            time.sleep(0.002)
        if set(meet(control.stage.name)) == {"AWAITING_TRIGGER"}:
            return control
        control.cancel()


def member(rank: int, world: int, peers: list[str]) -> None:
    from hivemind import DHT
    from hivemind.averaging import DecentralizedAverager

    torch.set_num_threads(1)
    dht = DHT(initial_peers=peers, start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    if rank == 0:
        print(*dht.get_visible_maddrs(), flush=True)  # the others' way in
    vectors = [
        torch.randn(MEGABYTES * 250_000, generator=torch.Generator().manual_seed(number))
        for number in range(world)
    ]
    own, mean = vectors[rank], sum(vectors) / world
    averager = DecentralizedAverager(
        (own.clone(),),
        dht,
        prefix="bench",
        start=True,
        target_group_size=world,
        min_group_size=world,
        allreduce_timeout=PATIENCE_S,
    )
    for _ in range(ROUNDS + 1):
        with averager.get_tensors() as (vector,):
            vector.copy_(own)
        control = group(averager)
        started = time.perf_counter()
        control.allow_allreduce()
        control.result(timeout=PATIENCE_S)
        meet(time.perf_counter() - started)
        with averager.get_tensors() as (vector,):
            off = (vector - mean).abs().max().item()
        assert off < 1e-5, f"off the mean by {off}"
    meet("done")
    averager.shutdown()
    dht.shutdown()


def start(rank: int, world: int, peers: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, str(rank), str(world), *peers],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # hivemind starts processes of its own: they end together
    )


def hear(end: subprocess.Popen[str]) -> str:
    assert end.stdout
    heard = select.select([end.stdout], [], [], 2 * PATIENCE_S)[0]
    line = end.stdout.readline() if heard else ""
    if not line:
        sys.exit("a member has failed")
    return line.strip()


def gather(ends: list[subprocess.Popen[str]]) -> list[str]:
    """What every member said where they meet, told to all of them."""
    said = [hear(end) for end in ends]
    for end in ends:
        assert end.stdin
        end.stdin.write(" ".join(said) + "\n")
        end.stdin.flush()
    return said


def measure(world: int) -> None:
    ends: list[subprocess.Popen[str]] = []
    peers: list[str] = []
    times: list[float] = []
    try:
        for rank in range(world):
            ends.append(start(rank, world, peers))
            if rank == 0:
                peers = hear(ends[0]).split()
        for number in range(ROUNDS + 1):
            gather(ends)
            while set(gather(ends)) != {"AWAITING_TRIGGER"}:
                gather(ends)
            spent = gather(ends)
            if number:  # the first one warms up
                times += map(float, spent)
        gather(ends)
        for end in ends:
            if end.wait(PATIENCE_S):
                sys.exit(f"a member ended with {end.returncode}")
    finally:
        for end in ends:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(end.pid, signal.SIGKILL)
    middle = statistics.median(times)
    print(f"{world} processes, {MEGABYTES} MB, medians of {ROUNDS}")
    print(f"  {'hivemind':20} exchange {MEGABYTES / middle:5.0f} MB/s", flush=True)


def main() -> None:
    for world in (2, 4):
        measure(world)


if __name__ == "__main__":
    try:
        import hivemind  # noqa: F401
    except ImportError as error:
        sys.exit(f"hivemind is not installed here, there is nothing to time: {error}")
    if len(sys.argv) > 1:
        member(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
    else:
        main()
