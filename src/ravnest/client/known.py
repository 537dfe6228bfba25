"""Which server is meant, and with which token: what was said, else the environment, else what was
used last on this machine, else the server that runs here.

    ~/.ravnest/servers.json    servers that this user has used, with token and authority (0600)
               servers.lock    held by whoever changes it
    ~/.ravnest/server/         a server's own folder, if one runs here (see `server`)
    ~/.ravnest/provider/       which servers this machine has joined (see `agent`)
"""

import contextlib
import os
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from ravnest.api import DEFAULT_PORT
from ravnest.api.limits import NOT_UNDERSTOOD
from ravnest.api.tokens import Token
from ravnest.api.trust_anchor import TrustAnchor
from ravnest.api.views import Me
from ravnest.client.address import ServerAddress
from ravnest.client.http import HttpClient
from ravnest.client.trust import fetch_authority
from ravnest.errors import ServerError, TokenError
from ravnest.locks import NoLocksError, only_one
from ravnest.whole import PRIVATE, write_whole

SERVER_VARIABLE, TOKEN_VARIABLE = "RAVNEST_SERVER", "RAVNEST_TOKEN"
OPERATOR_TOKEN = "operator.token"
_LOCKED_S = 10.0
"""It takes a moment."""
_THIS_MACHINE = ("127.0.0.1", "localhost")
ADDRESS_FILE = "address"
"""In the folder of a server: where it can be reached, one address in a line; the first from this
machine, the others from elsewhere too."""


_WHO_MAKES_TOKENS = (
    "Its operator makes one: `ravnest token make viewer` to look, `ravnest token make requester` "
    "to submit"
)
_OF_A_SERVER_HERE = (
    "If that server runs on this machine with --data DIR, its operator's token is in that folder: "
    '--token "$(cat DIR/operator.token)"'
)


class NoServerError(ServerError):
    """None was named, and none is known here."""


class KnownServer(msgspec.Struct, kw_only=True):
    token: str = ""
    authority: str = ""
    used_at: float = 0.0


class JoinedServer(msgspec.Struct):
    """What matters here of the identity of a provider."""

    server: str = ""


class KnownServers(msgspec.Struct, kw_only=True):
    """The file. Keys are addresses as `str(ServerAddress)` writes them."""

    servers: dict[str, KnownServer] = msgspec.field(default_factory=dict)


@dataclass(frozen=True)
class Access:
    """Enough to talk to a server. `authority` is None as long as it has not been fetched."""

    address: ServerAddress
    token: str | None = None
    authority: TrustAnchor | None = None
    token_note: str = field(default="", compare=False)
    """Said when the token is refused, if nobody has typed it: where it is from."""


def home() -> Path:
    """Where this user's files of Ravnest are; RAVNEST_HOME moves them."""
    return Path(os.environ.get("RAVNEST_HOME") or Path.home() / ".ravnest")


def find_access(
    server: str | None = None,
    token: str | None = None,
    *,
    insecure: bool = False,
    environment: Mapping[str, str] = os.environ,
    folder: Path | None = None,
) -> Access:
    """What to use, from what was said and what is known. Talks to nobody."""
    folder = folder or home()
    server = server or environment.get(SERVER_VARIABLE) or None
    token = token or environment.get(TOKEN_VARIABLE) or None
    if token is not None:
        token = str(Token.parse(token))
    known = read_known(folder).servers
    address = ServerAddress.parse(server, insecure=insecure) if server else None
    if address is None:
        address = _last_used(known) or _local_address(folder)
    if address is None:
        raise NoServerError(_nothing_known(folder))
    entry = _remembered(known, address)
    operator = _operator_token(folder, address)
    found = token or entry.token or operator or None
    note = ""
    if token is None and entry.token:
        note = _note(f"that {folder / 'servers.json'} remembers for {address}")
        if operator not in (None, entry.token):
            note += f'. The operator\'s is here: --token "$(cat {_quoted(_operator_file(folder))})"'
    elif token is None and operator:
        note = _note(f"in {_operator_file(folder)}")
    return Access(address, found, _authority_for(found, entry, address, folder), note)


def open_client(access: Access) -> HttpClient:
    """A client for it; the authority is fetched and checked if it is not known yet."""
    if access.address.scheme == "https" and access.authority is None:
        if access.token is None:
            here = access.address.is_local
            raise TokenError(
                f"a token is needed to recognise {access.address}: give --token (or "
                f"{TOKEN_VARIABLE}). {_OF_A_SERVER_HERE if here else _WHO_MAKES_TOKENS}"
            )
        fingerprint = Token.parse(access.token).fingerprint
        try:
            authority = fetch_authority(access.address, fingerprint)
        except TokenError as error:
            if not access.token_note:
                raise
            raise TokenError(f"{error}. {access.token_note}") from error
        access = replace(access, authority=authority)
    return HttpClient(
        access.address,
        authority=access.authority,
        bearer=access.token,
        bearer_note=access.token_note,
    )


def who_is(client: HttpClient) -> Me:
    """Whom the server takes this client for: the way to try a token. An error says what is wrong
    with it, or with the way to the server."""
    return client.get("/whoami", Me)


