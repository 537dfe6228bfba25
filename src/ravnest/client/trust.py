"""Who a server is: its authority, pinned by the fingerprint that every token carries.

The authority's certificate is fetched once from whoever answers, without trust, and compared with
the fingerprint. From then on only certificates that this authority has signed are accepted, and
only such that are made out to the fixed name of a server: the address that was dialled may be any.
"""

import ssl
from typing import Any

from ravnest.api import SERVER_NAME
from ravnest.api.trust_anchor import TrustAnchor
from ravnest.client.address import ServerAddress
from ravnest.client.answers import refusal
from ravnest.client.stranger import ask
from ravnest.errors import ServerError, TokenError

_FETCH_S = 20.0


class PinnedContext(ssl.SSLContext):
    """Verifies the name of a server instead of the host, whichever library makes the connection
    and whether or not there is a proxy in between."""

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        return super().wrap_socket(*args, **{**options, "server_hostname": SERVER_NAME})

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        return super().wrap_bio(*args, **{**options, "server_hostname": SERVER_NAME})


def pinned_context(authority: TrustAnchor) -> ssl.SSLContext:
    """For connections to the server whose authority this is, and to no other."""
    context = PinnedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    authority.verify_with(context)
    return context


def authority_given(text: str | bytes, address: ServerAddress) -> TrustAnchor:
    """What that server names as its authority."""
    try:
        return TrustAnchor.parse(text)
    except ValueError as error:
        raise ServerError(
            f"what {address} gave as the certificate of its authority is none: {error}. Is the "
            "address right? If it is, do not send anything there: an impostor may be in between"
        ) from None


def fetch_authority(address: ServerAddress, fingerprint: bytes) -> TrustAnchor:
    """The authority that the fingerprint belongs to."""
    url = f"{address.api}/authority"
    (answer,) = ask(address, url, within_s=_FETCH_S)
    if answer.status != 200:
        said_no = refusal(answer.status, answer.body, url)
        if said_no.code == "foreign" and not said_no.passes:
            raise ServerError(
                f"{address} is no Ravnest server (is the port right?): {url} answers with status "
                f"{said_no.status}"
            )
        raise said_no
    authority = authority_given(answer.body, address)
    if authority.fingerprint != fingerprint:
        raise TokenError(
            f"{address} is not the server that the token is from: its authority has another "
            "fingerprint. Is the address right? If it is, do not send anything there: either the "
            "server was set up anew and the token is an old one, or somebody is in between"
        )
    return authority
