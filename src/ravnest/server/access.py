"""Who somebody is, and what they may do.

People show tokens, machines show credentials; of both the server keeps a hash of the secret only.
What each may do is one table. This module neither stores nor listens: it is given records and the
time, and gives back records to be kept.
"""

import hmac
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

from ravnest.api.machine import provider_name
from ravnest.api.requests import NewToken, Role, TokenShown
from ravnest.api.tokens import Credential, Token, digest_of
from ravnest.errors import TokenError

Kind = Role | Literal["machine", "onlooker"]
"""machine: an enrolled provider. onlooker: without a token, where that is allowed."""
Right = Literal["ask", "enrol", "work", "look", "submit", "fetch", "steer", "operate"]

MAY: dict[Right, frozenset[Kind]] = {
    # Who they are taken for: so a token can be tried before it is used.
    "ask": frozenset({"onlooker", "viewer", "requester", "operator", "provider"}),
    "enrol": frozenset({"provider"}),
    "work": frozenset({"machine"}),
    "look": frozenset({"onlooker", "viewer", "requester", "operator"}),
    "submit": frozenset({"requester", "operator"}),
    # Results of their own jobs, and steering those; an operator everybody's.
    "fetch": frozenset({"requester", "operator"}),
    "steer": frozenset({"requester", "operator"}),
    "operate": frozenset({"operator"}),
}
"""What each kind of caller may do."""

OWNING: frozenset[Role] = frozenset({"requester"})
"""Whose jobs belong to the name of their token: one name, one person. (Operators have all jobs.)"""
MOST_TOKENS = 10_000
"""Good ones. So many again are remembered after their end, to say why they are not accepted."""
_NOBODY = digest_of("")


@dataclass(frozen=True)
class Caller:
    kind: Kind
    name: str
    token: str | None = None
    provider: int | None = None

    def may(self, right: Right) -> bool:
        return self.kind in MAY[right]

    @property
    def key(self) -> str:
        """What this caller's rates are counted under; no secret."""
        return (
            provider_name(self.provider) if self.provider is not None else self.token or self.name
        )


ONLOOKER = Caller("onlooker", "onlooker")


