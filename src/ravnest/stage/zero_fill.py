"""Memory of tensors on the CPU, zeroed when it is allocated.

A kernel that leaves a part of its result unwritten hands out what the process held there before:
in a worker that may be the key of its provider. Guards keep known kernels from it; this holds for
all of them, also for those of a backward. Torch's allocator has a switch for it, which programs in
C++ set on their command line. `malloc` has one too (glibc.malloc.perturb), which fills what is
given back as well and costs three times as much.

Not covered: memory of a GPU, and a torch without that switch.
"""

import contextlib
import ctypes
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

_LIBRARIES = {"win32": "c10.dll", "darwin": "libc10.dylib"}
_SWITCH = "FLAGS_caffe2_cpu_allocator_do_zero_fill"


@functools.cache
def _switch() -> ctypes.c_bool | None:
    path = Path(torch.__file__).parent / "lib" / _LIBRARIES.get(sys.platform, "libc10.so")
    try:
        return ctypes.c_bool.in_dll(ctypes.CDLL(str(path)), _SWITCH)
    except (OSError, ValueError):
        return None


def fill_with_zeros() -> bool:
    """From now on, in this process; whether this torch can."""
    switch = _switch()
    if switch is not None:
        switch.value = True
    return switch is not None


@contextlib.contextmanager
def without_zero_fill() -> Iterator[None]:
    """For kernels that are known to write all of their results, called while no graph computes."""
    switch = _switch()
    if switch is None or not switch.value:
        yield
        return
    switch.value = False
    try:
        yield
    finally:
        switch.value = True
