"""Read the description of the providers, `node_data/node_configs.json`.

    {"0": {"IP": "host:port", "benchmarks": {"ram": 8, "bandwidth": 20}}, …}   // GB and Mbit/s

Optional benchmarks: `gflops` (sustained compute speed), `latency` (milliseconds), `links` (speeds
measured to other providers: {"<id>": Mbit/s, …}). Comments with `//` and a comma after the last
entry are accepted, because people write this file by hand.
"""

import json
import re
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from ravnest.errors import PoolError
from ravnest.plan import ProviderSpec
from ravnest.planning.costing.costs import REFERENCE_GFLOPS

_EXAMPLE = '{"0": {"IP": "10.0.0.5:8080", "benchmarks": {"ram": 8, "bandwidth": 100}}}'
_KNOWN = {"ram", "bandwidth", "gflops", "latency", "links"}
_BYTES_PER_GB = 1_000_000_000
_LARGEST = 1e9
"""In GB, Mbit/s, GFLOP/s or ms. Figures above it, or below its inverse, are slips of the pen."""
_LONGEST_LINE = 100
_ID = re.compile(r"0|[1-9][0-9]{0,8}")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_HOST = re.compile(r"[\w.-]{1,240}|\[[0-9a-f:.]{2,45}(?:%[\w.-]{1,50})?\]", re.ASCII | re.I)
"""A name or an IPv4 address; an IPv6 address in brackets. With the port it names a folder."""


