"""Which providers of this user run on this machine, and at which addresses: each holds locks.

    <temporary folder>/ravnest-<user>/<authority>-<provider>-<network and address>.lock

Loopback leads to services that are for this machine alone, so a provider is dialled there only if
it is known to run here. The address that it connects to a server from does not tell: a tunnel or a
proxy beside the server has loopback's as well, and behind it is the whole world. So an agent holds
a lock for each address that it names, as long as it runs and in a folder of its user alone; the
system gives it back however the agent ends. Agents of other users do not find it: they go through
the relay.
"""

import contextlib
import hashlib
import os
import platform
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from ravnest.api.dialling import Endpoint
from ravnest.api.trust_anchor import TrustAnchor
from ravnest.errors import RavnestError, RunDirError
from ravnest.locks import NoLocksError, only_one

_HELD_S = 0.1
"""A lock that is not given back for so long is an agent's: those who look hold it for a moment."""
_START_S = 2.0


class Rendezvous:
    """Of providers of one authority: servers number their providers alike."""

    def __init__(self, authority: TrustAnchor, folder: Path | None = None) -> None:
        self._authority = authority.fingerprint.hex()
        self._folder = folder or _of_this_user()

    @contextlib.contextmanager
    def present(self, provider: int, addresses: Iterable[str]) -> Iterator[None]:
        """Others of this user find that provider at these meanwhile; where there is no folder or
        no lock for it, they go through the relay."""
        with contextlib.ExitStack() as held:
            with contextlib.suppress(OSError, RavnestError):
                for lock in self._made(provider, addresses):
                    held.callback(_remove, lock)
                    held.enter_context(
                        only_one(lock, otherwise=RunDirError("taken"), wait_s=_START_S)
                    )
            yield

    def _made(self, provider: int, addresses: Iterable[str]) -> list[Path]:
        self._folder.mkdir(exist_ok=True, mode=0o700)
        if not _is_private(self._folder):
            return []
        # An agent that was killed has left its own; one at a time has this identity.
        for left in self._folder.glob(f"{self._authority}-{provider}-*.lock"):
            left.unlink()
        named = [each for each in map(Endpoint.parse, addresses) if each is not None]
        return [self._lock(provider, each) for each in named]

    def has(self, provider: int, endpoint: Endpoint) -> bool:
        """Whether an agent of this user is that provider and has named that address, now."""
        lock = self._lock(provider, endpoint)
        try:
            if not _is_private(self._folder) or not lock.exists():
                return False
            with only_one(lock, otherwise=RunDirError("taken"), wait_s=_HELD_S):
                return False
        except (NoLocksError, OSError):
            return False
        except RunDirError:
            return True

    def _lock(self, provider: int, endpoint: Endpoint) -> Path:
        place = hashlib.sha256(f"{_network()} {endpoint}".encode()).hexdigest()[:16]
        return self._folder / f"{self._authority}-{provider}-{place}.lock"


def _of_this_user() -> Path:
    user = os.getuid() if os.name == "posix" else ""  # elsewhere each has a temporary folder
    return Path(tempfile.gettempdir()) / f"ravnest-{user}"


def _is_private(folder: Path) -> bool:
    """Another user of this machine may have made it first."""
    found = folder.lstat()
    is_ours = os.name != "posix" or (found.st_uid == os.getuid() and not found.st_mode & 0o077)
    return stat.S_ISDIR(found.st_mode) and is_ours


def _network() -> str:
    """Whose loopback it is: containers have their own, and may have this folder in common."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.stat('/proc/thread-self/ns/net').st_ino}"
    except OSError:
        return platform.node()


def _remove(lock: Path) -> None:
    with contextlib.suppress(OSError):
        lock.unlink()
