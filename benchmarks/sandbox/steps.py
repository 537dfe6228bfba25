"""Trains a stage, so many steps for every line on stdin, and says how long they took.

What a worker does in small: forward, backward and an update of a loaded stage, and values of its
border sent through TCP and back. `confined` gives up what a worker with data only gives up.
"""

import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
from torch import nn

from ravnest.planning.study import study
from ravnest.sandbox.confine import forbid_programs
from ravnest.sandbox.memory_limit import limit_memory
from ravnest.stage.package import load_package, write_package
from ravnest.worker import training  # noqa: F401  (what a worker loads before it begins)

ROWS, WIDTH = 64, 512
MEMORY_BYTES = 4 << 30


def stage() -> nn.Module:
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    studied = study(nn.Sequential(*layers), (torch.randn(ROWS, WIDTH),))
    (graph,) = studied.stages([])
    weights = {spec.name: studied.held[spec.name].tensor for spec in graph.tensors}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stage"
        write_package(path, graph, weights, plan_id="bench", cluster=0)
        return load_package(path).module()


def echo(server: socket.socket) -> None:
    caller, _ = server.accept()
    with caller:
        while piece := caller.recv(1 << 16):
            caller.sendall(piece)


def neighbour() -> socket.socket:
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=echo, args=(server,), daemon=True).start()
    return socket.create_connection(server.getsockname())


def travel(line: socket.socket, content: bytes) -> None:
    line.sendall(content)
    left = len(content)
    while left:
        left -= len(line.recv(left))


def main(confined: bool) -> None:
    torch.set_num_threads(1)
    module, line = stage(), neighbour()
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    batch = torch.randn(ROWS, WIDTH)
    if confined:
        limit_memory(MEMORY_BYTES, 1)
        forbid_programs()
    print("ready", flush=True)
    for steps in sys.stdin:
        began, busy = time.perf_counter(), time.process_time()
        for _ in range(int(steps)):
            optimizer.zero_grad(set_to_none=True)
            out = module(batch)[0]
            travel(line, out.detach().numpy().tobytes())
            out.square().mean().backward()
            optimizer.step()
        print(time.perf_counter() - began, time.process_time() - busy, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] == ["confined"])
