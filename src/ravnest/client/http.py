"""Requests to a server: structures in, structures out, files both ways, errors in its own words.

One client may be used by several threads. Nothing here retries what might have been done already;
files are told by their content, so their transfers are taken up again where they broke off.
"""

import contextlib
import hashlib
import ssl
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx
import msgspec

from ravnest.api.limits import NOT_UNDERSTOOD, encode, plain
from ravnest.api.requests import Enrolled, Renewed, TokenMade
from ravnest.api.trust_anchor import TrustAnchor
from ravnest.api.views import JobView, Me, ProviderView
from ravnest.client.address import ServerAddress
from ravnest.client.answers import decode_plain, failure_in_words, refusal
from ravnest.client.stranger import UNPACKED
from ravnest.client.trust import pinned_context
from ravnest.errors import ServerError
from ravnest.release import VERSION

Query = Mapping[str, str | int | float]
_Answer = TypeVar("_Answer")
_MOST_ANSWER_BYTES = 256 << 20
_SMALL = frozenset({type(None), Me, Enrolled, Renewed, TokenMade, ProviderView, JobView})
"""Answers about one thing, or about nothing: there is no reason to hear much."""
_MOST_SMALL_BYTES = 1 << 20
_MOST_REFUSAL_BYTES, _LONGEST_REFUSAL_S = 1 << 20, 10.0
"""Of an answer that is no: there may be more, and it may never end."""
_TIMEOUT = httpx.Timeout(60.0, connect=15.0)


class HttpClient:
    """A server, seen from a program that holds a token or a credential (`bearer`).

    `authority` is what `fetch_authority` has given; None only without TLS.
    """

    def __init__(
        self,
        address: ServerAddress,
        *,
        authority: TrustAnchor | None,
        bearer: str | None = None,
        bearer_note: str = "",
    ) -> None:
        """`bearer_note` is added to what the server says when it refuses the bearer."""
        self.address = address
        self.authority = authority
        self.bearer = bearer
        self._bearer_note = bearer_note
        self.closed = threading.Event()
        """Ends whatever waits between two attempts."""
        if authority is None and address.scheme == "https":
            raise ServerError(f"{address} is not known yet: its authority has to be fetched first")
        self.context: ssl.SSLContext | None = pinned_context(authority) if authority else None
        headers = {"User-Agent": f"ravnest/{VERSION}", **UNPACKED}
        if bearer is not None:
            headers["Authorization"] = f"Bearer {bearer}"
        self._http = httpx.Client(
            verify=self.context or True,
            headers=headers,
            timeout=_TIMEOUT,
            trust_env=not address.is_local,
        )

    # ---- structures ----

    def get(self, path: str, kind: type[_Answer], **query: str | int | float) -> _Answer:
        """`path` begins behind /api/v1, with a slash."""
        body = self._asked("GET", path, query=query, most=_most_bytes(kind))
        return self._decoded(path, body, kind)

    def get_bytes(self, path: str, **query: str | int | float) -> bytes:
        return self._asked("GET", path, query=query)

    def get_text(self, path: str, **query: str | int | float) -> str:
        return plain(self.get_bytes(path, **query).decode("utf-8", errors="replace"))

    def post(
        self, path: str, body: msgspec.Struct | None, kind: type[_Answer], **query: str | int
    ) -> _Answer:
        """`kind` is what the answer is decoded as; `type(None)` if it does not matter."""
        content = b"" if body is None else encode(body)
        most = _most_bytes(kind)
        answer = self._asked("POST", path, content=content, query=query, most=most)
        return self._decoded(path, answer, kind)

    def read(self, path: str, answer: httpx.Response, kind: type[_Answer]) -> _Answer:
        """What `open` was answered with, as `get` and `post` take it."""
        return self._decoded(path, self._read(answer, path, _most_bytes(kind)), kind)

    def delete(self, path: str) -> None:
        self._asked("DELETE", path, most=_MOST_SMALL_BYTES)

    def exists(self, path: str) -> bool:
        """What HEAD says: there, or not."""
        with self.open("HEAD", path, accept={404}) as answer:
            return answer.status_code != 404

    def _asked(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        query: Query | None = None,
        most: int = _MOST_ANSWER_BYTES,
    ) -> bytes:
        headers = {"Content-Type": "application/json"} if content else {}
        with self.open(method, path, content=content, query=query, headers=headers) as answer:
            return self._read(answer, path, most)

    def _read(self, answer: httpx.Response, path: str, most: int) -> bytes:
        body = bytearray()
        for piece in answer.iter_bytes():
            body += piece
            if len(body) > most:
                raise ServerError(f"{self.address}: the answer to {path} is too large")
        return bytes(body)

    def _decoded(self, path: str, body: bytes, kind: type[_Answer]) -> _Answer:
        if kind is type(None):
            return None
        try:
            return decode_plain(body, kind)
        except NOT_UNDERSTOOD as error:
            raise ServerError(
                f"{self.address} answers to {path} with something this release does not "
                f"understand ({error}); do server and client have the same version?"
            ) from error

    # ---- below structures ----

    @contextlib.contextmanager
    def open(
        self,
        method: str,
        path: str,
        *,
        content: bytes | Iterator[bytes] | None = None,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
        accept: Collection[int] = (),
        timeout_s: float | None = None,
    ) -> Iterator[httpx.Response]:
        """An answer whose body has not been read: a success, or a status in `accept`."""
        options: dict[str, Any] = {}
        if self.closed.is_set():
            raise ServerError(
                f"the conversation with {self.address} is over: its Session was closed. Begin "
                "another one"
            )
        if timeout_s is not None:
            options["timeout"] = httpx.Timeout(timeout_s)
        try:
            with self._http.stream(
                method,
                self.address.api + path,
                content=content,
                params=query or None,
                headers=headers,
                **options,
            ) as answer:
                if not answer.is_success and answer.status_code not in accept:
                    said_no = refusal(
                        answer.status_code, _start_of(answer), path, self._bearer_note
                    )
                    if answer.status_code == httpx.codes.REQUEST_TIMEOUT:
                        raise BrokenOffError(str(said_no))  # the line stood still
                    raise said_no
                packed = answer.headers.get("Content-Encoding", "identity")
                if packed != "identity":
                    raise ServerError(
                        f"{self.address} sends {path} packed ({packed!r:.50}), which it was not "
                        "asked to do; is there a proxy in between?"
                    )
                yield answer
        except httpx.TransportError as error:
            raise BrokenOffError(failure_in_words(error, self.address)) from error

    def close(self) -> None:
        self.closed.set()
        self._http.close()

    def __enter__(self) -> "HttpClient":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _start_of(refused: httpx.Response) -> bytes:
    body, ends_at = bytearray(), time.monotonic() + _LONGEST_REFUSAL_S
    for piece in refused.iter_raw():
        body += piece
        if len(body) >= _MOST_REFUSAL_BYTES or time.monotonic() > ends_at:
            break
    return bytes(body[:_MOST_REFUSAL_BYTES])


class BrokenOffError(ServerError):
    """No answer, or only a part of one: nothing that the server has said. Worth another attempt,
    unless it is the very first one that fails."""


def hash_file(path: Path) -> tuple[str, int]:
    """SHA-256 and size."""
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return sha256, file.tell()


def _most_bytes(kind: type) -> int:
    return _MOST_SMALL_BYTES if kind in _SMALL else _MOST_ANSWER_BYTES
