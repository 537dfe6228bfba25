"""The way to a server and what it says: names, certificates, clocks, the token, the links."""

import email.utils
import ipaddress
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ravnest import __version__
from ravnest.agent.identity import Identity, load_identity
from ravnest.api.limits import NOT_UNDERSTOOD
from ravnest.api.requests import Health
from ravnest.api.views import ProviderView
from ravnest.cli.doctor.findings import Check, Finding, broken, note, ok
from ravnest.client.answers import decode_plain
from ravnest.client.known import Access, open_client, who_is
from ravnest.client.stranger import Answer, ask
from ravnest.errors import RavnestError, ServerError, TokenError
from ravnest.planning.figures import plain

LITTLE_SKEW_S, MUCH_SKEW_S = 5.0, 300.0
"""Certificates of some minutes ago are refused by a clock that is behind by more."""
HEALTH_S = 15.0
"""For all pings together."""
PINGS = 5
PROBE_BYTES = 4 << 20


class ServerVisit:
    """Checks of one server, in order; what one has found is there for the next."""

    def __init__(self, access: Access, home: Path) -> None:
        self._access = access
        self._home = home
        """Of this machine's provider, if it is one."""
        self._identity: Identity | None = None
        """Once the server has recognised it."""
        self._offset_s: float | None = None
        self._delays_s: list[float] = []

    def checks(self) -> dict[str, Check]:
        return {
            "name": self.name,
            "server": self.health,
            "clock": self.clock,
            "token": self.token,
            "provider": self.provider,
            "links": self.links,
        }

    def name(self) -> Iterator[Finding]:
        host = self._access.address.host
        try:
            ipaddress.ip_address(host)
            return
        except ValueError:
            pass
        try:
            found = socket.getaddrinfo(host, self._access.address.port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            remedy = "is it spelled right? Try the address itself, such as 192.0.2.7:8470"
            yield broken("name", f"{host} has no address: {error.strerror}", remedy)
            return
        yield ok("name", f"{host} is {', '.join(sorted({str(one[4][0]) for one in found}))}")

    def health(self) -> Iterator[Finding]:
        """Answered to strangers, so whatever is wrong here is wrong with the way."""
        address = self._access.address
        try:
            # Who it is, the check of the token finds out.
            answers = ask(address, f"{address.url}/healthz", within_s=HEALTH_S, times=PINGS)
        except ServerError as error:
            remedy = "on its machine: ravnest server. Is a firewall or another network between?"
            yield broken("server", str(error), remedy)
            return
        self._delays_s += [answer.took_s for answer in answers]
        answer = answers[-1]
        self._note_time(answer)
        try:
            health = decode_plain(answer.body, Health)
        except NOT_UNDERSTOOD:
            text = f"{address} answers, but not as a Ravnest server (status {answer.status})"
            yield broken("server", text, "is the port right? A server's default is 8470")
            return
        text = f"{address} answers: ravnest {health.version}, {health.status}"
        if health.version != __version__:
            yield note("server", text, f"this is ravnest {__version__}: use the same on both sides")
        else:
            yield ok("server", text)

    def _note_time(self, answer: Answer) -> None:
        try:
            theirs = email.utils.parsedate_to_datetime(answer.headers["Date"]).timestamp()
        except (KeyError, ValueError):
            return
        # The header has whole seconds, cut off: half of one is the best guess.
        self._offset_s = theirs + 0.5 - (time.time() - self._delays_s[-1] / 2)

    def clock(self) -> Iterator[Finding]:
        if self._offset_s is None:
            return
        offset = self._offset_s
        away = f"{plain(abs(offset), 2)} s {'behind' if offset > 0 else 'ahead of'} the server's"
        remedy = "set it, best by NTP (timedatectl set-ntp true), here or on the server"
        if abs(offset) > MUCH_SKEW_S:
            yield broken("clock", f"this machine's clock is {away}", remedy)
        elif abs(offset) > LITTLE_SKEW_S:
            yield note("clock", f"this machine's clock is {away}", remedy)
        else:
            yield ok("clock", "agrees with the server's")

    def token(self) -> Iterator[Finding]:
        if not self._delays_s:
            return
        if self._access.token is None and self._access.authority is None:
            text = "none is known on this machine for this server"
            if load_identity(self._home, self._access.address) is not None:
                yield ok("token", f"{text}; a machine that has joined needs none")
                return
            yield note("token", text, "give --token, as its operator has given it to you")
            return
        try:
            with open_client(self._access) as client:
                me = who_is(client)
        except TokenError as error:
            remedy = "its operator makes another with `ravnest token make`"
            yield broken("token", str(error), remedy)
        except RavnestError as error:
            yield broken("token", str(error))
        else:
            yield ok("token", _accepted(me.role))

    def provider(self) -> Iterator[Finding]:
        """What the server knows of this machine, if it has joined. That takes no token."""
        identity = load_identity(self._home, self._access.address)
        if identity is None or not self._delays_s:
            return
        try:
            with identity.client(self._access.address) as client:
                yield _known(client.get("/providers/me", ProviderView))
        except TokenError:
            text = f"the server does not know provider {identity.provider} any more"
            remedy = "join again with a provider token: ravnest join URL --token …"
            yield broken("provider", text, remedy)
        else:
            self._identity = identity

    def links(self) -> Iterator[Finding]:
        if not self._delays_s:
            return
        delay = statistics.median(self._delays_s) * 1e3
        text = f"an answer takes {plain(delay, 2)} ms"
        if self._identity is None:
            yield ok("links", f"{text}; the bandwidth is measured when this machine joins")
            return
        with self._identity.client(self._access.address) as client:
            down = _mbps(lambda: client.get_bytes("/probe/down", bytes=PROBE_BYTES))

            def send() -> None:
                with client.open("POST", "/probe/up", content=bytes(PROBE_BYTES)) as answer:
                    answer.read()

            up = _mbps(send)
        yield ok("links", f"{text}; {plain(down)} Mbit/s from the server, {plain(up)} Mbit/s to it")


def _known(one: ProviderView) -> Finding:
    text = f"this machine is provider {one.id} ({one.name}), {one.state}"
    if one.state == "away":
        return note("provider", text, "its agent is not running: ravnest join URL")
    if not one.reachable:
        remedy = "open the port of --listen in firewall and router to be faster than by relay"
        return note("provider", f"{text}; nobody has reached it directly", remedy)
    return ok("provider", f"{text}; reached directly")


def _accepted(role: str) -> str:
    if role == "provider":
        return "a provider token of this server; good for `ravnest join`"
    if role == "onlooker":
        return "none, and the server lets this machine look without one"
    return f"the server is the right one, and takes this {role} token"


def _mbps(transfer: Callable[[], object]) -> float:
    began = time.monotonic()
    transfer()
    return PROBE_BYTES * 8 / 1e6 / max(time.monotonic() - began, 1e-6)
