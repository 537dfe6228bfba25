"""Where a server is, as people type it: `https://host:port`, `host:port`, `host`, with IPv6."""

import ipaddress
import re
from dataclasses import dataclass
from typing import Literal

from ravnest.api import DEFAULT_PORT, VERSION
from ravnest.errors import ServerError

_ADDRESS = re.compile(
    r"(?:(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*)://)?"
    r"(?:(?P<host>[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?)|\[(?P<six>[0-9a-fA-F:.]+)\])"
    r"(?::(?P<port>[0-9]{1,5}))?/?"
)
_EXAMPLES = f"such as 203.0.113.7:{DEFAULT_PORT}, https://train.example.org or [2001:db8::7]:443"


@dataclass(frozen=True)
class ServerAddress:
    """`host` is without the brackets of IPv6."""

    host: str
    port: int = DEFAULT_PORT
    scheme: Literal["https", "http"] = "https"

    @classmethod
    def parse(cls, text: str, *, insecure: bool = False) -> "ServerAddress":
        """`insecure` allows http, which is refused otherwise: tokens would travel in the open."""
        found = _ADDRESS.fullmatch(text.strip())
        if found is None:
            bare_six = _is_ip(text.strip()) and ":" in text
            hint = f"; an IPv6 address is written in brackets: [{text.strip()}]" * bare_six
            raise ServerError(f"{text!r} is no address of a server, {_EXAMPLES}{hint}")
        scheme = (found["scheme"] or ("http" if insecure else "https")).lower()
        if scheme not in ("https", "http"):
            raise ServerError(f"{text!r} begins with {scheme}://; a server is at https://…")
        if scheme == "http" and not insecure:
            raise ServerError(
                f"{text!r} is not encrypted: anybody on the way could read the token. Write "
                "https://, or add --insecure if the server really runs without TLS"
            )
        host = found["host"] or found["six"]
        if found["six"] and not _is_ip(host):
            raise ServerError(f"{text!r}: [{host}] is no IPv6 address")
        port = int(found["port"] or DEFAULT_PORT)
        if not 0 < port < 1 << 16:
            raise ServerError(f"{text!r}: a port is a number from 1 to 65535")
        return cls(host.lower(), port, "http" if scheme == "http" else "https")

    @property
    def host_port(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host_port}"

    @property
    def api(self) -> str:
        return f"{self.url}/api/v{VERSION}"

    @property
    def websocket_api(self) -> str:
        """The same for a WebSocket."""
        return "ws" + self.api.removeprefix("http")

    @property
    def folder(self) -> str:
        """A name for files that belong to this server."""
        return re.sub(r"[^A-Za-z0-9.-]", "_", f"{self.host}_{self.port}")

    @property
    def is_local(self) -> bool:
        """On this machine: nothing on the way to it, no proxy either."""
        return self.host == "localhost" or (
            _is_ip(self.host) and ipaddress.ip_address(self.host).is_loopback
        )

    def __str__(self) -> str:
        return self.url


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
