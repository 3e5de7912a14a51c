"""Admin operations as calls to another process: the parts of the HTTP request that would ask for them, as msgpack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from engine.errors import ConnectError, InvalidArgumentError, UnknownOutcomeError
from engine.model.admin_operations import OPERATIONS
from engine.model.admin_parameters import Where
from engine.model.admin_requests import NO_BODY, AdminBackend, Operation

R = TypeVar("R")

_BY_NAME = {operation.name: operation for operation in OPERATIONS}


def pack_operation(operation: Operation[Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The operation and its checked arguments as plain values."""
    request = operation.request(arguments)
    parts: dict[str, str] = {}
    for p in operation.among(Where.PATH):
        parts.update(zip(p.parts, p.kind.texts(arguments[p.name]), strict=True))
    packed = {"operation": operation.name, "parts": parts, "query": [list(pair) for pair in request.query]}
    return packed if request.body is NO_BODY else {**packed, "body": request.body}


async def carry_out(admin: AdminBackend, packed: Mapping[str, Any]) -> Any:
    """Carry out what pack_operation() has packed; the answer as plain values. Raises what the operation raises."""
    operation = _BY_NAME.get(packed["operation"])
    if operation is None:
        raise InvalidArgumentError(f"operation must be one of this version, got {packed['operation']!r:.80}")
    query = packed["query"]
    texts = lambda name: [text for key, text in query if key == name]  # noqa: E731
    arguments = operation.read(packed["parts"], texts, packed.get("body", NO_BODY))
    found = await admin.call(operation, arguments)
    return None if operation.result.nothing else operation.result.to_json(found)


def lost(operation: Operation[Any], error: ConnectError) -> ConnectError | UnknownOutcomeError:
    """What to raise when the connection was lost before the answer."""
    if operation.verb == "GET":
        return error
    return UnknownOutcomeError(f"{error}; whether the change was made is not known: look, then repeat it")