def _as_read(name: str) -> str:
    """By a person, in a list: names that are the same there are one name."""
    return name.strip().casefold()


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A token as it is stored: without what it takes to use it."""

    id: str
    role: Role
    name: str
    digest: str
    made_at: float
    expires_at: float
    uses_left: int | None = None
    revoked: bool = False

    def shown(self) -> TokenShown:
        return TokenShown(
            id=self.id,
            role=self.role,
            name=self.name,
            made_at=self.made_at,
            expires_at=self.expires_at,
            uses_left=self.uses_left,
            revoked=self.revoked,
        )

    def fault(self, now: float) -> str | None:
        """Why it is not accepted although it is genuine."""
        if self.revoked:
            return "this token has been revoked; ask the operator for a new one"
        if now >= self.expires_at:
            return "this token has expired; ask the operator for a new one (ravnest token make)"
        if self.uses_left == 0:
            return "this token has been used as often as it may be; ask the operator for a new one"
        return None


class Access:
    """All tokens of a server. Credentials are looked up where the providers are."""

    def __init__(
        self,
        fingerprint: bytes,
        records: Iterable[TokenRecord],
        credential_digest: Callable[[int], str | None],
    ) -> None:
        self._fingerprint = fingerprint
        self._records = {record.id: record for record in records}
        self._credential_digest = credential_digest

    def caller(self, bearer: str, now: float) -> Caller:
        """Whoever shows this; `TokenError` with the reason if it is not accepted."""
        if bearer.startswith("rvc1_"):
            return self._machine(bearer)
        token = Token.parse(bearer)
        record = self._records.get(token.id)
        genuine = hmac.compare_digest(record.digest if record else _NOBODY, digest_of(token.secret))
        if record is None or not genuine or record.role != token.role:
            raise TokenError("this token is not one of this server's; ask its operator for one")
        if (fault := record.fault(now)) is not None:
            raise TokenError(fault)
        return Caller(record.role, record.name, token=record.id)

    def _machine(self, bearer: str) -> Caller:
        shown = Credential.parse(bearer)
        known = self._credential_digest(shown.provider)
        genuine = hmac.compare_digest(known or _NOBODY, digest_of(shown.secret))
        if known is None or not genuine:
            raise TokenError(
                "this server does not know this credential; if the provider was removed, join again"
            )
        return Caller("machine", provider_name(shown.provider), provider=shown.provider)

    def make(
        self, wanted: NewToken, now: float, taken: Collection[str] = ()
    ) -> tuple[TokenRecord, Token]:
        """A new token; the record is to be kept, the token to be shown once.

        Names that are taken are not given to somebody who has asked for none.
        """
        if wanted.replace and wanted.name is None:
            raise TokenError("to replace a token, say whose: its name is missing (--name)")
        namesakes = self.namesakes(wanted, now)
        if namesakes and wanted.role in OWNING and not wanted.replace:
            raise TokenError(
                f"there is a good {wanted.role} token for {wanted.name!r} already (id "
                f"{namesakes[0]}), and jobs belong to the name: choose another one with --name; or "
                "say --replace to make a successor, which revokes the former"
            )
        if wanted.uses is not None and wanted.role != "provider":
            raise TokenError("uses counts machines that enrol; only provider tokens have it")
        if sum(record.fault(now) is None for record in self._records.values()) >= MOST_TOKENS:
            raise TokenError(f"there are {MOST_TOKENS} tokens already; revoke some")
        # A successor has the jobs of the former, which are found by the name as it was written.
        name = self._records[namesakes[0]].name if namesakes and wanted.replace else wanted.name
        token = Token.make(wanted.role, self._fingerprint)
        record = TokenRecord(
            id=token.id,
            role=token.role,
            name=name or self._unused_name(wanted.role, taken),
            digest=digest_of(token.secret),
            made_at=now,
            expires_at=now + wanted.hours * 3600,
            uses_left=wanted.uses,
        )
        self._records[record.id] = record
        return record, token

    def namesakes(self, wanted: NewToken, now: float) -> list[str]:
        """Ids of the tokens of this role and name that are still good."""
        return [
            record.id
            for record in self._records.values()
            if record.role == wanted.role
            and _as_read(record.name) == _as_read(wanted.name or "")
            and record.fault(now) is None
        ]

    def _unused_name(self, role: Role, taken: Collection[str]) -> str:
        """Also those of tokens that have ended count: whoever had them may come back."""
        used = {_as_read(record.name) for record in self._records.values()}
        used |= {_as_read(name) for name in taken}
        name, number = str(role), 1
        while name in used:
            number += 1
            name = f"{role}-{number}"
        return name

    def revoke(self, id: str) -> TokenRecord:
        record = self._records.get(id)
        if record is None:
            raise KeyError(id)
        self._records[id] = msgspec.structs.replace(record, revoked=True)
        return self._records[id]

    def spend(self, id: str, now: float) -> TokenRecord | None:
        """One use of a token that has a number of them; the changed record, if it has.

        Asked for once more whether it is good: others may have used it up, or the operator may have
        revoked it, since it was shown.
        """
        record = self._records.get(id)
        if record is None:
            raise TokenError("this token has expired; ask the operator for a new one")
        if (fault := record.fault(now)) is not None:
            raise TokenError(fault)
        if record.uses_left is None:
            return None
        changed = msgspec.structs.replace(record, uses_left=record.uses_left - 1)
        self._records[id] = changed
        return changed

    def forget_expired(self, before: float) -> list[str]:
        """Ids of tokens that ended before that moment; they are gone from here."""
        old = [record.id for record in self._records.values() if record.expires_at < before]
        for id in old:
            del self._records[id]
        return old

    def forget_most_ended(self, now: float) -> list[str]:
        """Ids of the oldest that are not good any more, if there are too many; gone from here."""
        ended = [record for record in self._records.values() if record.fault(now) is not None]
        ended.sort(key=lambda record: record.made_at)
        old = [record.id for record in ended[: max(0, len(ended) - MOST_TOKENS)]]
        for id in old:
            del self._records[id]
        return old

    def shown(self) -> list[TokenShown]:
        ordered = sorted(self._records.values(), key=lambda record: record.made_at)
        return [record.shown() for record in ordered]
