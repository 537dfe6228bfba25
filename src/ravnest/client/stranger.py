"""Questions to a server of which nothing is known yet: whoever answers may be anybody.

So nothing secret is said, nothing is believed, and what comes is bounded: in bytes, and in time as
a whole. The time limits of the library below hold for every single read: somebody who sends a byte
now and then, headers without end or "wait" again and again would never be at an end.
"""

import ssl
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass

import httpx

from ravnest.client.address import ServerAddress
from ravnest.client.answers import failure_in_words
from ravnest.errors import ServerError

UNPACKED = {"Accept-Encoding": "identity"}
"""Said with every request: what is packed may unfold to more than there is memory."""
_MOST_BYTES = 64 << 10


@dataclass(frozen=True)
class Answer:
    status: int
    headers: httpx.Headers
    body: bytes
    """As it came; one that was packed all the same is not unpacked."""
    took_s: float


def ask(address: ServerAddress, url: str, *, within_s: float, times: int = 1) -> list[Answer]:
    """GET it so many times over one connection; `ServerError` if that cannot be done in time."""
    found = Future[list[Answer]]()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    options = {"verify": context, "timeout": within_s, "trust_env": not address.is_local}

    def work() -> None:
        try:
            found.set_result([_answer(http, url, address) for _ in range(times)])
        except Exception as error:
            found.set_exception(error)

    with httpx.Client(headers=UNPACKED, **options) as http:  # type: ignore[arg-type]
        # If it takes too long, its connection is closed under it, and it ends at the next read.
        threading.Thread(target=work, name="stranger", daemon=True).start()
        try:
            return found.result(within_s)
        except (httpx.HTTPError, TimeoutError) as error:
            raise ServerError(failure_in_words(error, address)) from error


def _answer(http: httpx.Client, url: str, address: ServerAddress) -> Answer:
    began, body = time.monotonic(), bytearray()
    with http.stream("GET", url) as answer:
        for piece in answer.iter_raw():
            body += piece
            if len(body) > _MOST_BYTES:
                raise ServerError(
                    f"{address} is no Ravnest server: its answer to {url} is too large"
                )
    return Answer(answer.status_code, answer.headers, bytes(body), time.monotonic() - began)
