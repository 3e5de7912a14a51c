"""The OpenAPI document of the admin API, served at /openapi.json and generated from the table of operations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec

from engine.broker.admin.statuses import STATUSES
from engine.errors import AuthenticationError
from engine.model.admin_answers import Error
from engine.model.admin_operations import OPERATIONS, PARTS
from engine.model.admin_parameters import Parameter, Where
from engine.model.admin_requests import Operation

_SECURITY = "bearer"


def openapi(url: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document for an API that is served at `url`."""
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.verb.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Engine admin API", "version": "2"},
        "servers": [{"url": url}],
        "security": [{_SECURITY: []}, {}],  # a broker may have no token
        "paths": paths,
        "components": {
            "schemas": _schemas()[1],
            "securitySchemes": {_SECURITY: {"type": "http", "scheme": "bearer", "description": "auth_token"}},
        },
    }


@cache
def _schemas() -> tuple[dict[Any, dict[str, Any]], dict[str, Any]]:
    """({type of the table: its schema}, {component that schemas refer to: its schema})."""
    types = list(dict.fromkeys((Error, *_types())))
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    return dict(zip(types, schemas, strict=True)), components


def _types() -> Iterable[Any]:
    for operation in OPERATIONS:
        if operation.result.schema is not None:
            yield operation.result.schema
        yield from (p.kind.schema for p in operation.parameters)
        yield from (p.kind.query_schema for p in operation.among(Where.QUERY, Where.QUERY_OR_FIELD))


def _schema(kind: Any) -> dict[str, Any]:
    return _schemas()[0][kind]


def _operation(operation: Operation[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [_tag(operation.path)],
        "summary": operation.summary.replace("`", ""),
        "parameters": [*_path_parameters(operation), *_query_parameters(operation)],
        "responses": _responses(operation),
    }
    body = _body(operation)
    if body is not None:
        found["requestBody"] = {"required": _body_required(operation), "content": _json(body)}
    if operation.without_token:
        found["security"] = []
    return found


def _tag(path: str) -> str:
    for tag in ("subscriptions", "segments", "transactions", "namespaces", "scalable"):
        if f"/{tag}" in path:
            return "topics" if tag == "scalable" else tag
    return "brokers"


def _path_parameters(operation: Operation[Any]) -> list[dict[str, Any]]:
    kinds = {part: p for p in operation.among(Where.PATH) for part in p.parts}
    return [
        {
            "name": part,
            "in": "path",
            "required": True,
            "description": PARTS[part],
            "schema": {"type": "string"} if len(p.parts) > 1 else _schema(p.kind.schema),
        }
        for part, p in kinds.items()
    ]


def _query_parameters(operation: Operation[Any]) -> list[dict[str, Any]]:
    return [
        {
            "name": p.key,
            "in": "query",
            "required": p.required and p.where is Where.QUERY,
            "description": p.says,
            "schema": _schema(p.kind.query_schema),
        }
        for p in operation.among(Where.QUERY, Where.QUERY_OR_FIELD)
    ]


def _body(operation: Operation[Any]) -> dict[str, Any] | None:
    """The schema of the request body; None for an operation without one."""
    whole = operation.among(Where.BODY)
    if whole:
        return _schema(whole[0].kind.schema)
    if not operation.fields:
        return None
    required = [p.key for p in operation.among(Where.FIELD) if p.required]
    return {
        "type": "object",
        "properties": {p.key: _field(p) for p in operation.fields},
        "additionalProperties": False,
        **({"required": required} if required else {}),
    }


def _field(p: Parameter) -> dict[str, Any]:
    schema = _schema(p.kind.schema)
    return schema if p.required or p.default is None else {**schema, "default": p.default}


def _body_required(operation: Operation[Any]) -> bool:
    return any(p.required for p in operation.among(Where.FIELD, Where.BODY))


def _responses(operation: Operation[Any]) -> dict[str, Any]:
    by_status: dict[int, list[str]] = defaultdict(list)
    for error in operation.errors if operation.without_token else (*operation.errors, AuthenticationError):
        by_status[STATUSES[error]].append(error.__name__)
    refused = {str(status): _refused(" or ".join(names)) for status, names in sorted(by_status.items())}
    return {**_done(operation), **refused, "default": _refused("Refused")}


def _done(operation: Operation[Any]) -> dict[str, Any]:
    result = operation.result
    if result.nothing:
        return {"204": {"description": "Done"}}
    content = {"text/plain": {"schema": {"type": "string"}}} if result.schema is None else _json(_schema(result.schema))
    done = {"description": "Done", "content": content}
    return {"200": done, **({} if operation.refusal is None else {str(operation.refusal): done})}


def _refused(why: str) -> dict[str, Any]:
    return {"description": why, "content": _json(_schema(Error))}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
