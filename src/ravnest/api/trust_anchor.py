"""The only way in which a certificate authority becomes trusted: a trust anchor.

Libraries disagree about what a PEM text holds. One stops at the first padding of base64, the next
trusts every certificate that it finds: a text with two of them could be recognised by the first
and be trusted for the second. So a text is read here, once, as exactly one certificate. Its
fingerprint, the text that is stored and what TLS is told to trust are all made of that one.

Line ends and the width of lines do not matter. Anything else beside the one block is refused.
"""

import base64
import ssl
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from ravnest.api.tokens import fingerprint_of

_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
_NO_AUTHORITY = (
    *(ValueError, TypeError, ssl.SSLError, x509.InvalidVersion, x509.ExtensionNotFound),
    *(x509.DuplicateExtension, x509.UnsupportedGeneralNameType),
)


@dataclass(frozen=True)
class TrustAnchor:
    """The certificate of one authority. Made by `parse`."""

    certificate: x509.Certificate

    @classmethod
    def parse(cls, text: str | bytes) -> "TrustAnchor":
        """ValueError if it is not exactly one certificate of an authority (PEM)."""
        content = (text.encode() if isinstance(text, str) else text).strip()
        if not (content.startswith(_BEGIN) and content.endswith(_END)):
            raise ValueError("it is not one certificate (PEM) and nothing else")
        body = b"".join(content[len(_BEGIN) : -len(_END)].split())
        try:
            der = base64.b64decode(body, validate=True)
            # Both ways: what a decoder passes over, the next one might read.
            if base64.b64encode(der) != body:
                raise ValueError("its base64 is not written as usual")
            certificate = x509.load_der_x509_certificate(der)
            if certificate.public_bytes(Encoding.DER) != der:
                raise ValueError("its bytes are not written as usual")
            limits = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
            anchor = cls(certificate)
            anchor.verify_with(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        except _NO_AUTHORITY as error:
            raise ValueError(f"it is no certificate of an authority ({error})") from None
        if not limits.ca:
            raise ValueError("it is a certificate, but not one of an authority")
        return anchor

    @property
    def fingerprint(self) -> bytes:
        """What a token knows of it."""
        return fingerprint_of(self.certificate.public_bytes(Encoding.DER))

    @property
    def pem(self) -> str:
        """Written anew: whatever text it was read from is neither stored nor passed on."""
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def verify_with(self, context: ssl.SSLContext) -> None:
        """The peers of that context must show a certificate of this authority."""
        context.load_verify_locations(cadata=self.pem)
