"""Who may speak on the wire: plain, encrypted, or with both sides known by certificate."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ravnest.api.trust_anchor import TrustAnchor
from ravnest.errors import NodeError

NameOf = Callable[[str], str]
"""From the name of a node to the name that its certificate must have."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. `authority` signs the certificates of this run; every provider has its own. That
    file holds one certificate and nothing else.

    With `mutual`, callers must show a certificate of the same authority too. With `names`, that
    certificate also says which node a caller may be: `"provider"` if that of node_7 is made out to
    `provider-7`, or a function from the one to the other.
    """

    authority: Path
    certificate: Path
    key: Path
    mutual: bool = True
    names: Literal["provider"] | NameOf | None = None

    def read(self) -> "TlsKeys":
        def content(path: Path) -> bytes:
            try:
                return Path(path).read_bytes()
            except OSError as error:
                raise NodeError(f"the TLS file {path} cannot be read: {error.strerror}") from error

        name_of = provider_name if self.names == "provider" else self.names
        if not (name_of is None or callable(name_of)):
            raise NodeError(
                f"TlsFiles(names={self.names!r}): expected 'provider', None, or a function from "
                "the name of a node to that of its certificate"
            )
        if name_of is not None and not self.mutual:
            raise NodeError("TlsFiles(names=…) needs mutual=True: others show no certificate")
        try:
            authority = TrustAnchor.parse(content(self.authority))
        except ValueError as error:
            raise NodeError(
                f"the TLS file {self.authority} must hold the certificate of one authority: "
                f"{error}. `openssl x509 -in FILE -out ca.pem` writes the first one of a file alone"
            ) from None
        return TlsKeys(
            authority,
            content(self.certificate),
            content(self.key),
            self.mutual,
            name_of,
        )


def provider_name(node: str) -> str:
    """What certificates call the provider that runs this node: provider-7 for node_7."""
    kind, _, number = node.partition("_")
    return f"provider-{number}" if kind == "node" else ""


@dataclass(frozen=True, slots=True)
class TlsKeys:
    authority: TrustAnchor
    certificate: bytes
    key: bytes
    mutual: bool
    name_of: NameOf | None = None

    def doubt(self, node: str, names: Collection[str]) -> str | None:
        """Why a caller whose certificate has these names is not that node, if it is not."""
        if self.name_of is None or self.name_of(node) in names:
            return None
        shown = ", ".join(sorted(names)) or "nobody"
        return f"{node} is not what the caller's certificate says, which is made out to {shown}"
