"""The API described for programs, made from the table of routes and the structures themselves."""

import re
from collections.abc import Sequence
from typing import Any, get_args

import msgspec

from ravnest.api.requests import Problem
from ravnest.server.service.calls import Endpoint

_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")


def describe(endpoints: Sequence[Endpoint], version: str) -> bytes:
    found = [kind for one in endpoints for kind in (one.body, _answer(one)[0])]
    kinds = [kind for kind in found if kind is not None]
    kinds.append(Problem)
    schemas, components = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    schema_of = dict(zip(map(str, kinds), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for one in endpoints:
        path = _PARAMETER.sub(r"{\1}", one.path)
        paths.setdefault(path, {})[one.method.lower()] = _operation(one, schema_of)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Ravnest server",
            "version": version,
            "description": "Beside these there are three WebSockets for machines: "
            "/api/v1/agent, /api/v1/relay/dial/{assignment}/{provider}, "
            "/api/v1/relay/accept/{call}.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }
    return msgspec.json.encode(document)


def _answer(one: Endpoint) -> tuple[Any, bool]:
    """What is answered, and whether that may also be nothing."""
    parts = get_args(one.answer)
    if type(None) not in parts:
        return one.answer, one.answer is None
    (answer,) = (part for part in parts if part is not type(None))
    return answer, True


def _operation(one: Endpoint, schema_of: dict[str, Any]) -> dict[str, Any]:
    answer, may_be_empty = _answer(one)
    success: dict[str, Any] = {"description": one.summary}
    if answer is not None or one.media != "application/json":
        schema = schema_of[str(answer)] if answer is not None else {}
        success["content"] = {one.media: {"schema": schema}}
    responses = {"200" if "content" in success or one.method == "HEAD" else "204": success}
    if answer is not None and may_be_empty:
        responses["204"] = {"description": "Done, and there is nothing to show any more"}
    problem = {"application/json": {"schema": schema_of[str(Problem)]}}
    operation: dict[str, Any] = {
        "summary": one.summary,
        "responses": {
            **responses,
            "default": {"description": "Refused, and why", "content": problem},
        },
        "security": [] if one.right is None else [{"bearer": []}],
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(one.path)
    ]
    parameters += [
        {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}
        for name, text in one.query.items()
    ]
    if parameters:
        operation["parameters"] = parameters
    if one.body is not None:
        content = {"application/json": {"schema": schema_of[str(one.body)]}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation
