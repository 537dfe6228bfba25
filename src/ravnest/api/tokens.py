"""Tokens, as people copy them from one terminal to another, and credentials of providers.

A token carries its role, a fingerprint of the server's authority (so that whoever holds the token
can tell the server from an impostor), its number and a secret. Whether it is still good, the server
knows.
"""

import base64
import binascii
import hashlib
import re
import secrets
from dataclasses import dataclass

from ravnest.api.requests import Role
from ravnest.errors import TokenError

FINGERPRINT_BYTES = 16
_PREFIX = "rav1_"
_ROLES: tuple[Role, ...] = ("provider", "requester", "viewer", "operator")
_ID_BYTES, _SECRET_BYTES = 8, 20
_LENGTH = 1 + FINGERPRINT_BYTES + _ID_BYTES + _SECRET_BYTES
_CREDENTIAL = re.compile(r"rvc1_([0-9]{1,10})_([A-Za-z0-9_-]{43})")


def fingerprint_of(certificate_der: bytes) -> bytes:
    """What a token knows of the authority."""
    return hashlib.sha256(certificate_der).digest()[:FINGERPRINT_BYTES]


def digest_of(secret: str) -> str:
    """What the server keeps instead of a secret. Secrets are random: no salt is needed."""
    return hashlib.sha256(secret.encode()).hexdigest()


@dataclass(frozen=True)
class Token:
    """One token; its text is `str(token)`."""

    role: Role
    fingerprint: bytes
    id: str
    secret: str

    @classmethod
    def make(cls, role: Role, fingerprint: bytes) -> "Token":
        return cls(
            role, fingerprint, secrets.token_hex(_ID_BYTES), secrets.token_hex(_SECRET_BYTES)
        )

    @classmethod
    def parse(cls, text: str) -> "Token":
        text = text.strip()
        body = text.removeprefix(_PREFIX)
        try:
            raw = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        if not text.startswith(_PREFIX) or len(raw) != _LENGTH or raw[0] >= len(_ROLES):
            # Not the text itself: it may be a secret with a slip of the pen.
            raise TokenError(
                f"this is no token ({len(text)} characters): one begins with {_PREFIX} and is "
                "printed by `ravnest server` and `ravnest token`; was it copied completely?"
            )
        rest = raw[1:]
        return cls(
            _ROLES[raw[0]],
            rest[:FINGERPRINT_BYTES],
            rest[FINGERPRINT_BYTES : FINGERPRINT_BYTES + _ID_BYTES].hex(),
            rest[-_SECRET_BYTES:].hex(),
        )

    def __str__(self) -> str:
        raw = bytes([_ROLES.index(self.role)]) + self.fingerprint
        raw += bytes.fromhex(self.id) + bytes.fromhex(self.secret)
        return _PREFIX + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()

    def __repr__(self) -> str:
        return f"Token({self.role}, {self.id})"


@dataclass(frozen=True)
class Credential:
    """What an enrolled provider shows."""

    provider: int
    secret: str

    @classmethod
    def make(cls, provider: int) -> "Credential":
        return cls(provider, secrets.token_urlsafe(32))

    @classmethod
    def parse(cls, text: str) -> "Credential":
        match = _CREDENTIAL.fullmatch(text)
        if match is None:
            raise TokenError("this is no credential of a provider")
        return cls(int(match[1]), match[2])

    def __str__(self) -> str:
        return f"rvc1_{self.provider}_{self.secret}"

    def __repr__(self) -> str:
        return f"Credential({self.provider})"
