"""The walls of the house, read off the imports.

Every `import` statement under src/ravnest counts, also those inside functions and under
TYPE_CHECKING: a late import hides a wrong direction, it does not make it right. The checks work on
`{module name: source}`, so that the second half of this file can prove on made-up sources that
they are able to fail.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"

# A room is the first name after `ravnest.`, a folder or a single file. The table says which other
# rooms it may import; a room that is not built yet costs nothing.
PLAIN = {
    *("api", "errors", "plan", "config", "rundir", "outcome", "release"),
    *("descriptors", "exits", "in_flight", "lifeline", "locks", "ports", "removing", "sandbox"),
    *("web", "whole"),
}
ROOMS = {
    **dict.fromkeys(PLAIN, PLAIN),
    "stage": PLAIN,
    "wire": PLAIN,
    "planning": PLAIN | {"stage"},
    "provider": PLAIN | {"stage", "wire"},
    "recipes": PLAIN,
    "data": PLAIN | {"recipes"},
    "client": PLAIN,
    "agent": PLAIN | {"client", "stage"},
    "server": PLAIN | {"stage", "wire", "planning", "recipes", "data"},
    "launch": PLAIN,
    "sim": PLAIN | {"planning"},
}
# The documented faces may import every room and each other; `ravnest` is the package itself.
FACES = {
    "ravnest",
    "node",
    "trainer",
    "callbacks",
    "utils",
    "operations",
    "demo",
    "session",
    "worker",
}
ALLOWED = {
    **ROOMS,
    **dict.fromkeys(FACES, set(ROOMS) | FACES),
    "cli": set(ROOMS) | FACES,
    "__main__": {"cli"},
}
ROOM_NAMES = {f"ravnest.{room}" for room in ALLOWED}

# Code that decides: answers depend on its arguments alone, so it can be tested without a clock,
# a network or a model. That includes whatever it imports from us.
DECIDING = {
    "ravnest.agent.hours",
    "ravnest.agent.instructions",
    "ravnest.agent.standing",
    "ravnest.agent.errands",
    "ravnest.agent.control",
    "ravnest.plan",
    "ravnest.planning.search.clusters",
    "ravnest.planning.costing.costs",
    "ravnest.planning.search.partition",
    "ravnest.planning.search.rings",
    "ravnest.planning.search.improve",
    "ravnest.planning.search.links",
    "ravnest.planning.search.ringorder",
    "ravnest.provider.schedule.pipeline",
    "ravnest.provider.schedule.window",
    "ravnest.provider.stall",
    "ravnest.provider.norms",
    "ravnest.provider.scaling",
    "ravnest.provider.averaging.course",
    "ravnest.provider.averaging.instructions",
    "ravnest.provider.averaging.membership",
    "ravnest.provider.averaging.pacing",
    "ravnest.provider.averaging.rollcall",
    "ravnest.provider.averaging.wishes",
    "ravnest.server.changes",
    "ravnest.server.state.deadlines",
    "ravnest.server.state.declining",
    "ravnest.server.state.effects",
    "ravnest.server.state.events",
    "ravnest.server.state.fusing",
    "ravnest.server.state.introducing",
    "ravnest.server.state.jobs",
    "ravnest.server.state.leaving_out",
    "ravnest.server.state.machine",
    "ravnest.server.state.parts",
    "ravnest.server.state.pool",
    "ravnest.server.state.providers",
    "ravnest.server.state.records",
    "ravnest.server.state.recovery",
    "ravnest.server.state.retrying",
    "ravnest.server.state.runs",
    "ravnest.server.state.standstill",
    "ravnest.server.state.words",
    "ravnest.server.state.world",
}
NOT_FOR_DECIDING = {"asyncio", "grpc", "socket", "threading", "time", "torch"}

# Whatever turns bytes into running code.
UNSAFE_MODULES = {"_pickle", "cloudpickle", "dill", "marshal", "pickle", "shelve"}
UNSAFE_BUILTINS = {"eval", "exec"}
ONLY_SAFE_VALUE = {"weights_only": True, "allow_pickle": False}

# Whatever makes TLS trust an authority, or reads one leniently, and the modules that may. gRPC gets
# what `TrustAnchor` has written.
TRUSTING = {
    "ravnest.api.trust_anchor": {
        *("cadata", "cafile", "capath", "load_verify_locations", "load_default_certs"),
        *("set_default_verify_paths", "create_default_context", "PEM_cert_to_DER_cert"),
    },
    "ravnest.wire.grpc_network": {
        *("root_certificates", "ssl_channel_credentials", "ssl_server_credentials"),
    },
}

Sources = dict[str, str]


def read_sources(root: Path) -> Sources:
    sources = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        sources[name] = path.read_text(encoding="utf-8")
    return sources


def imports_of(module: str, sources: Sources) -> Iterator[str]:
    """Full names of the modules this one imports; `from a import b` is a.b if that is a module."""
    packages = {name.rpartition(".")[0] for name in sources}
    for node in ast.walk(ast.parse(sources[module])):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                ups = node.level - (module in packages)
                parents = module.split(".")[: len(module.split(".")) - ups]
                base = ".".join([*parents, *([base] if base else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield full if full in sources or full in ROOM_NAMES else base


def room_of(module: str) -> str | None:
    """The room a module lies in, None for other people's modules."""
    first, _, rest = module.partition(".")
    if first != "ravnest":
        return None
    return rest.split(".")[0] or "ravnest"