def read_known(folder: Path) -> KnownServers:
    path = folder / "servers.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=KnownServers)
    except FileNotFoundError:
        return KnownServers()
    except NOT_UNDERSTOOD as error:
        raise ServerError(f"{path} cannot be understood ({error}); remove it") from error


def remember(access: Access, folder: Path) -> None:
    """The next call of `find_access` there finds this server."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = folder / "servers.lock"
    held = ServerError(f"another command of Ravnest has held {lock} for {_LOCKED_S:.0f} s")
    with contextlib.ExitStack() as alone:
        # From reading to writing: what another command adds meanwhile would be lost. Some homes on
        # a network have no locks; there it may be, and costs an option the next time.
        with contextlib.suppress(NoLocksError):
            alone.enter_context(only_one(lock, otherwise=held, wait_s=_LOCKED_S))
        known = read_known(folder)
        known.servers[str(access.address)] = KnownServer(
            token=access.token or "",
            authority=access.authority.pem if access.authority else "",
            used_at=time.time(),
        )
        write_private(folder / "servers.json", msgspec.json.format(msgspec.json.encode(known)))


def write_private(path: Path, content: bytes) -> None:
    """Readable by this user alone, and so is the folder if there was none."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(path, content, PRIVATE)


def _authority_for(
    token: str | None, entry: KnownServer, address: ServerAddress, folder: Path
) -> TrustAnchor | None:
    """The stored one belongs to the stored token; for another token it is fetched anew."""
    if not entry.authority:
        return None
    try:
        authority = TrustAnchor.parse(entry.authority)
        if entry.token and Token.parse(entry.token).fingerprint != authority.fingerprint:
            raise ValueError("it is not the one of the token beside it")
    except ValueError as error:
        # An earlier release believed an impostor that answered with two authorities in one text.
        raise ServerError(
            f"{folder / 'servers.json'} holds no certificate of the authority of {address} that "
            f"can be trusted: {error}. An impostor may have posed as that server and know the "
            "token: have its operator revoke it (ravnest token revoke), remove that file, and "
            "give the new one with --token"
        ) from None
    if token is not None and Token.parse(token).fingerprint != authority.fingerprint:
        return None
    return authority


def _note(where: str) -> str:
    return f"The token is the one {where}, as none was given; --token gives another"


def _remembered(known: Mapping[str, KnownServer], address: ServerAddress) -> KnownServer:
    """`localhost` and `127.0.0.1` are one server. Not without TLS: whoever answers at the other of
    the two is not known to be the same."""
    found = known.get(str(address))
    if found is None and address.scheme == "https" and address.host in _THIS_MACHINE:
        twins = (str(replace(address, host=host)) for host in _THIS_MACHINE)
        found = next((known[twin] for twin in twins if twin in known), None)
    return found or KnownServer()


def _last_used(known: Mapping[str, KnownServer]) -> ServerAddress | None:
    if not known:
        return None
    latest = max(known, key=lambda address: known[address].used_at)
    # It was let in once with --insecure, so it needs no second consent.
    return ServerAddress.parse(latest, insecure=latest.startswith("http://"))


def _nothing_known(folder: Path) -> str:
    joined = [name for name in map(_joined, _identities(folder)) if name]
    if joined:
        return (
            f"this machine is a provider of {' and '.join(joined)} (`ravnest provider status`); to "
            f"look at all of it takes --server {joined[0]} and a token with --token (or "
            f"{TOKEN_VARIABLE}). {_WHO_MAKES_TOKENS}, on its machine"
        )
    return (
        "no server is known on this machine: name one with --server https://host:port (or "
        f"{SERVER_VARIABLE}), and the token that its operator has given you with --token (or "
        f"{TOKEN_VARIABLE})"
    )


def _identities(folder: Path) -> list[Path]:
    return sorted((folder / "provider" / "identity").glob("*/identity.json"))


def _joined(identity: Path) -> str:
    try:
        return msgspec.json.decode(identity.read_bytes(), type=JoinedServer).server
    except (OSError, *NOT_UNDERSTOOD):
        return ""  # whoever needs it will complain


def _addresses(folder: Path) -> list[str]:
    """Of the server whose folder is here, by default beside this user's other files."""
    if not _operator_file(folder).is_file():
        return []
    try:
        lines = (folder / "server" / ADDRESS_FILE).read_text().lower().split()
    except FileNotFoundError:
        lines = []
    return lines or [f"https://{host}:{DEFAULT_PORT}" for host in _THIS_MACHINE]


def _local_address(folder: Path) -> ServerAddress | None:
    found = _addresses(folder)
    return ServerAddress.parse(found[0], insecure=True) if found else None


def _operator_token(folder: Path, address: ServerAddress) -> str | None:
    """Whoever may read it on the server's machine is its operator. Another server on this machine,
    at another port, is not told it."""
    if address.url not in _addresses(folder):
        return None
    try:
        return _operator_file(folder).read_text().strip() or None
    except (FileNotFoundError, PermissionError):
        return None


def _operator_file(folder: Path) -> Path:
    return folder / "server" / OPERATOR_TOKEN


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
