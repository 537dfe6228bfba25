"""The server's own certificate authority: made at the first start, known to others by its hash.

It signs two kinds of certificates: the server's, which carries every name the server answers to and
the fixed name `ravnest-server` (clients verify that one, so any address works), and one for each
provider, called `provider-<id>` whatever the request for it says. Nothing here listens or stores
more than the four files.
"""

import datetime
import ipaddress
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ravnest.api import SERVER_NAME
from ravnest.api.machine import provider_name
from ravnest.api.tokens import fingerprint_of
from ravnest.errors import JobError, ServerError
from ravnest.whole import PRIVATE, write_whole

logger = logging.getLogger("ravnest.server")


_AUTHORITY_DAYS = 3650
_LEAF_DAYS = 825
PROVIDER_DAYS = 90
"""Short: what a machine that was removed still holds is soon worth nothing. An agent asks for the
next one in time for runs of two months; see `agent.identity`."""
_RENEW_DAYS = 60
"""How long before its end the server's certificate is replaced; it happens at the start only."""
_EARLIER = datetime.timedelta(days=1)
"""Certificates are good from yesterday on: clocks of providers may be slow."""

PrivateKey = ec.EllipticCurvePrivateKey


@dataclass(frozen=True)
class Authority:
    certificate: x509.Certificate
    key: PrivateKey

    @property
    def pem(self) -> str:
        return _pem(self.certificate)

    @property
    def fingerprint(self) -> bytes:
        return fingerprint_of(self.certificate.public_bytes(serialization.Encoding.DER))

    def sign_provider(self, provider: int, request_pem: str, now: datetime.datetime) -> str:
        """A certificate (PEM) for the key in the request; its names are ours to give."""
        try:
            request = x509.load_pem_x509_csr(request_pem.encode())
            genuine = request.is_signature_valid
        except (ValueError, TypeError) as error:
            raise JobError(
                f"key_request is no certificate signing request (PEM): {error}"
            ) from None
        key = request.public_key()
        if not genuine or not isinstance(key, ec.EllipticCurvePublicKey):
            raise JobError("key_request must be signed by its own key, an EC key (P-256)")
        if not isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1):
            raise JobError(f"key_request has a key on {key.curve.name}; expected secp256r1")
        return _pem(self._leaf(provider_name(provider), [], key, now, PROVIDER_DAYS))

    def _leaf(
        self,
        name: str,
        more: Iterable[str],
        key: ec.EllipticCurvePublicKey,
        now: datetime.datetime,
        days: int,
    ) -> x509.Certificate:
        names = [general_name(text) for text in dict.fromkeys([name, *more])]
        both_ways = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return (
            _builder(name, self.certificate.subject, key, now, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(both_ways), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
            .sign(self.key, hashes.SHA256())
        )


def open_authority(folder: Path, now: datetime.datetime) -> Authority:
    """The authority in this folder, made if there is none."""
    certificate_file, key_file = folder / "ca.pem", folder / "ca.key"
    if certificate_file.exists() and key_file.exists():
        certificate, key = _read(certificate_file, key_file)
        if certificate.not_valid_after_utc <= now:
            raise ServerError(
                f"the authority in {folder} has expired; move that folder away and start again, "
                "then every provider has to join anew"
            )
        if certificate.not_valid_before_utc > now:
            logger.warning(
                "the authority in %s is good from %s on, and by this machine's clock it is %s: set "
                "the clock. If it is right, it was ahead when the authority was made, and nobody "
                "will trust it before then; move that folder away and start again, then every "
                "provider has to join anew",
                *(folder, f"{certificate.not_valid_before_utc:%F %R}", f"{now:%F %R}"),
            )
        return Authority(certificate, key)
    if certificate_file.exists():
        raise ServerError(
            f"{key_file} is missing, {certificate_file.name} is there: without the key nothing can "
            "be signed. Restore it, or move the folder away; then every provider has to join anew"
        )
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name("Ravnest authority")
    certificate = (
        _builder("", subject, key.public_key(), now, _AUTHORITY_DAYS, subject)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    # The certificate last: if it is there, so is the key.
    _write_key(key_file, key)
    write_whole(certificate_file, _pem(certificate).encode())
    logger.info("made a certificate authority in %s", folder)
    return Authority(certificate, key)


def server_certificate(
    authority: Authority, folder: Path, names: Iterable[str], now: datetime.datetime
) -> tuple[Path, Path]:
    """Files with the server's certificate and key; new ones if the old do not suit any more."""
    certificate_file, key_file = folder / "server.pem", folder / "server.key"
    wanted = list(dict.fromkeys([SERVER_NAME, *names]))
    why = _unfit(authority, certificate_file, key_file, wanted, now)
    if why:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = authority._leaf(SERVER_NAME, wanted, key.public_key(), now, _LEAF_DAYS)
        certificate_file.unlink(missing_ok=True)  # never the old one beside the new key
        _write_key(key_file, key)
        write_whole(certificate_file, _pem(certificate).encode())
        logger.info("made a server certificate for %s: %s", ", ".join(wanted), why)
    return certificate_file, key_file


def _unfit(
    authority: Authority,
    certificate_file: Path,
    key_file: Path,
    wanted: list[str],
    now: datetime.datetime,
) -> str:
    """Why the certificate in these files cannot be used; empty if it can."""
    if not (certificate_file.exists() and key_file.exists()):
        return "there was none"
    try:
        certificate, _ = _read(certificate_file, key_file)
        certificate.verify_directly_issued_by(authority.certificate)
    except InvalidSignature:
        return "the old one is not of this authority"
    except (ServerError, ValueError, TypeError) as error:
        return f"the old one cannot be used ({error})"
    if certificate.not_valid_after_utc - now < datetime.timedelta(days=_RENEW_DAYS):
        return "the old one ends soon"
    # If the authority is not good yet either, it is rather this clock that is slow.
    if certificate.not_valid_before_utc > now >= authority.certificate.not_valid_before_utc:
        return "the old one was made while the clock was ahead, and is not good yet"
    held = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    missing = [text for text in wanted if general_name(text) not in set(held)]
    return f"the old one lacks {', '.join(missing)}" if missing else ""


def general_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        return x509.DNSName(text)


def _builder(
    name: str,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime.datetime,
    days: int,
    subject: x509.Name | None = None,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject or _name(name))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _write_key(path: Path, key: PrivateKey) -> None:
    content = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_whole(path, content, PRIVATE)


def _read(certificate_file: Path, key_file: Path) -> tuple[x509.Certificate, PrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
        key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise ServerError(f"{certificate_file} and its key cannot be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ServerError(f"{key_file} holds no EC key")
    if certificate.public_key() != key.public_key():
        raise ServerError(f"{key_file} is not the key of {certificate_file}")
    return certificate, key