def wrong_directions(sources: Sources) -> list[str]:
    found = []
    for module in sources:
        room = room_of(module)
        assert room is not None
        if room not in ALLOWED:
            found.append(f"{module}: no such room in the table")
            continue
        for target in imports_of(module, sources):
            target_room = room_of(target)
            if target_room not in {None, room, *ALLOWED[room]}:
                found.append(f"{module} imports {target}")
    return found


def own_imports(sources: Sources) -> dict[str, set[str]]:
    return {name: {t for t in imports_of(name, sources) if t in sources} for name in sources}


def cycles(sources: Sources) -> list[str]:
    """One line for each module that closes a loop, found by depth-first search."""
    graph, found = own_imports(sources), []
    finished: set[str] = set()

    def visit(module: str, path: list[str]) -> None:
        if module in path:
            found.append(" -> ".join([*path[path.index(module) :], module]))
        elif module not in finished:
            for target in sorted(graph[module]):
                visit(target, [*path, module])
            finished.add(module)

    for module in sorted(graph):
        visit(module, [])
    return found


def impure_decisions(sources: Sources) -> list[str]:
    graph, found = own_imports(sources), []
    for start in sorted(DECIDING & set(sources)):
        reached, todo = {start}, [start]
        while todo:
            module = todo.pop()
            for target in imports_of(module, sources):
                if target.split(".")[0] in NOT_FOR_DECIDING:
                    found.append(f"{start}: {module} imports {target}")
            todo += sorted(graph[module] - reached)
            reached |= graph[module]
    return found


def unsafe_code(sources: Sources) -> list[str]:
    found = []
    for module, source in sources.items():
        for target in imports_of(module, sources):
            if target.split(".")[0] in UNSAFE_MODULES:
                found.append(f"{module} imports {target}")
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.Name(id=name, ctx=ast.Load()) if name in UNSAFE_BUILTINS:
                    found.append(f"{module}:{node.lineno} uses {name}")
                case ast.Attribute(value=ast.Name(id="builtins"), attr=name) | ast.alias(name=name):
                    if name in UNSAFE_BUILTINS:
                        found.append(f"{module}:{node.lineno} takes {name} from elsewhere")
                case ast.keyword(arg=str(name), value=value) if name in ONLY_SAFE_VALUE:
                    safe = ONLY_SAFE_VALUE[name]
                    if not (isinstance(value, ast.Constant) and value.value is safe):
                        found.append(f"{module}:{value.lineno} {name} is not {safe}")
    return found


def trust_elsewhere(sources: Sources) -> list[str]:
    """By name, wherever it stands: called, passed as a keyword, imported or looked up."""
    found = []
    for module, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.Attribute(attr=name) | ast.Name(id=name) | ast.keyword(arg=name):
                    pass
                case ast.alias(name=name) | ast.Constant(value=str(name)):
                    pass
                case _:
                    continue
            owner = next((owner for owner, names in TRUSTING.items() if name in names), module)
            if owner != module:
                found.append(f"{module}: {name}")
    return found


CHECKS = [wrong_directions, cycles, impure_decisions, unsafe_code, trust_elsewhere]


@pytest.mark.parametrize("check", CHECKS)
def test_the_source_keeps_the_rules(check):
    assert check(read_sources(SRC)) == []


def test_the_source_is_found_at_all():
    assert {"ravnest", "ravnest.plan", "ravnest.cli.plan"} <= set(read_sources(SRC))


# ---- the checks are able to fail -------------------------------------------------------------

