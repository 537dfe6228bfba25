"""Files that describe a job, read on the requester's own machine, where they may run.

job.py      a function `job()` that returns the arguments of `Session.submit`, as a dictionary
            or a `JobRequest`; or a variable `job` that is one
job.toml    the same names and values; what cannot be written in TOML is "file.py:name"
"""

import ast
import importlib.util
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ravnest.errors import JobError
from ravnest.session.request import JobRequest

ENTRY = "job"
_OBJECTS = ("model", "data", "validation", "example_args", "example_kwargs")
"""Arguments that a TOML file may take from Python."""
_PATHS = ("data", "validation", "script", "weights")
_OF_PROVIDER_SCRIPTS = {"clusterize", "Node", "Trainer"}


def load_request(
    path: Path, arguments: Sequence[str] = (), overrides: Mapping[str, Any] | None = None
) -> JobRequest:
    """What the file asks for, with `overrides` in place of its own values. While it runs it finds
    `arguments` in sys.argv."""
    argv, sys.argv = sys.argv, [str(path), *arguments]
    try:
        given: Any = _from_toml(path) if path.suffix == ".toml" else _from_program(path)
    finally:
        sys.argv = argv
    values = dict(overrides or {})
    parameters = values.pop("optimizer_params", None)
    request = JobRequest.of(given, **values)
    if parameters is not None:
        if not isinstance(parameters, Mapping):
            raise JobError(
                f"optimizer_params is {parameters!r}; its values are set one by one, as in "
                "optimizer_params.lr=0.1"
            )
        merged = {**request.optimizer_params, **parameters}
        request = JobRequest.of(request, optimizer_params=merged)
    return request


def _from_program(path: Path) -> Mapping[str, Any] | JobRequest:
    if _is_provider_script(path):
        # Not even run: it would plan or train here, on this machine.
        raise JobError(
            f"{path} has no job(): it is a provider script, which plans and trains by hand "
            "(`ravnest plan`, `ravnest run`). For a server, write a file beside it with a function "
            "job() that returns the model, a sample batch and the data, as examples/spirals/job.py "
            f'does; with "script": "{path.name}" in its dictionary, providers whose owners allow '
            "it run this script"
        )
    module = run_program(path)
    entry = getattr(module, ENTRY, None)
    given = entry() if callable(entry) else entry
    if not isinstance(given, Mapping | JobRequest):
        found = "has no job()" if entry is None else f"has a job that gives {type(given).__name__}"
        raise JobError(
            f"{path} {found}: a file for `ravnest submit` has a function job() that returns a "
            'dictionary with "model", "example_args", "data" and so on, the arguments of '
            "Session.submit; examples/spirals/job.py is one"
        )
    return given


def _is_provider_script(path: Path) -> bool:
    """Names a Node, a Trainer or clusterize, and nothing that could be the job."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return False  # whoever runs it will say what is wrong
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.FunctionDef(name=name):
                names.add(name)
            case ast.alias(name=name, asname=other):
                names |= {name, other or name}
    return bool(names & _OF_PROVIDER_SCRIPTS) and not names & {ENTRY, "*"}


def _from_toml(path: Path) -> Mapping[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise JobError(f"{path} is no TOML: {error}") from None
    modules: dict[Path, ModuleType] = {}
    for key in _OBJECTS:
        value = values.get(key)
        file, _, name = value.rpartition(":") if isinstance(value, str) else ("", "", "")
        if not file.endswith(".py"):
            continue
        place = path.parent / file
        if place not in modules:
            modules[place] = run_program(place)
        values[key] = _named_in(modules[place], place, name)
    for key in _PATHS:
        if isinstance(values.get(key), str):
            values[key] = str(path.parent / values[key])
    return values


def _named_in(module: ModuleType, place: Path, name: str) -> Any:
    found = getattr(module, name, None)
    if found is None:
        raise JobError(f"{place} has nothing called {name!r}")
    is_function = callable(found) and hasattr(found, "__code__")
    return found() if is_function else found


def run_program(path: Path) -> ModuleType:
    """The file as a module of its own, with its folder on the path.

    `__name__` is not "__main__": what a script does only when it is run itself is not done.
    """
    name = f"ravnest_job_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise JobError(f"{path} is neither Python (.py) nor TOML (.toml)")
    module = importlib.util.module_from_spec(spec)
    # Models are captured later, and then torch looks for the modules of their classes.
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    spec.loader.exec_module(module)
    return module
