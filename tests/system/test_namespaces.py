"""The hosts that other tests are run on are as far apart as they are meant to be."""

import subprocess
import sys

import pytest
from namespaces import Host, network

pytestmark = pytest.mark.needs("namespaces")

LISTEN = (
    "import socket; s = socket.create_server(('', 5000)); print('up', flush=True); "
    "c = s.accept()[0]; n = 0\n"
    "while data := c.recv(1 << 16): n += len(data)\n"
    "print(n, flush=True)"
)
CALL = "import socket; socket.create_connection(({address!r}, 5000), 2).sendall(bytes({size}))"


def call(caller: Host, address: str, size: int = 1) -> int:
    program = CALL.format(address=address, size=size)
    command = caller.inside([sys.executable, "-c", program])
    return subprocess.run(command, capture_output=True, check=False).returncode


def listener(host: Host) -> "subprocess.Popen[str]":
    command = host.inside([sys.executable, "-c", LISTEN])
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def test_near_hosts_reach_each_other_and_hosts_apart_reach_the_server_only():
    with network() as net:
        one, other, apart = net.near(), net.near(), net.apart()
        with listener(other) as near_end:
            assert call(apart, other.address) != 0
            assert call(one, other.address, 70_000) == 0
            assert near_end.communicate()[0] == "70000\n"
        with listener(net.server) as server_end:
            assert call(apart, net.server.address, 70_000) == 0
            assert server_end.communicate()[0] == "70000\n"
        with listener(apart) as lonely_end:
            assert call(one, apart.address) != 0
            assert call(net.server, apart.address, 5) == 0
            assert lonely_end.communicate()[0] == "5\n"
