"""What does each codec save, what does it cost, and how much does it change?

    .venv/bin/python benchmarks/compression/codecs.py

One thread, tensors of 4 MB, or of as many as the argument says. GB/s count the bytes of the plain
tensor; the median of many turns, each codec in turn, beside a plain copy into new memory. Errors
are the root of the mean square, relative to that of the tensor: of Gaussian numbers, and of
Gaussian numbers every thousandth of which is a hundred times as large.
"""

import functools
import statistics
import sys
import time
from collections.abc import Callable

import torch

from ravnest.wire.codecs import CODECS, Packed, codec_named, unpack

TURNS = 30


def seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def relative_error(name: str, values: torch.Tensor) -> float:
    packed = codec_named(name).pack(values)
    found = unpack(packed) if isinstance(packed, Packed) else packed
    return float((found - values).norm() / values.norm())


def main(megabytes: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    gaussian = torch.randn(megabytes << 18)
    outliers = gaussian.clone()
    outliers[torch.randperm(len(outliers))[: len(outliers) // 1000]] *= 100
    packed: dict[str, Packed] = {}
    for name in CODECS:
        one = codec_named(name).pack(gaussian)
        assert isinstance(one, Packed)
        packed[name] = one
    actions: dict[str, Callable[[], object]] = {"copy": gaussian.clone}
    for name in CODECS:
        actions[f"pack {name}"] = functools.partial(codec_named(name).pack, gaussian)
        actions[f"unpack {name}"] = functools.partial(unpack, packed[name])
    taken: dict[str, list[float]] = {key: [] for key in actions}
    for _ in range(TURNS):
        for key, action in actions.items():
            action()
            taken[key].append(seconds(action))
    speed = {key: gaussian.nbytes / statistics.median(all_) / 1e9 for key, all_ in taken.items()}

    print(f"{megabytes} MB of float32, torch {torch.__version__}, one thread")
    print("codec    smaller   pack GB/s  unpack GB/s   error: Gaussian   outliers")
    print(f"copy        1.00x {speed['copy']:11.2f}")
    for name in CODECS:
        print(
            f"{name:8} {gaussian.nbytes / packed[name].nbytes:7.2f}x"
            f" {speed[f'pack {name}']:11.2f} {speed[f'unpack {name}']:12.2f}"
            f" {relative_error(name, gaussian):17.2e} {relative_error(name, outliers):10.2e}"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
