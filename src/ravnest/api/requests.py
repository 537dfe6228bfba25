"""Bodies of HTTP requests and their answers, beside jobs and views."""

from typing import Annotated, Literal

from msgspec import Meta

from ravnest.api.limits import Identifier, Name, ProviderId, Seconds, Shown, Strict, Text
from ravnest.api.machine import Caps, MachineFacts

Role = Literal["provider", "requester", "viewer", "operator"]
"""provider: may enrol machines. requester: may submit jobs and sees everything. viewer: sees
everything. operator: may do all of this, steer everybody's jobs, and make tokens."""


SUBMISSION_KEY = "Idempotency-Key"
"""Header of POST /jobs: what the requester calls this submission. Sent again with it, a submission
whose answer was lost makes no second job."""


class Enrol(Strict, frozen=True, kw_only=True):
    """POST /api/v1/enrol with a provider token as bearer: become a provider."""

    name: Name
    facts: MachineFacts
    caps: Caps
    key_request: Annotated[str, Meta(max_length=20_000)]
    """A certificate signing request (PEM); the private key never leaves the machine."""


class Enrolled(Shown, frozen=True, kw_only=True):
    provider: ProviderId
    credential: str
    """Bearer for everything that follows; known to nobody but this machine."""
    certificate: str
    """PEM, for links between providers; its name is provider-<id>."""
    authority: str


class Renew(Strict, frozen=True, kw_only=True):
    """POST /api/v1/providers/me/certificate with the credential as bearer."""

    key_request: Annotated[str, Meta(max_length=20_000)]


class Renewed(Shown, frozen=True, kw_only=True):
    certificate: str
    """PEM; takes the place of the one that ends."""


class NewToken(Strict, frozen=True, kw_only=True):
    role: Role
    name: Name | None = None
    """Whom it is for; jobs belong to the name of a requester. None: one that nobody has had."""
    hours: Annotated[float, Meta(gt=0, le=24 * 365 * 10)] = 24.0
    uses: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    replace: bool = False
    """Revoke those of the same role and name; a requester token of a name in use is refused
    otherwise."""


class TokenMade(Shown, frozen=True, kw_only=True):
    id: Identifier
    token: str
    """Shown once."""
    expires_at: Seconds
    name: str = ""


class TokenShown(Shown, frozen=True, kw_only=True):
    id: Identifier
    role: Role
    name: str
    made_at: Seconds
    expires_at: Seconds
    uses_left: int | None
    revoked: bool


class JobAction(Strict, frozen=True, kw_only=True):
    action: Literal["start", "stop", "pause", "continue", "resume", "delete"]
    """pause and continue: the run waits in between. stop, later resume: a new run takes up the
    weights that the stopped one has left."""


class ProviderAction(Strict, frozen=True, kw_only=True):
    action: Literal["pause", "resume", "remove"]


Code = Literal[
    "unauthorized",
    "forbidden",
    "not_found",
    "too_large",
    "invalid",
    "conflict",
    "limited",
    "late",
    "failed",
    "full",
    "ending",
]
"""late: a body that does not come. full: the server's disk, or what it may hold; not for ever.
limited: too many at once, or too often; ending: the server does; both are worth another attempt."""


class Problem(Shown, frozen=True, kw_only=True):
    """The body of every answer that is not a success."""

    error: Text
    """For people: what was wrong, and what to do."""
    code: str
    """For programs: a `Code`, or one that a newer server knows."""


class Health(Shown, frozen=True, kw_only=True):
    status: Literal["ok"]
    version: str
