"""How a caller is told no: a status, a word for programs, a sentence for people."""

import msgspec
from starlette.responses import Response

from ravnest.api.limits import MOST_TEXT
from ravnest.api.requests import Code, Problem

STATUS: dict[Code, int] = {
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "too_large": 413,
    "invalid": 400,
    "conflict": 409,
    "limited": 429,
    "late": 408,
    "failed": 500,
    "full": 507,
    "ending": 503,
}
_LATER = {"Retry-After": "4"}

_HEADERS: dict[Code, dict[str, str]] = {
    "unauthorized": {"WWW-Authenticate": "Bearer"},
    # The rest of the body is not waited for.
    "late": {"Connection": "close"},
    "limited": _LATER,
    "ending": _LATER | {"Connection": "close"},
}


class Refusal(Exception):  # noqa: N818  it is an answer, not a mistake of ours
    """Raised anywhere in a request; it becomes the answer."""

    def __init__(self, code: Code, error: str, *, ends: bool = False) -> None:
        # Callers have a hand in it (a name in a body of 64 MB), and it is logged too.
        self.error = error[:MOST_TEXT]
        super().__init__(self.error)
        self.code = code
        self.ends = ends
        """Nothing else is taken from this connection."""

    @property
    def status(self) -> int:
        return STATUS[self.code]

    def response(self) -> Response:
        body = msgspec.json.encode(Problem(error=self.error, code=self.code))
        headers = _HEADERS.get(self.code, {}) | ({"Connection": "close"} if self.ends else {})
        return Response(body, self.status, headers, "application/json")
