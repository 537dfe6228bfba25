"""Who this machine is to a server: enrolled once with a token, known by a credential ever after.

    identity/<host_port>/identity.json      number and name, and the port it listened on
                         credential         bearer of everything that is said to the server
                         key.pem  certificate.pem  ca.pem    for links between providers
    devices/<device>/identity/…         of the second provider of a machine, and of further ones

The private key is made here and never leaves. One agent at a time may use an identity.
"""

import datetime
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ravnest.api.limits import NOT_UNDERSTOOD
from ravnest.api.machine import Caps, MachineFacts
from ravnest.api.requests import Enrol, Enrolled, Renew, Renewed
from ravnest.api.tokens import Credential, Token
from ravnest.api.trust_anchor import TrustAnchor
from ravnest.client.address import ServerAddress
from ravnest.client.http import HttpClient
from ravnest.client.known import who_is, write_private
from ravnest.client.trust import authority_given, fetch_authority
from ravnest.errors import RunDirError, ServerError, TokenError
from ravnest.locks import only_one

DEVICES = "devices"
RENEWED_BEFORE = datetime.timedelta(days=60)
"""How long before its end a certificate is replaced."""
_NEEDED_BYTES = 64 << 10
"""On disk, for all files of an identity."""


class IdentityFile(msgspec.Struct, kw_only=True):
    provider: int
    name: str
    server: str = ""
    port: int | None = None
    """Where it listened last; others know it there."""


@dataclass(frozen=True)
class Identity:
    folder: Path
    provider: int
    name: str
    credential: str
    authority: TrustAnchor
    """Signs the server's certificate and those of all providers."""

    @property
    def certificate_file(self) -> Path:
        return self.folder / "certificate.pem"

    @property
    def key_file(self) -> Path:
        return self.folder / "key.pem"

    @property
    def port(self) -> int | None:
        return _read(self.folder / "identity.json").port

    def remember_port(self, port: int) -> None:
        file = _read(self.folder / "identity.json")
        file.port = port
        write_private(self.folder / "identity.json", msgspec.json.encode(file))

    def client(self, address: ServerAddress) -> HttpClient:
        authority = self.authority if address.scheme == "https" else None
        return HttpClient(address, authority=authority, bearer=self.credential)


class Removal:
    """Notices that somebody has removed an identity. Not at first sight, and not while the disk
    that it was on cannot be read or is not mounted: that may come back."""

    def __init__(self, identity: Identity) -> None:
        self._folder = identity.folder
        self._disk = _disk_of(identity.folder)
        self._missed = 0

    def look(self) -> bool:
        """Whether it is gone for good; it was so the last time, too."""
        self._missed = self._missed + 1 if self._is_gone() else 0
        return self._missed > 1

    def _is_gone(self) -> bool:
        try:
            if (self._folder / "identity.json").exists():
                return False
            around = next(path for path in self._folder.parents if path.exists())
            return _disk_of(around) == self._disk
        except OSError:
            return False


def _disk_of(path: Path) -> int:
    return path.stat().st_dev


def identity_folder(home: Path, address: ServerAddress) -> Path:
    return home / "identity" / address.folder


def load_identity(home: Path, address: ServerAddress) -> Identity | None:
    """The stored one, or None if this machine has never joined that server."""
    folder = identity_folder(home, address)
    if not (folder / "identity.json").exists():
        return None
    file = _read(folder / "identity.json")
    credential = (folder / "credential").read_text().strip()
    Credential.parse(credential)
    try:
        authority = TrustAnchor.parse((folder / "ca.pem").read_bytes())
    except ValueError as error:
        # An earlier release believed an impostor that answered with two authorities in one text.
        raise ServerError(
            f"{folder / 'ca.pem'} is no authority of {address} that can be trusted: {error}. "
            "An impostor may have posed as that server: have its operator remove provider "
            f"{file.provider}, remove {folder}, and join with a new token"
        ) from None
    return Identity(folder, file.provider, file.name, credential, authority)


def home_of_device(home: Path, device: str) -> Path:
    """Of the second provider of a machine, and of all further ones."""
    return home / DEVICES / device.replace(":", "-")


def homes_in(home: Path) -> list[Path]:
    """Of all providers of a machine."""
    return [home, *sorted((home / DEVICES).glob("*/"))]


def known_identities(home: Path) -> list[ServerAddress]:
    """All servers that this machine has joined."""
    found = sorted(path for one in homes_in(home) for path in one.glob("identity/*/identity.json"))
    servers = dict.fromkeys(_read(path).server for path in found)
    return [ServerAddress.parse(server, insecure=True) for server in servers]


def identities_of(
    home: Path, url: str, *, insecure: bool = False
) -> tuple[list[Identity], ServerAddress]:
    """The stored ones for that server, one for each device; an error if there is none."""
    address = ServerAddress.parse(url, insecure=insecure)
    identities = [each for one in homes_in(home) if (each := load_identity(one, address))]
    if not identities:
        raise ServerError(f"this machine has not joined {address} (looked in {home})")
    return identities, address


