"""Where the addresses of a plan really are: some are only names that somebody looks up. Pure.

A plan may call a provider `provider-7:1`. Whoever starts the providers of such a plan finds out how
each of them is reached, directly or through a tunnel that begins on this machine, and says so in a
table. How anything is found out, and what is spoken along the way, is not known here.
"""

import re
from collections.abc import Mapping

from ravnest.errors import NodeError

_ADDRESS = re.compile(
    r"(?:(?P<host>[\w.-]+)|\[(?P<six>[0-9a-fA-F:.]+(?:%\w+)?)\]):(?P<port>[0-9]{1,5})"
)


class Routes:
    """From addresses of the plan to those that are dialled.

    Without a table, addresses are dialled as they are. With one, nothing else is dialled: a plan
    that comes from a server must not name places in the network of the provider's owner.
    """

    def __init__(self, table: Mapping[str, str] | None = None) -> None:
        if not isinstance(table, Mapping | None):
            raise NodeError(f"routes is {table!r}; expected addresses by addresses of the plan")
        self._is_complete = table is not None
        self._table = dict(table or {})
        for planned, real in self._table.items():
            what = f"the route from {planned!r} to {real!r}"
            split_address(planned, what)
            split_address(real, what)

    def real(self, address: str) -> str:
        if self._is_complete and address not in self._table:
            raise NodeError(
                f"routes do not say where {address} is; a table of routes has every neighbour in it"
            )
        return self._table.get(address, address)

    def name_of(self, address: str) -> str | None:
        """Who must answer there, where that does not follow from what is dialled."""
        return split_address(address, "the address")[0] if address in self._table else None


def split_address(address: object, what: str) -> tuple[str, int]:
    """Host and port; `what` says whose address it is, should it be none."""
    found = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
    port = int(found["port"]) if found else 0
    if found is None or not 0 < port < 1 << 16:
        raise NodeError(
            f"{what}: {address!r} is no address; expected host:port with a port from 1 to 65535, "
            "such as '203.0.113.7:8080' or '[::1]:8080'"
        )
    return found["host"] or found["six"], port
