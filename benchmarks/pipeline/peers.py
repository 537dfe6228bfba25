"""The same training by torch.distributed.pipelining on gloo: GPipe, 1F1B and zero-bubble.

python benchmarks/pipeline/peers.py SCHEDULE MICRO_BATCHES     (starts its own two processes)
"""

import itertools
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import job
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleZBVZeroBubble,
)

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "zbv": ScheduleZBVZeroBubble}


def cut(pieces: int) -> list[nn.Sequential]:
    """Equal numbers of blocks; the ends go to the first and the last piece."""
    layers = list(job.make_model())
    blocks = layers[1:-1]
    bounds = [len(blocks) * k // pieces for k in range(pieces + 1)]
    found = [blocks[a:b] for a, b in itertools.pairwise(bounds)]
    found[0] = [layers[0], *found[0]]
    found[-1] = [*found[-1], layers[-1]]
    return [nn.Sequential(*piece) for piece in found]


def work(rank: int, name: str, parts: int, port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    device = torch.device("cpu")
    if name == "zbv":  # a V of four pieces: the first process has the outer two
        pieces = cut(4)
        mine = [0, 3] if rank == 0 else [1, 2]
        stages = [PipelineStage(pieces[k], k, 4, device) for k in mine]
        schedule = SCHEDULES[name](stages, parts, loss_fn=job.loss_of)
        is_last = rank == 0
    else:
        pieces = cut(2)
        mine = [rank]
        stage = PipelineStage(pieces[rank], rank, 2, device)
        schedule = SCHEDULES[name](stage, parts, loss_fn=job.loss_of)
        is_last = rank == 1
    parameters = [p for k in mine for p in pieces[k].parameters()]
    optimizer = job.make_optimizer(parameters)
    pace = job.Pace()
    for batch in job.batches(job.WARM_UP + job.MEASURED):
        optimizer.zero_grad()
        given = (batch,) if rank == 0 else ()
        wanted = {"target": batch, "losses": []} if is_last else {}
        schedule.step(*given, **wanted)
        optimizer.step()
        pace.batch_done()
    if rank == 0:
        print("PACE", pace.batches_per_second, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    port = 20_000 + os.getpid() % 20_000
    mp.spawn(work, args=(sys.argv[1], int(sys.argv[2]), port), nprocs=2)
