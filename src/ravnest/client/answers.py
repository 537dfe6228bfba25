"""What went wrong in a conversation with a server, in words that say what to do about it."""

import datetime
import ssl
from collections.abc import Iterator
from typing import Any, TypeVar

import httpx
import msgspec

from ravnest.api.limits import NOT_UNDERSTOOD, plain
from ravnest.api.requests import Problem
from ravnest.client.address import ServerAddress
from ravnest.errors import JobError, RavnestError, ServerError, TokenError

_Answer = TypeVar("_Answer")
_MOST_FOREIGN_TEXT = 200
_PASSING = frozenset({408, 425, 429})
_SERVERS_FAULT = 500


class AnswerError(RavnestError):
    """The server has answered, and the answer is no. Raised as one of the three below."""

    def __init__(self, text: str, status: int, code: str, body: bytes) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        """For programs: see `Problem`."""
        self.body = body
        """The whole answer, should there be more in it than a `Problem`."""

    @property
    def passes(self) -> bool:
        """It is about the moment: too many requests, a full disk, a proxy before a server that is
        starting. The same request may be answered otherwise later."""
        return self.status in _PASSING or self.status >= _SERVERS_FAULT


class SaidNoError(AnswerError, ServerError):
    pass


class TokenRefusedError(AnswerError, TokenError):
    pass


class JobRefusedError(AnswerError, JobError):
    pass


def decode_plain(content: bytes | str, kind: type[_Answer]) -> _Answer:
    """What a server says (JSON). Its texts go to terminals, and a server may be hostile, or pass on
    what a hostile party has said: so all of them are `plain` from the start. What does not belong
    to that kind is passed over while it is read; as objects it would take fifty times the room."""
    found: _Answer = _plain(msgspec.json.decode(content, type=kind))
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value))
    if isinstance(value, dict):
        return {plain(name): _plain(each) for name, each in value.items()}
    if isinstance(value, msgspec.Struct):  # it was made just now, and is known here alone
        for name in value.__struct_fields__:
            msgspec.structs.force_setattr(value, name, _plain(getattr(value, name)))
    return value


def refusal(status: int, body: bytes, path: str, bearer_note: str = "") -> AnswerError:
    """The error that an answer other than success stands for, in the server's own words; with the
    note, if it is about who has asked."""
    try:
        problem = msgspec.json.decode(body, type=Problem)
        text, code = problem.error, problem.code
    except NOT_UNDERSTOOD:
        start = body[:_MOST_FOREIGN_TEXT].decode("utf-8", errors="replace").strip()
        text = f"{path} answers with status {status}" + (f": {start}" if start else "")
        code = "unauthorized" if status == 401 else "foreign"
    text = plain(text)  # it goes to a terminal
    kind: type[AnswerError] = SaidNoError
    if status in (401, 403):
        kind = TokenRefusedError
        text += f". {bearer_note}" * bool(bearer_note)
    elif "/jobs" in path and 400 <= status < 500 and status != 429:
        kind = JobRefusedError
    return kind(text, status, code, body)


def failure_in_words(error: BaseException, address: ServerAddress) -> str:
    """Why no answer came, and what to look at."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _certificate_in_words(cause, address)
        if isinstance(cause, ssl.SSLError):
            plain = "HTTP_REQUEST" in str(cause) or "WRONG_VERSION" in str(cause)
            hint = "; it seems to speak plain HTTP" if plain else ""
            return f"{address}: no encrypted connection could be made ({cause.reason}){hint}"
        if isinstance(cause, ConnectionRefusedError):
            return f"connection refused: is the server running at {address}?"
        if isinstance(cause, OSError) and cause.strerror:
            return f"{address} cannot be reached: {cause.strerror}"
    if isinstance(error, httpx.TimeoutException | TimeoutError):
        return f"{address} does not answer in time: is there a firewall in between?"
    if isinstance(error, httpx.RemoteProtocolError):
        return f"{address} does not speak HTTP as a server does ({error}); is the port right?"
    return f"the conversation with {address} broke off: {str(error) or type(error).__name__}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _certificate_in_words(error: ssl.SSLCertVerificationError, address: ServerAddress) -> str:
    now = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    match error.verify_code:  # by OpenSSL's numbers
        case 10:
            return (
                f"the certificate of {address} has expired, if it is {now} as this machine's clock "
                "says: set the clock, or restart the server, which renews its certificate"
            )
        case 9:
            return (
                f"the certificate of {address} is not valid yet, if it is {now} as this machine's "
                "clock says: set the clock of this machine (or of the server, if that one is ahead)"
            )
        case 62:
            return f"{address} is no Ravnest server: its certificate is made out to somebody else"
    return (
        f"{address} is not the server that is known here ({error.verify_message}): its certificate "
        "was not signed by the same authority. If the server was set up anew, a new token is needed"
    )
