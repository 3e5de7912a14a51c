"""The description of the admin API: it is whole, names what is there, and answers are as it says."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from engine.broker.admin.leader import LeaderAdmin
from engine.broker.admin.local import LocalAdmin
from engine.broker.admin.openapi import openapi
from engine.broker.admin.statuses import STATUSES
from engine.model.admin_operations import OPERATIONS
from engine.model.admin_requests import Leader, Operation
from engine.model.autoscale import JSON_NAMES
from tests.broker.over_http import BASE, call
from tests.broker.transacting import begin
from tests.kit.peer import Peer, make_entries

SEGMENT = "/admin/v2/segments/public/default"
NAMESPACE = "/admin/v2/namespaces/public/default"
SETTINGS = "/admin/v2/brokers/configuration"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return openapi("http://127.0.0.1:8080")


def described(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(verb, path, operation) of each."""
    for path, methods in document["paths"].items():
        for verb, operation in methods.items():
            yield verb.upper(), path, operation


def every_part(value: Any) -> Iterator[dict[str, Any]]:
    """All objects in a document."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from every_part(inner)


def test_every_operation_is_described_once_by_its_name(document):
    found = {operation["operationId"]: (verb, path) for verb, path, operation in described(document)}
    assert found == {row.name: (row.verb, row.path) for row in OPERATIONS}


def test_references_lead_to_schemas_and_every_schema_is_used(document):
    names = {part["$ref"] for part in every_part(document) if "$ref" in part}
    assert names == {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}


def test_parameters_are_those_of_the_paths(document):
    for verb, path, operation in described(document):
        parts = [p["name"] for p in operation["parameters"] if p["in"] == "path"]
        assert sorted(parts) == sorted(re.findall(r"{(\w+)}", path)), (verb, path)
        for parameter in operation["parameters"]:
            assert parameter["schema"], (verb, path, parameter)
            assert parameter["in"] in ("path", "query")
            assert parameter["required"] or parameter["in"] == "query"


def test_answers_bodies_and_refusals_have_schemas(document):
    error = {"$ref": "#/components/schemas/Error"}
    for verb, path, operation in described(document):
        answers = operation["responses"]
        assert ("200" in answers) != ("204" in answers), (verb, path)
        contents = [content for answer in answers.values() for content in answer.get("content", {}).values()]
        contents += operation.get("requestBody", {}).get("content", {}).values()
        assert all("schema" in content for content in contents), (verb, path)
        assert answers["default"]["content"]["application/json"]["schema"] == error
        assert ("content" in answers["200"]) if "200" in answers else ("content" not in answers["204"])


def test_each_error_of_an_operation_has_its_status(document):
    by_name = {operation["operationId"]: operation for _, _, operation in described(document)}
    for row in OPERATIONS:
        for error in row.errors:
            assert error.__name__ in by_name[row.name]["responses"][str(STATUSES[error])]["description"]
        assert ("401" in by_name[row.name]["responses"]) is not row.without_token


def test_the_token_is_a_bearer_and_three_pages_need_none(document):
    (scheme,) = document["components"]["securitySchemes"].values()
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    free = {path for _, path, operation in described(document) if operation.get("security") == []}
    assert free == {"/", "/health", "/ready"}
    assert set(document["security"][0]) == set(document["components"]["securitySchemes"])


def test_what_a_body_may_say(document):
    topic = document["paths"]["/admin/v2/scalable/{tenant}/{namespace}/{topic}"]["put"]["requestBody"]
    assert topic["required"] is False
    schema = topic["content"]["application/json"]["schema"]
    facts = {"segments", "properties", "keyHash", "durability", "entryBuckets"}
    assert set(schema["properties"]) == facts | {"autoScalePolicy"}
    assert schema["properties"]["keyHash"]["enum"] == ["murmur3", "murmur3-low", "xxh64"]
    skip = document["paths"]["/admin/v2/scalable/{tenant}/{namespace}/{topic}/subscriptions/{subscription}/skip"]
    schema = skip["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["required"] == ["segment", "first", "last"]
    assert set(document["components"]["schemas"]["AutoScaleOverrides"]["properties"]) == set(JSON_NAMES)


def as_described(operation: str, answer: Any) -> None:
    """The answer has the fields of its schema, of their types, and no others."""
    (row,) = [row for row in OPERATIONS if row.name == operation]
    assert msgspec.to_builtins(msgspec.convert(answer, row.result.schema)) == answer


async def test_answers_are_as_described(http, broker):
    peer = await Peer.connect(broker)
    segment = await peer.segment("orders")
    producer = await peer.producer(segment)
    peer.publish(producer, make_entries([b"x"] * 10))
    await peer.receipts(producer, 10)
    consumer = await peer.consumer(segment, "queue")
    ident = await begin(peer, name="batch")
    await peer.ack(consumer, ranges=[[0, 1]], transaction=ident)
    await broker.parts.loads.report()
    await call(http, "PUT", f"{BASE}/orders/autoScalePolicy", json={"maxSegments": 9, "enabled": False})
    await call(http, "PATCH", f"{NAMESPACE}/policies", json={"durability": "os"})
    await call(http, "POST", f"{SETTINGS}/publish_bytes_max/64MB")
    for operation, path in (
        ("list_topics", BASE),
        ("get_metadata", f"{BASE}/orders"),
        ("get_stats", f"{BASE}/orders/stats"),
        ("list_transactions", "/admin/v2/transactions"),
        ("get_transaction", f"/admin/v2/transactions/{ident}"),
        ("get_namespace_policies", f"{NAMESPACE}/policies"),
        ("get_topic_policies", f"{BASE}/orders/policies"),
        ("get_auto_scale_policy", f"{BASE}/orders/autoScalePolicy"),
        ("get_namespace_auto_scale_policy", f"{NAMESPACE}/scalableTopicAutoScalePolicy"),
        ("list_dynamic_configuration", SETTINGS),
        ("get_dynamic_configuration", f"{SETTINGS}/values"),
        ("get_runtime_configuration", f"{SETTINGS}/runtime"),
        ("get_health", "/health"),
        ("get_readiness", "/ready"),
        ("get_description", "/openapi.json"),
    ):
        as_described(operation, await call(http, "GET", path, 200))
    as_described("split_segment", await call(http, "POST", f"{BASE}/orders/split/0", 200))
    as_described("merge_segments", await call(http, "POST", f"{BASE}/orders/merge/1/2", 200))
    as_described("rebucket_segment", await call(http, "POST", f"{BASE}/orders/rebucket/3?buckets=8", 200))
    refused = await call(http, "GET", f"{BASE}/nothing", 404)
    assert set(refused) == {"reason", "code"}


@pytest.mark.parametrize("operation", [pytest.param(row, id=row.name) for row in OPERATIONS])
def test_each_operation_has_one_handler_with_its_arguments(operation: Operation[Any]):
    if operation.name in ("get_welcome", "get_health", "get_readiness", "get_description"):  # pages of the HTTP server
        return
    local = operation.leader is Leader.ANY
    assert hasattr(LocalAdmin, operation.name) is local
    handler = getattr(LocalAdmin, operation.name) if local else getattr(LeaderAdmin, operation.leader_method)
    parameters = inspect.signature(handler).parameters
    sent = {p.name for p in operation.parameters} | set(operation.leader_arguments)
    sent.add("topic" if not local else "self")
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        assert parameters.keys() - {"self", "options"} <= sent
    else:
        assert parameters.keys() - {"self"} == sent - {"self"}
