"""What a kernel leaves unwritten is zero in every process that runs foreign graphs."""

import os
import subprocess
import sys

import pytest

# What torch itself leaves unwritten: small, of some pages, and mapped by the system.
LOOK = """
import torch
def old():
    sizes = (8, 1000, 100_000, 1 << 22)
    for size in sizes:
        torch.full((size,), 7, dtype=torch.uint8)
    rows = torch.zeros(0, 5, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
    left = [torch.empty(size, dtype=torch.uint8) for size in sizes]
    left.append(torch.ops.aten.multi_margin_loss.default(*rows))
    return any(bool(each.ne(0).any()) for each in left)
"""
PLANNING = """
import sys; from pathlib import Path
from ravnest.server.planjob import __main__ as planjob
planjob._loaded()
"""
TRAINING = """
from types import SimpleNamespace as Named
from ravnest.worker import __main__ as worker, training
training.Training = lambda *_: None
order = Named(threads=1, memory_bytes=0, device_share=1.0, assignment=Named(script=None))
worker._made(order, None, None, None)
"""
PART = """
from ravnest.stage.zero_fill import fill_with_zeros, without_zero_fill
fill_with_zeros()
with without_zero_fill():
    assert old()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the heap that shows is glibc's")
@pytest.mark.parametrize("process", [PLANNING, TRAINING, PART], ids=["plan", "worker", "optimizer"])
def test_memory_that_a_kernel_leaves_unwritten_is_zero(process):
    tunables = "glibc.malloc.perturb=85:glibc.malloc.tcache_count=0"
    program = f"{LOOK}\nassert old()\n{process}\nassert not old()"
    env = {**os.environ, "GLIBC_TUNABLES": tunables}
    subprocess.run([sys.executable, "-c", program], check=True, env=env)
