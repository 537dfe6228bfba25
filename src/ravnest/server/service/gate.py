"""Authentication and authorisation of a call, and its rate limits.

A caller without a token may look if the server is started with `--dashboard open`, else nothing. No
address and no header stands for a token: a proxy in front has the address of this machine.
"""

import time
from collections.abc import Callable, Mapping
from typing import Literal

from ravnest.errors import TokenError
from ravnest.server.access import ONLOOKER, Access, Caller, Right
from ravnest.server.connection_limits import address_group
from ravnest.server.service.problems import Refusal
from ravnest.server.service.ratelimit import RATES, Buckets

Dashboard = Literal["local", "open", "token"]
"""`open` lets everybody look without a token. `local` and `token` are the same to the server:
people look with `ravnest dashboard`, which has a token."""

_WITH_LITTLE = ("stranger", "call")
"""Requests with at most a small body: whoever makes too many of them loses the connection, or could
keep any number of them open by asking now and then. Of others it would break off what is sent."""
_MADE = "from `ravnest token make {}` on the server's machine"
_OWNERS = "this takes the token that the job was submitted with, or an operator's"
_TAKES: dict[Right, str] = {
    "ask": "this takes a token",
    "enrol": f"joining takes a provider token, {_MADE.format('provider')}",
    "work": "this takes the credential of a machine that has joined",
    "look": f"looking takes a viewer token, {_MADE.format('viewer')}",
    "submit": f"submitting takes a requester token, {_MADE.format('requester')}",
    "fetch": _OWNERS,
    "steer": _OWNERS,
    "operate": "this takes an operator token; one is in operator.token in the server's folder",
}


class Gate:
    def __init__(
        self,
        access: Access,
        *,
        open_dashboard: bool = False,
        per_address: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.access = access
        self._open_dashboard = open_dashboard
        self.per_address = per_address
        self._clock = clock
        self._buckets = Buckets(RATES)

    def caller(self, headers: Mapping[str, str], address: str) -> Caller | None:
        """Who this is, None for a stranger; a `Refusal` if what they show is not accepted."""
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        if not kind:
            return ONLOOKER if self._open_dashboard else None
        try:
            if kind.lower() != "bearer":
                raise TokenError("the Authorization header must be: Bearer TOKEN")
            return self.access.caller(bearer.strip(), self._clock())
        except TokenError as error:
            self._count_wrong(address)
            raise Refusal("unauthorized", str(error)) from None

    def _count_wrong(self, address: str) -> None:
        # A good token is taken all the same: others may share the address.
        if self.per_address and not self._buckets.take(
            "wrong", address_group(address), self._clock()
        ):
            raise Refusal(
                "limited",
                "too many refused requests from this address; wait a minute",
                ends=True,
            ) from None

    def allow(self, caller: Caller | None, right: Right, address: str) -> Caller:
        if caller is None:
            self.limit_stranger(address)
            raise Refusal("unauthorized", "a token is needed for this (Authorization: Bearer …)")
        if not caller.may(right):
            self._count_wrong(address)
            raise Refusal("forbidden", f"{_shown(caller)}; {_TAKES[right]}")
        return caller

    def limit_stranger(self, address: str) -> None:
        if self.per_address:
            self.limit("stranger", address_group(address))

    def limit(self, kind: str, key: str, tokens: float = 1.0) -> None:
        if not self._buckets.take(kind, key, self._clock(), tokens):
            said = f"too many requests of this kind ({kind}); slow down"
            raise Refusal("limited", said, ends=kind in _WITH_LITTLE)


def _shown(caller: Caller) -> str:
    kinds = {
        "machine": "this is the credential of a provider",
        "onlooker": "no token was given",
        "operator": "this is an operator token",
        "provider": "this is a provider token, which only enrols machines",
    }
    return kinds.get(caller.kind, f"this is a {caller.kind} token")
