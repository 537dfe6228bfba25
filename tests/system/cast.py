"""Everybody who takes part in a system test, as real processes: a server, providers, a requester.

Whatever is waited for is waited for on the server's live stream, with a deadline; nothing sleeps.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from namespaces import Host

from ravnest.api.views import JobView, Overview, ProviderView
from ravnest.session import Session

PATIENCE_S = 150.0
HERE = Host("", "127.0.0.1")
"""This machine itself."""


def command_on(host: Host, words: Sequence[str]) -> list[str]:
    command = [sys.executable, "-m", "ravnest", *words]
    return host.inside(command) if host.name else command


@dataclass
class ServerProcess:
    """May be killed and started again, with the same folder and port."""

    folder: Path
    host: Host = HERE
    options: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    port: int = 0
    ready: dict[str, str] = field(default_factory=dict)
    process: "subprocess.Popen[str] | None" = None

    def start(self) -> None:
        words = ["server", "--host", self.host.address, "--port", str(self.port), "--print-json"]
        words += ["--data", str(self.folder / "server"), "--settle", "1", *self.options]
        self.folder.mkdir(parents=True, exist_ok=True)
        log = (self.folder / "server.log").open("ab")
        with log:
            self.process = subprocess.Popen(
                command_on(self.host, words),
                env={**os.environ, **self.environment},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("{"), f"the server did not start: {self.log}"
        self.ready = {**self.ready, **{k: v for k, v in json.loads(line).items() if v}}
        self.port = int(self.ready["port"])

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()

    def end(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    @property
    def url(self) -> str:
        return f"https://{self.host.address}:{self.port}"

    @property
    def operator_token(self) -> str:
        return Path(self.ready["operator_token_file"]).read_text().strip()

    @property
    def log(self) -> str:
        return (self.folder / "server.log").read_text()


@dataclass
class ProviderProcess:
    name: str
    folder: Path
    process: "subprocess.Popen[bytes]"

    @property
    def log(self) -> str:
        return (self.folder / "join.log").read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)


@dataclass
class Cast:
    """Brings them on, and sees to it that all leave."""

    folder: Path
    server: ServerProcess
    providers: dict[str, ProviderProcess] = field(default_factory=dict)

    def join(self, name: str, *options: str, host: Host = HERE, home: str = "") -> ProviderProcess:
        folder = self.folder / (home or name)
        folder.mkdir(exist_ok=True)
        words = ["join", self.server.url, "--token", self.server.ready["join_token"]]
        words += ["--name", name, "--home", str(folder), "--threads", "1"]
        if not any(option.startswith(("--listen", "--no-listen")) for option in options):
            words += ["--listen", f"{host.address}:0"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (folder / "join.log").open("ab") as log:
            process = subprocess.Popen(
                command_on(host, [*words, *options]), env=environment, stdout=log, stderr=log
            )
        self.providers[name] = made = ProviderProcess(name, folder, process)
        return made

    def session(self) -> Session:
        return Session(self.server.url, self.server.operator_token)

    def wait(self, what: str, is_so: Callable[[Overview], bool]) -> Overview:
        """The first view of everything in which it is so."""
        last: Overview | None = None
        with self.session() as session:
            for last in session.watch(timeout_s=PATIENCE_S):
                if is_so(last):
                    return last
        raise AssertionError(f"waited in vain for: {what}\n{self.story(last)}")

    def wait_for_pool(self, count: int) -> Overview:
        return self.wait(f"{count} providers", lambda now: len(idle(now)) >= count)

    def wait_for_job(self, job: str, *states: str) -> JobView:
        """Until the job is in one of these states; a failure that is not among them is an error."""

        def is_so(now: Overview) -> bool:
            state = job_in(now, job).state
            assert state != "failed" or "failed" in states, self.story(now)
            return state in states

        return job_in(self.wait(f"job {job} {' or '.join(states)}", is_so), job)

    def story(self, now: Overview | None) -> str:
        """What a person would want to read when something went wrong."""
        events = [] if now is None else [event.text for event in now.events]
        jobs = [] if now is None else [(j.name, j.state, j.reason) for j in now.jobs]
        logs = [f"--- {name}\n{one.log[-1500:]}" for name, one in self.providers.items()]
        workers = [
            f"--- {path}\n{path.read_text()[-1500:]}"
            for path in self.folder.glob("*/records/*/worker.log")
        ]
        parts = [*map(str, jobs), *events, f"--- server\n{self.server.log[-3000:]}"]
        return "\n".join([*parts, *logs, *workers])


def idle(now: Overview) -> list[ProviderView]:
    return [one for one in now.providers if one.state == "idle" and one.measured]


def job_in(now: Overview, job: str) -> JobView:
    return next(one for one in now.jobs if one.id == job)


@contextlib.contextmanager
def cast(
    folder: Path, *options: str, host: Host = HERE, environment: Mapping[str, str] | None = None
) -> Iterator[Cast]:
    """A server that runs; providers join through what is yielded."""
    made = Cast(folder, ServerProcess(folder, host, options, environment or {}))
    made.server.start()
    try:
        yield made
    finally:
        running = [p.process for p in made.providers.values() if p.process.poll() is None]
        for process in running:  # twice: at once
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGTERM)
        for process in running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        made.server.kill()
