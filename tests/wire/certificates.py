"""A small authority and the certificates it signs, made anew for every test run."""

import datetime
import functools
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ravnest.api.trust_anchor import TrustAnchor
from ravnest.wire.security import TlsKeys

_LIFE = datetime.timedelta(hours=2)


class Authority:
    def __init__(self, name="a test"):
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        self.certificate = self._sign(self._key, self._name, authority=True)

    def keys(self, name, *, mutual=True, trusts=None, valid=True, dns=(), name_of=None) -> TlsKeys:
        """A provider's certificate, for 127.0.0.1 unless it is for other names; it trusts this
        authority or another one."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(key, _named(name), authority=False, valid=valid, dns=dns)
        return TlsKeys(
            authority=TrustAnchor(trusts or self.certificate),
            certificate=_pem(certificate),
            key=key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
            mutual=mutual,
            name_of=name_of,
        )

    def _sign(self, key, subject, *, authority, valid=True, dns=()):
        now = datetime.datetime.now(datetime.UTC)
        begins = now - _LIFE
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(now + _LIFE if valid else now - _LIFE / 2)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if not authority:
            here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
            names = [x509.DNSName(name) for name in dns] or [here]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _named(name):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate):
    return certificate.public_bytes(serialization.Encoding.PEM)


@functools.cache
def our_authority() -> Authority:
    return Authority()