WRONG_DIRECTIONS = {
    "provider to planning": {"ravnest.provider.loop": "import ravnest.planning.search"},
    "provider to server": {"ravnest.provider.loop": "from ravnest.server import state"},
    "server to provider": {"ravnest.server.state": "from ravnest.provider.loop import Loop"},
    "stage to planning": {"ravnest.stage.module": "from ravnest import planning"},
    "planning to wire": {"ravnest.planning.search": "from ravnest.wire.messages import Hello"},
    "plain data to stage": {"ravnest.plan": "from ravnest.stage.module import Stage"},
    "wire to a face": {"ravnest.wire.framing": "from ravnest.utils import set_seed"},
    "room to the package": {"ravnest.planning.report": "from ravnest import __version__"},
    "face to cli": {"ravnest.demo": "from ravnest.cli import main"},
    "package to cli": {"ravnest": "from ravnest.cli import main"},
    "inside a function": {"ravnest.plan": "def f():\n    import ravnest.stage"},
    "for types only": {
        "ravnest.plan": "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from ravnest.stage.module import Stage"
    },
    "relative": {"ravnest.stage.module": "from ..planning import search"},
    "relative from a package": {
        "ravnest.stage": "from ..planning.search import find",
        "ravnest.stage.module": "",
    },
    "unknown room": {"ravnest.misc": ""},
}


@pytest.mark.parametrize("sources", WRONG_DIRECTIONS.values(), ids=list(WRONG_DIRECTIONS))
def test_a_wrong_direction_is_found(sources):
    assert len(wrong_directions(sources)) == 1


def test_right_directions_pass():
    sources = {
        "ravnest": "from importlib.metadata import version",
        "ravnest.__main__": "from ravnest.cli import main",
        "ravnest.cli": "from ravnest import __version__\nfrom ravnest.errors import RavnestError",
        "ravnest.cli.plan": "def f():\n    from ravnest.planning.dryrun import plan_script",
        "ravnest.node": "from ravnest.provider.loop import Loop",
        "ravnest.trainer": "from ravnest.node import Node",
        "ravnest.planning.search": "import ravnest.plan\nfrom ravnest.stage.package import Package",
        "ravnest.stage": "from .package import Package",
        "ravnest.stage.package": "import torch\nfrom ravnest import errors, plan",
        "ravnest.server.state": "from ravnest.planning import search",
    }
    assert wrong_directions(sources) == []
    assert cycles(sources) == []


def test_a_cycle_is_found():
    sources = {
        "ravnest.stage.a": "from ravnest.stage import b",
        "ravnest.stage.b": "from ravnest.stage.c import C",
        "ravnest.stage.c": "def late():\n    import ravnest.stage.a",
        "ravnest.stage.d": "import ravnest.stage.a",
    }
    expected = "ravnest.stage.a -> ravnest.stage.b -> ravnest.stage.c -> ravnest.stage.a"
    assert cycles(sources) == [expected]


@pytest.mark.parametrize(
    "statement", ["import torch.nn", "from time import monotonic", "import numpy, threading"]
)
def test_an_impure_decision_is_found_directly_and_one_step_away(statement):
    assert len(impure_decisions({"ravnest.planning.search.rings": statement})) == 1
    far = {"ravnest.plan": "from ravnest.config import x", "ravnest.config": statement}
    assert len(impure_decisions(far)) == 1
    assert impure_decisions({"ravnest.planning.capture": statement}) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from cloudpickle import loads",
        "def f():\n    import marshal",
        "eval('1')",
        "exec('1')",
        "run = eval",
        "from builtins import exec as run",
        "builtins.eval('1')",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=trusted)",
        "numpy.load(path, allow_pickle=True)",
    ],
)
def test_unsafe_code_is_found(source):
    assert len(unsafe_code({"ravnest.stage.package": source})) == 1


def test_safe_code_passes():
    source = "model.eval()\nclass Modes:\n    eval: int\n"
    source += "torch.load(path, weights_only=True)\nnumpy.load(path, allow_pickle=False)"
    assert unsafe_code({"ravnest.stage.package": source}) == []


@pytest.mark.parametrize(
    "source",
    [
        "context.load_verify_locations(text)",
        "f(cadata=text)",
        "ssl.PEM_cert_to_DER_cert(text)",
        "from ssl import create_default_context as secure",
        "getattr(context, 'load_verify_locations')(text)",
        "grpc.ssl_channel_credentials(text)",
    ],
)
def test_trust_in_another_place_is_found(source):
    assert len(trust_elsewhere({"ravnest.client.trust": source})) == 1


def test_trust_in_its_place_passes():
    sources = {"ravnest.api.trust_anchor": "context.load_verify_locations(cadata=self.pem)"}
    assert trust_elsewhere(sources) == []