def read_pool(path: Path) -> list[ProviderSpec]:
    """The providers in the order of their ids; a `PoolError` names whatever is wrong."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors put a mark at the beginning
    except FileNotFoundError:
        raise PoolError(
            f"there is no file {path}. Describe your providers in it, for example: {_EXAMPLE}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise PoolError(f"{path} cannot be read: {error}") from None
    stripped = strip_comments(text)
    if not stripped.strip():
        raise PoolError(
            f"{path}: the file is empty. Describe your providers in it, for example: {_EXAMPLE}"
        )
    try:
        entries = json.loads(stripped, object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError as error:
        raise PoolError(f"{path} is not valid JSON: {_explained(error, text)}") from None
    except (ValueError, RecursionError) as error:  # given twice; digits or brackets without end
        raise PoolError(f"{path}: {error}") from None
    return parse_pool(entries, str(path))


def _explained(error: json.JSONDecodeError, text: str) -> str:
    """What is wrong, in the line as the user wrote it: comments and all."""
    line = text.split("\n")[error.lineno - 1].strip()
    shown = line if len(line) <= _LONGEST_LINE else line[:_LONGEST_LINE] + "…"
    what = error.msg
    if text.startswith(("#", "/*"), error.pos):
        what = "only // comments are understood"
    return f"{what} (line {error.lineno}, column {error.colno}):\n    {shown}"


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON keeps the last of two equal keys; here that would lose a machine without a word."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise PoolError(f"{key!r} is given twice")
        found[key] = value
    return found


def parse_pool(entries: Any, where: str) -> list[ProviderSpec]:
    """The same from data already in memory."""
    if not isinstance(entries, dict) or not entries:
        raise PoolError(f"{where} must map provider ids to their figures, for example: {_EXAMPLE}")
    providers = [_provider(key, entry, entries, where) for key, entry in entries.items()]
    by_address: dict[str, int] = {}
    for provider in providers:
        other = by_address.setdefault(provider.address.lower(), provider.id)
        if other != provider.id:
            raise PoolError(
                f"{where}: providers {other} and {provider.id} have the same address "
                f"{provider.address!r}; every provider needs its own host:port"
            )
    return sorted(providers, key=lambda provider: provider.id)


def _provider(key: str, entry: Any, known: Container[str], where: str) -> ProviderSpec:
    place = f"{where}: provider {key!r}"
    if not _ID.fullmatch(key):
        raise PoolError(f'{place}: ids are whole numbers written as strings, like "0" or "17"')
    if not isinstance(entry, dict):
        raise PoolError(f"{place} must be an object with 'IP' and 'benchmarks'")
    if unknown := set(entry) - {"IP", "benchmarks"}:
        raise PoolError(f"{place}: unknown key {min(unknown)!r}; known are IP and benchmarks")
    address = _address(entry, place)
    figures = entry.get("benchmarks")
    if not isinstance(figures, dict):
        raise PoolError(f'{place} lacks \'benchmarks\', e.g. {{"ram": 8, "bandwidth": 100}}')
    if unknown := set(figures) - _KNOWN:
        raise PoolError(
            f"{place}: unknown benchmark {min(unknown)!r}; known are {', '.join(sorted(_KNOWN))}"
        )
    return ProviderSpec(
        id=int(key),
        address=address,
        memory_bytes=int(_figure(figures, "ram", place, unit="GB") * _BYTES_PER_GB),
        bandwidth_mbps=_figure(figures, "bandwidth", place, unit="Mbit/s"),
        gflops=_figure(figures, "gflops", place, unit="GFLOP/s", default=REFERENCE_GFLOPS),
        latency_ms=_figure(figures, "latency", place, unit="ms", default=0.0, zero_allowed=True),
        links=_links(figures.get("links", {}), key, known, place),
    )


def _links(
    links: Any, key: str, known: Container[str], place: str
) -> tuple[tuple[int, float], ...]:
    """Measured speeds by the id of the other provider, in ascending order."""
    if not isinstance(links, dict):
        raise PoolError(
            f"{place}: 'links' is {links!r}; expected the speeds measured to other providers, "
            'e.g. {"1": 90, "2": 12.5} in Mbit/s'
        )
    place = f"{place}: 'links'"
    for other in links:
        if other == key:
            raise PoolError(f"{place} names the provider itself; it is for links to others")
        if other not in known:
            raise PoolError(f"{place} names provider {other!r}, which the pool does not have")
    return tuple(
        sorted((int(other), _figure(links, other, place, unit="Mbit/s")) for other in links)
    )


def _address(entry: Mapping[str, Any], place: str) -> str:
    address = entry.get("IP")
    if not isinstance(address, str):
        raise PoolError(f"{place} lacks 'IP', a string like \"10.0.0.5:8080\"")
    host, _, port = address.rpartition(":")
    if not host or not _PORT.fullmatch(port) or int(port) > 65535:
        raise PoolError(
            f"{place}: 'IP' is {address!r}; expected host:port with a port from 1 to 65535"
        )
    if not _HOST.fullmatch(host) or ".." in host:
        raise PoolError(
            f"{place}: 'IP' is {address!r}; expected the name or address of a host before the "
            "port, an IPv6 address in brackets"
        )
    return address


def _figure(
    figures: Mapping[str, Any],
    name: str,
    place: str,
    *,
    unit: str,
    default: float | None = None,
    zero_allowed: bool = False,
) -> float:
    if name not in figures:
        if default is None:
            raise PoolError(f"{place} lacks the benchmark {name!r} (in {unit})")
        return default
    value = figures[name]
    # NaN compares as false, so it is refused with the values that are no numbers.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) >= 0:
        raise PoolError(f"{place}: {name!r} is {value!r}; expected a number in {unit}")
    if value < 0 or (value == 0 and not zero_allowed):
        raise PoolError(f"{place}: {name!r} is {value!r}; it must be greater than 0 {unit}")
    if value and not 1 / _LARGEST <= value <= _LARGEST:
        raise PoolError(f"{place}: {name!r} is {str(value)[:20]} {unit}; no machine has that")
    return float(value)


_TOKENS = re.compile(
    r'"(?:[^"\\]|\\.)*"'  # a string, kept whole: it may contain // and commas
    r"|//[^\n]*"  # a comment
    # A comma with nothing after it. No backtracking: a row of slashes can be read in many ways.
    r"|,(?=(?>\s|//[^\n]*)*+[}\]])"
)


def strip_comments(text: str) -> str:
    """Blank out `//` comments and trailing commas; positions in the text stay what they were."""

    def blank(token: re.Match[str]) -> str:
        return token[0] if token[0].startswith('"') else " " * len(token[0])

    return _TOKENS.sub(blank, text)
