"""One provider of the thin link's pipeline; says how fast and busy its stage was."""

import json
import sys
import time
from pathlib import Path
from typing import Any, Literal, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "pipeline")]

import thin_link  # noqa: E402
import torch  # noqa: E402
from emulated_provider import slowly  # noqa: E402

from ravnest import Node  # noqa: E402


class Seen(NamedTuple):
    """What a stage had done when a micro-batch was over."""

    at: float
    busy_s: float
    sent_bytes: int


def watch(runner: Any) -> list[Seen]:
    seen: list[Seen] = []
    backward = runner._backward

    def watched(instruction: Any) -> None:
        backward(instruction)
        link = runner.next or runner.previous
        seen.append(Seen(time.monotonic(), runner.meter.busy_s, link.traffic.sent_bytes))

    runner._backward = watched
    return seen


def codec_of(packing: Any) -> str:
    return "none" if packing._codec is None else type(packing._codec).__name__.lower()


def main(name: str, codec: str, transport: Literal["grpc", "tcp"]) -> None:
    torch.set_num_threads(1)
    size = thin_link.SIZES[name]
    data = thin_link.data_of(size)
    node = Node(
        optimizer=torch.optim.AdamW,
        optimizer_params={"lr": 3e-4},
        criterion=thin_link.loss_of,
        labels=data,
        compression={"none": False, "auto": True}.get(codec, codec),
        transport=transport,
    )
    runner: Any = node.runtime.runner
    parts = node.micro_batches
    if size.stage_s:
        passes, third_s = runner._passes, size.stage_s / parts / 3
        passes.forward = slowly(passes.forward, third_s)
        passes.backward = slowly(passes.backward, 2 * third_s)
    seen = watch(runner)
    began = time.monotonic()
    for batch in data if node.is_root else ():
        node.forward_compute(batch)
    node.wait_for_backwards()
    trained_s = time.monotonic() - began
    if node.is_root:
        node.finish_training()
    else:
        node.serve_until_trained()
    first, last = seen[parts * size.warm_up - 1], seen[-parts * thin_link.TAIL - 1]
    elapsed_s = last.at - first.at
    packing = runner._pack_forward if node.is_root else runner._pack_backward
    found = {
        "stage": node.document.stage,
        "rows_per_s": size.rows * size.measured / elapsed_s,
        "busy": (last.busy_s - first.busy_s) / elapsed_s,
        "mbps": 8e-6 * (last.sent_bytes - first.sent_bytes) / elapsed_s,
        "codec": codec_of(packing),
        "window": runner.window.size,
        "trained_s": trained_s,
    }
    print("STAGE", json.dumps(found), flush=True)
    node.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3])  # type: ignore[arg-type]
