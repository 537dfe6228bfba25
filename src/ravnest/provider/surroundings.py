"""What whoever starts a provider says about its network, in the environment.

A script need not know how its provider is reached: what its `Node(…)` leaves out is looked up here,
as its name is in RAVNEST_NODE.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ravnest.errors import NodeError
from ravnest.wire.peers import Patience
from ravnest.wire.security import TlsFiles

REPORTS = "RAVNEST_REPORTS"
DEVICE_SHARE = "RAVNEST_DEVICE_SHARE"
_RELAYED = Patience(connect_s=300.0, resume_s=120.0, nobody_s=120.0)
"""Towards neighbours that are found by a table of routes: it may lead through a relay."""


@dataclass(frozen=True)
class Surroundings:
    """As the arguments of Node; None where nothing was said."""

    routes: Mapping[str, str] | None = None
    listen: str | None = None
    tls: TlsFiles | None = None
    bandwidth_mbps: float | None = None
    device_share: float | None = None
    """Of the device's memory, that this process may take."""
    patience: Patience | None = None
    is_watched: bool = False
    """Somebody wants reports of what it is doing (RAVNEST_REPORTS)."""


def surroundings(variables: Mapping[str, str] = os.environ) -> Surroundings:
    """Read RAVNEST_ROUTES (JSON), RAVNEST_LISTEN, RAVNEST_TLS (a folder with ca.pem,
    certificate.pem and key.pem), RAVNEST_BANDWIDTH_MBPS and RAVNEST_DEVICE_SHARE."""
    routes = variables.get("RAVNEST_ROUTES")
    tls = variables.get("RAVNEST_TLS")
    speed, share = variables.get("RAVNEST_BANDWIDTH_MBPS"), variables.get(DEVICE_SHARE)
    try:
        return Surroundings(
            routes=None if routes is None else json.loads(routes),
            listen=variables.get("RAVNEST_LISTEN"),
            tls=None if tls is None else _files(Path(tls)),
            bandwidth_mbps=None if speed is None else float(speed),
            device_share=None if share is None else float(share),
            patience=None if routes is None else _RELAYED,
            is_watched=REPORTS in variables,
        )
    except ValueError as error:
        raise NodeError(
            f"RAVNEST_ROUTES={routes!r:.200}, RAVNEST_BANDWIDTH_MBPS={speed!r:.50} or "
            f"{DEVICE_SHARE}={share!r:.50} cannot be understood: {error}"
        ) from error


def _files(folder: Path) -> TlsFiles:
    return TlsFiles(
        folder / "ca.pem", folder / "certificate.pem", folder / "key.pem", names="provider"
    )
