"""The description of the admin API, served at /openapi.json."""

from __future__ import annotations

from typing import Any

from engine.broker.admin.transaction_admin import LIST_DEFAULT, LIST_MAX
from engine.errors import (
    AlreadyClosedError,
    AlreadyExistsError,
    AuthenticationError,
    AuthorizationError,
    ConnectError,
    ConsumerBusyError,
    DiskFullError,
    EngineError,
    FencedError,
    InvalidArgumentError,
    InvalidConfigurationError,
    MemoryLimitError,
    MessageTooLargeError,
    NotFoundError,
    NotOwnerError,
    PermitQueueFullError,
    PermitTimeoutError,
    ProducerBusyError,
    StorageError,
    SubscriptionKindError,
    TimeoutError,
    TooManyRequestsError,
    TransactionConflictError,
    TransactionNotFoundError,
    UnknownOutcomeError,
    UnsupportedError,
)
from engine.limits import BUCKETS_PER_SEGMENT_MAX
from engine.model.autoscale import JSON_NAMES

# The HTTP status of each error; others are 500.
CODES: dict[type[EngineError], int] = {
    InvalidArgumentError: 400,
    InvalidConfigurationError: 400,
    AuthenticationError: 401,
    AuthorizationError: 403,
    NotFoundError: 404,
    TransactionNotFoundError: 404,
    TransactionConflictError: 409,
    AlreadyExistsError: 409,
    ConsumerBusyError: 409,
    ProducerBusyError: 409,
    FencedError: 409,
    MessageTooLargeError: 413,
    UnsupportedError: 501,
    AlreadyClosedError: 503,
    TooManyRequestsError: 429,
    MemoryLimitError: 503,
    PermitQueueFullError: 503,
    PermitTimeoutError: 503,
    NotOwnerError: 503,
    StorageError: 503,
    SubscriptionKindError: 409,
    ConnectError: 503,
    TimeoutError: 504,
    UnknownOutcomeError: 504,
    DiskFullError: 507,
}

_NAMES = {
    "tenant": "",
    "namespace": "",
    "topic": "the local name",
    "subscription": "",
    "segment": "a segment's id",
    "other": "the other segment's id",
    "descriptor": "start-end-id, as in 0000-7fff-1",
    "transaction": "its id, 16 hexadecimal digits",
    "name": "a key of the configuration, or the specification's name of it",
    "value": "a number, or text with a unit",
}
_TEXT = {"type": "string"}
_NUMBER = {"type": "integer"}
_TEXTS = {"type": "object", "additionalProperties": _TEXT}
_NAMESPACE = "/admin/v2/scalable/{tenant}/{namespace}"
_TOPIC = "/admin/v2/scalable/{tenant}/{namespace}/{topic}"
_SEGMENT = "/admin/v2/segments/{tenant}/{namespace}/{topic}/{descriptor}"
_POLICIES = "/admin/v2/namespaces/{tenant}/{namespace}/policies"
_SCALE = _TOPIC + "/autoScalePolicy"
_SCALE_ALL = "/admin/v2/namespaces/{tenant}/{namespace}/scalableTopicAutoScalePolicy"
_TRANSACTIONS = "/admin/v2/transactions"
_SETTINGS = "/admin/v2/brokers/configuration"
_UNITS = "What is missing is not overridden. Times are seconds, rates per second and segment"

_NEW_TOPIC = {
    "segments": _NUMBER,
    "properties": _TEXTS,
    "keyHash": {"type": "string", "enum": ["xxh64", "murmur3"]},
    "durability": {"type": "string", "enum": ["fsync", "interval", "os"]},
    "entryBuckets": _NUMBER,
}
_POSITION = {"initialPosition": {"type": "string", "enum": ["earliest", "latest"]}}
_WHEN = {"when": {"oneOf": [{"type": "string", "enum": ["earliest", "latest"]}, _NUMBER]}}
_POLICY = {
    "retention_time_s": {"type": "integer", "minimum": -1},
    "retention_size_bytes": {"type": ["integer", "null"], "minimum": -1},
    "durability": {"type": ["string", "null"]},
}
_OVERRIDES = {
    name: {"type": "boolean"} if name == "enabled" else {"type": "number", "minimum": 0} for name in JSON_NAMES
}
_BUCKETS = {"buckets": {"type": "integer", "minimum": 1, "maximum": BUCKETS_PER_SEGMENT_MAX}}
_SKIPPED = {name: {"type": "integer", "minimum": 0} for name in ("segment", "first", "last")}
_NAMED = {"type": "array", "items": _TEXT}
_REPAIR = "For repairs: refused where the topic's layout does not call for it."

# What may stand behind the "?".
_QUERIES: dict[tuple[str, str], dict[str, tuple[str, dict[str, Any]]]] = {
    ("get", _NAMESPACE): {"property": ("name=value; only topics that have it; repeatable", _TEXT)},
    ("post", _TOPIC + "/rebucket/{segment}"): {"buckets": ("instead of a body", _BUCKETS["buckets"])},
    ("get", _TRANSACTIONS): {
        "openLongerThan": ("seconds; only those that are at least so old", {"type": "number", "minimum": 0}),
        "segment": ("segment://…; only those with operations in it", _TEXT),
        "limit": (
            "the oldest so many",
            {"type": "integer", "minimum": 1, "maximum": LIST_MAX, "default": LIST_DEFAULT},
        ),
    },
    ("delete", _SEGMENT): {"force": ("also when it is not drained", {"type": "boolean", "default": False})},
}

