"""All names with their parameters as Markdown: what docs/recipes.md consists of."""

from collections.abc import Iterator
from typing import Any

from ravnest.recipes.losses import LOSSES
from ravnest.recipes.metrics import METRICS
from ravnest.recipes.optimizers import OPTIMIZERS
from ravnest.recipes.parameters import REQUIRED, Entry, Param, Registry
from ravnest.recipes.schedules import SCHEDULES
from ravnest.recipes.transforms import TRANSFORMS

REGISTRIES: dict[str, Registry[Any]] = {
    "Losses": LOSSES,
    "Optimizers": OPTIMIZERS,
    "Schedules": SCHEDULES,
    "Metrics": METRICS,
    "Transforms": TRANSFORMS,
}


def tables() -> str:
    """One table for each registry."""
    return "\n".join(
        line for title, registry in REGISTRIES.items() for line in _table(title, registry)
    )


def _table(title: str, registry: Registry[Any]) -> Iterator[str]:
    yield f"## {title}\n"
    yield "| name | what it is | parameters |"
    yield "|---|---|---|"
    for name in registry:
        entry: Entry = registry[name]
        params = "<br>".join(_described(key, param) for key, param in entry.params.items())
        yield f"| `{name}` | {entry.says} | {params or 'none'} |"
    yield ""


def _described(name: str, param: Param) -> str:
    if param.default is REQUIRED:
        shown = f"`{name}` (needed)"
    else:
        shown = f"`{name} = {_shown(param.default)}`"
    says = f" {param.says};" if param.says else ""
    return f"{shown}:{says} {param.expected}"


def _shown(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case float():
            return f"{value:g}"
        case list():
            return f"[{', '.join(map(_shown, value))}]"
    return str(value)