def _read(path: Path) -> IdentityFile:
    try:
        return msgspec.json.decode(path.read_bytes(), type=IdentityFile)
    except NOT_UNDERSTOOD as error:
        raise ServerError(
            f"{path} cannot be understood ({error}); remove its folder and join with a token again"
        ) from error


def check_token(address: ServerAddress, token: Token) -> None:
    """Before a machine is measured for a while: is it the server, and does it take this?"""
    with HttpClient(address, authority=_authority_for(address, token), bearer=str(token)) as client:
        who_is(client)


def _authority_for(address: ServerAddress, token: Token) -> TrustAnchor | None:
    if token.role != "provider":
        raise TokenError(
            f"the role of this token is {token.role}; joining needs one of a provider, which "
            "`ravnest server` prints and `ravnest token make provider` makes"
        )
    return fetch_authority(address, token.fingerprint) if address.scheme == "https" else None


def enrol(
    home: Path,
    address: ServerAddress,
    token: Token,
    *,
    name: str,
    facts: MachineFacts,
    caps: Caps,
) -> Identity:
    """Become a provider. The token is spent on this alone and not kept."""
    authority = _authority_for(address, token)
    _make_sure_of_room(identity_folder(home, address))
    key = ec.generate_private_key(ec.SECP256R1())
    request = Enrol(name=name, facts=facts, caps=caps, key_request=_signing_request(key, name))
    with HttpClient(address, authority=authority, bearer=str(token)) as client:
        enrolled = client.post("/enrol", request, Enrolled)
    return _store(home, address, name, key, enrolled, authority)


def _make_sure_of_room(folder: Path) -> None:
    """While nobody has been told of this machine yet: whoever cannot keep a credential is no
    provider, but would stay one for the server."""
    trial = folder / "trial"
    write_private(trial, bytes(_NEEDED_BYTES))
    trial.unlink()


def fits(identity: Identity, token: Token) -> bool:
    """Whether both are of the same server; one that was set up anew has another authority."""
    return identity.authority.fingerprint == token.fingerprint


def forget(identity: Identity) -> None:
    """The server does not know it any more."""
    (identity.folder / "identity.json").unlink(missing_ok=True)
    (identity.folder / "credential").unlink(missing_ok=True)


def renew_if_due(identity: Identity, client: HttpClient, now: datetime.datetime) -> bool:
    """Whether there is a new certificate, because the old one ends soon or has ended.

    For the same key: so there is one file to be replaced, and no moment at which two do not fit.
    """
    known = x509.load_pem_x509_certificate(identity.certificate_file.read_bytes())
    if known.not_valid_after_utc - now > RENEWED_BEFORE:
        return False
    key = serialization.load_pem_private_key(identity.key_file.read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey), "made here"
    wanted = Renew(key_request=_signing_request(key, identity.name))
    renewed = client.post("/providers/me/certificate", wanted, Renewed)
    new = _certificate(renewed.certificate, key, identity.authority)
    if new.not_valid_after_utc < known.not_valid_after_utc:
        raise ServerError("the server's new certificate ends before the present one")
    write_private(identity.certificate_file, renewed.certificate.encode())
    return True


def _certificate(
    pem: str, key: ec.EllipticCurvePrivateKey, authority: TrustAnchor
) -> x509.Certificate:
    """What others will accept from whoever has that key. It is looked at before it is written:
    without a good one this provider cannot even start."""
    try:
        new = x509.load_pem_x509_certificate(pem.encode())
        new.verify_directly_issued_by(authority.certificate)
    except (ValueError, TypeError, InvalidSignature) as error:
        why = str(error) or "its authority has not signed it"
        raise ServerError(f"the server's certificate for this provider is none: {why}") from error
    if new.public_key() != key.public_key():
        raise ServerError("the server's certificate for this provider is for another key")
    return new


def only_agent(home: Path) -> AbstractContextManager[None]:
    """Nobody else works in this folder meanwhile, be it for another server."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    return only_one(
        home / "agent.lock",
        otherwise=RunDirError(
            f"another `ravnest join` is running with {home}; for a second provider on this "
            "machine give it a folder of its own: --home DIR"
        ),
    )


def _signing_request(key: ec.EllipticCurvePrivateKey, name: str) -> str:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def _store(
    home: Path,
    address: ServerAddress,
    name: str,
    key: ec.EllipticCurvePrivateKey,
    enrolled: Enrolled,
    shown: TrustAnchor | None,
) -> Identity:
    authority = authority_given(enrolled.authority, address)
    if shown is not None and authority != shown:
        raise ServerError("the server names another authority than the one it has shown")
    Credential.parse(enrolled.credential)
    _certificate(enrolled.certificate, key, authority)
    folder = identity_folder(home, address)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_private(folder / "key.pem", pem)
    write_private(folder / "certificate.pem", enrolled.certificate.encode())
    write_private(folder / "ca.pem", authority.pem.encode())
    write_private(folder / "credential", enrolled.credential.encode())
    # Last: whoever finds it finds the others.
    file = IdentityFile(provider=enrolled.provider, name=name, server=str(address))
    write_private(folder / "identity.json", msgspec.json.encode(file))
    return Identity(folder, enrolled.provider, name, enrolled.credential, authority)