# (method, path, what it does, the body's fields or schema, or None, whether it answers with JSON)
OPERATIONS: list[tuple[str, str, str, dict[str, Any] | None, bool]] = [
    ("get", _NAMESPACE, "List topics", None, True),
    ("put", _TOPIC, "Create a topic; what is missing is the namespace's or the broker's default", _NEW_TOPIC, False),
    ("get", _TOPIC, "The topic's metadata: its segments and properties", None, True),
    ("delete", _TOPIC, "Delete a topic with its messages and subscriptions", None, False),
    ("get", _TOPIC + "/stats", "Counts, rates, backlogs and consumers", None, True),
    ("put", _TOPIC + "/subscriptions/{subscription}", "Create a subscription", _POSITION, False),
    ("delete", _TOPIC + "/subscriptions/{subscription}", "Delete a subscription", None, False),
    ("post", _TOPIC + "/subscriptions/{subscription}/seek", "Move a subscription", _WHEN, False),
    ("post", _TOPIC + "/subscriptions/{subscription}/clear-backlog", "Acknowledge everything", None, False),
    ("post", _TOPIC + "/subscriptions/{subscription}/skip", "Acknowledge a range of a segment", _SKIPPED, False),
    ("post", _TOPIC + "/split/{segment}", "Split a segment in halves; the new metadata", None, True),
    ("post", _TOPIC + "/merge/{segment}/{other}", "Merge two neighbours; the new metadata", None, True),
    ("post", _TOPIC + "/rebucket/{segment}", "Change a segment's entry buckets; the new metadata", _BUCKETS, True),
    ("put", _SEGMENT, f"Create a segment's store, and cursors for the named. {_REPAIR}", _NAMED, False),
    ("post", _SEGMENT + "/terminate", f"Seal a segment. {_REPAIR}", None, False),
    ("delete", _SEGMENT, f"Delete a segment. {_REPAIR}", None, False),
    ("get", _POLICIES, "A namespace's policies", None, True),
    ("put", _POLICIES, "Replace a namespace's policies", _POLICY, False),
    ("delete", _POLICIES, "Go back to the broker's defaults", None, False),
    ("get", _SCALE, "What a topic overrides of how it changes its shape by itself", None, True),
    ("put", _SCALE, f"Replace it. {_UNITS}", _OVERRIDES, False),
    ("delete", _SCALE, "Override nothing", None, False),
    ("get", _SCALE_ALL, "What a namespace overrides of how its topics change their shape", None, True),
    ("put", _SCALE_ALL, f"Replace it. {_UNITS}", _OVERRIDES, False),
    ("delete", _SCALE_ALL, "Override nothing", None, False),
    ("get", _TRANSACTIONS, "The open transactions, the oldest first", None, True),
    ("get", _TRANSACTIONS + "/{transaction}", "A transaction, and where it has operations", None, True),
    ("post", _TRANSACTIONS + "/{transaction}/abort", "Abort a transaction", None, False),
    ("get", _SETTINGS, "Names of the limits that may be set at run time", None, True),
    ("get", _SETTINGS + "/values", "What was set, for all brokers", None, True),
    ("get", _SETTINGS + "/runtime", "What is in effect on this broker", None, True),
    ("post", _SETTINGS + "/{name}/{value}", "Set a limit, for all brokers and until it is taken back", None, False),
    ("delete", _SETTINGS + "/{name}", "Go back to what each broker was started with", None, False),
    ("get", "/health", "Whether the broker lives: 503 says that only a restart helps", None, True),
    ("get", "/ready", "Whether to send work here: 503 says why not", None, True),
    ("get", "/metrics", "Metrics as Prometheus text", None, False),
    ("get", "/openapi.json", "This document", None, True),
]


def openapi(url: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document for an API that is served at `url`."""
    paths: dict[str, Any] = {}
    for method, path, summary, body, answers in OPERATIONS:
        paths.setdefault(path, {})[method] = _operation(method, path, summary, body, answers)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Engine admin API", "version": "2"},
        "servers": [{"url": url}],
        "paths": paths,
        "components": {"schemas": {"Error": _object({"reason": _TEXT, "code": _NUMBER})}},
    }


def _operation(method: str, path: str, summary: str, body: dict[str, Any] | None, answers: bool) -> dict[str, Any]:
    good = {"description": "Done", **({"content": _json({})} if answers else {})}
    refused = {"description": "Refused", "content": _json({"$ref": "#/components/schemas/Error"})}
    operation: dict[str, Any] = {
        "summary": summary,
        "parameters": [*_path_parameters(path), *_query_parameters(method, path)],
        "responses": {"200" if answers else "204": good, "default": refused},
    }
    if body is not None:
        operation["requestBody"] = {"content": _json(body if "type" in body else _object(body))}
    return operation


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "description": text, "schema": _TEXT}
        for name, text in _NAMES.items()
        if f"{{{name}}}" in path
    ]


def _query_parameters(method: str, path: str) -> list[dict[str, Any]]:
    found = _QUERIES.get((method, path), {})
    return [{"name": n, "in": "query", "description": text, "schema": schema} for n, (text, schema) in found.items()]


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties}
