"""Who may speak on the wire: plain, encrypted, or with both sides known by certificate."""

from dataclasses import dataclass
from pathlib import Path

from ravnest.errors import NodeError


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. `authority` signs the certificates of this run; every provider has its own.

    With `mutual`, callers must show a certificate of the same authority too.
    """

    authority: Path
    certificate: Path
    key: Path
    mutual: bool = True

    def read(self) -> "TlsKeys":
        def content(path: Path) -> bytes:
            try:
                return Path(path).read_bytes()
            except OSError as error:
                raise NodeError(f"the TLS file {path} cannot be read: {error.strerror}") from error

        return TlsKeys(
            content(self.authority), content(self.certificate), content(self.key), self.mutual
        )


@dataclass(frozen=True, slots=True)
class TlsKeys:
    authority: bytes
    certificate: bytes
    key: bytes
    mutual: bool
