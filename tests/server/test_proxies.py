"""Proxies in front of a real server: plain ones, and nginx as docs/server.md has it."""

import asyncio
import contextlib
import hashlib
import re
import socket
import subprocess
import threading
from pathlib import Path

import httpx
import pytest
from fake_agent import FakeAgent
from servers import closed, running_server

from ravnest.ports import free_ports

WAIT_S = 30
HERE = "127.0.0.1"
DOCUMENT = Path(__file__).parents[2] / "docs" / "server.md"


@contextlib.contextmanager
def tcp_proxy(port):
    """Bytes there and back, and not a word about where they come from."""
    with socket.create_server((HERE, 0)) as listener:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    near, _ = listener.accept()
                    far = socket.create_connection((HERE, port), WAIT_S)
                    for ends in ((near, far), (far, near)):
                        threading.Thread(target=carry, args=ends, daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def carry(source, target):
    with contextlib.suppress(OSError):
        while piece := source.recv(1 << 16):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def nginx(folder, config, port):
    folder.mkdir()
    path = folder / "nginx.conf"
    path.write_text(config)
    command = ["nginx", "-p", str(folder), "-e", "stderr", "-c", str(path)]
    more = f"daemon off; pid {folder}/nginx.pid;"
    with subprocess.Popen([*command, "-g", more], stderr=subprocess.PIPE, text=True) as process:
        try:
            until_it_listens(port, process)
            yield port
        finally:
            process.terminate()


def until_it_listens(port, process):
    for _ in range(300):
        if process.poll() is not None:
            raise AssertionError(process.stderr.read())
        with contextlib.suppress(OSError), socket.create_connection((HERE, port), WAIT_S):
            return
        threading.Event().wait(0.1)
    raise AssertionError("nginx does not listen")


PLAIN = """
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
    uwsgi_temp_path {folder}; scgi_temp_path {folder};
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass https://127.0.0.1:{behind}; }}
    }}
}}
"""


@contextlib.contextmanager
def plain_nginx(folder, behind):
    (port,) = free_ports(1)
    config = PLAIN.format(folder=folder / "nginx", port=port, behind=behind)
    with nginx(folder / "nginx", config, port):
        yield port


@pytest.mark.parametrize("path", ["overview", "stream", "metrics", "jobs", "openapi.json"])
@pytest.mark.parametrize("dashboard", ["local", "token"])
def test_a_plain_tcp_proxy_opens_nothing(tmp_path, dashboard, path):
    with (
        running_server(tmp_path, dashboard=dashboard) as server,
        tcp_proxy(server.ready.port) as port,
        server.client() as client,
    ):
        assert client.get(f"https://{HERE}:{port}/healthz").status_code == 200
        assert client.get(f"https://{HERE}:{port}/api/v1/{path}").status_code == 401


@pytest.mark.needs("nginx")
def test_nginx_without_forwarding_headers_opens_nothing(tmp_path):
    with (
        running_server(tmp_path / "server", dashboard="local") as server,
        plain_nginx(tmp_path, server.ready.port) as port,
    ):
        assert httpx.get(f"http://{HERE}:{port}/healthz").status_code == 200
        refused = httpx.get(f"http://{HERE}:{port}/api/v1/overview")
        assert refused.status_code == 401
        viewer = {"Authorization": f"Bearer {server.token('viewer')}"}
        seen = httpx.get(f"http://{HERE}:{port}/api/v1/overview", headers=viewer)
        assert seen.status_code == 200


@contextlib.contextmanager
def documented_nginx(folder, behind):
    """The set-up of the document, with other ports."""
    (config,) = re.findall(r"```nginx\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    (port,) = free_ports(1)
    for said, meant in (
        ("192.0.2.10:8470", f"{HERE}:{port}"),
        (f"{HERE}:8470", f"{HERE}:{behind}"),
    ):
        assert config.count(said) == 1
        config = config.replace(said, meant)
    with nginx(folder / "nginx", config, port):
        yield port


@pytest.fixture
def behind_nginx(tmp_path):
    with (
        running_server(tmp_path / "server", dashboard="local", behind_proxy=True) as server,
        documented_nginx(tmp_path, server.ready.port) as port,
    ):
        yield server, f"https://{HERE}:{port}", port


async def connects(server, url):
    agent = await FakeAgent.enrol(url, server.token("provider"), authority=server.authority)
    async with agent.connected():
        return agent


@pytest.mark.needs("nginx")
def test_everything_goes_through_nginx_as_documented(behind_nginx):
    server, url, _ = behind_nginx
    agent = asyncio.run(connects(server, url))
    content = bytes(range(256)) * 20_000
    path = f"{url}/api/v1/blobs/{hashlib.sha256(content).hexdigest()}"
    with server.client(server.operator) as client:
        assert client.put(path, content=content).status_code == 204
        assert client.head(path).status_code in (200, 204)
        overview = client.get(f"{url}/api/v1/overview").json()
        assert [one["id"] for one in overview["providers"]] == [agent.provider]
    with server.client() as client:
        page = client.get(f"{url}/")
        assert (page.status_code, "<html" in page.text) == (200, True)
        assert client.get(f"{url}/api/v1/overview").status_code == 401


@pytest.mark.needs("nginx")
def test_silent_connections_stay_in_nginx_and_an_agent_gets_in(behind_nginx):
    server, url, port = behind_nginx
    with contextlib.ExitStack() as stack:
        for number in range(1000):
            flood = socket.create_connection((HERE, port), WAIT_S, (f"127.0.0.{2 + number % 2}", 0))
            stack.enter_context(flood)
        one_more = socket.create_connection((HERE, port), WAIT_S, ("127.0.0.2", 0))
        assert closed(stack.enter_context(one_more))
        asyncio.run(connects(server, url))


@pytest.mark.needs("nginx")
def test_behind_a_proxy_wrong_tokens_of_some_do_not_shut_others_out(behind_nginx):
    server, url, _ = behind_nginx
    with server.client("rav1_nonsense") as client:
        assert {client.get(f"{url}/api/v1/whoami").status_code for _ in range(60)} == {401}
    with server.client(server.operator) as client:
        assert client.get(f"{url}/api/v1/whoami").status_code == 200
