"""A real PostgreSQL server for tests: a cluster in a temporary folder, on a unix socket only."""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

_USER = "postgres"


def binaries() -> Path:
    """The folder of initdb and postgres."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: float(p.parent.name))
    assert versions, "no PostgreSQL here: install the package postgresql (apt install postgresql)"
    return versions[-1]


@contextlib.contextmanager
def running_postgres() -> Iterator[str]:
    """The beginning of a URL: put the name of a database in the middle with `database_url`."""
    folder = Path(tempfile.mkdtemp(prefix="ravnest-pg-", dir="/tmp"))
    folder.chmod(0o755)
    data = folder / "data"
    data.mkdir()
    as_user: list[str] = []
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        account = pwd.getpwnam(_USER)
        for path in (folder, data):
            os.chown(path, account.pw_uid, account.pw_gid)
        as_user = ["runuser", "-u", _USER, "--"]
    control = [*as_user, str(binaries() / "pg_ctl"), "-D", str(data), "-w", "-t", "60"]
    try:
        _run(
            [*as_user, str(binaries() / "initdb"), "-D", str(data), "-U", "ravnest", "-A", "trust"]
        )
        options = f"-c listen_addresses='' -c unix_socket_directories='{folder}'"
        _run([*control, "-l", str(data / "log"), "-o", options, "start"])
        try:
            yield str(folder)
        finally:
            _run([*control, "-m", "immediate", "stop"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def database_url(socket: str, name: str) -> str:
    return f"postgresql://ravnest@/{name}?host={socket}"


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
        cwd="/",
        check=False,
    )
    assert done.returncode == 0, done.stdout.decode()
