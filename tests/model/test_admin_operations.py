"""The table of admin operations: rows agree with themselves, and a request says what it was made of."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import pytest

from engine import errors
from engine.errors import EngineError, InvalidArgumentError, ProtocolError
from engine.model.admin_answers import NamespacePolicy, TopicPolicy
from engine.model.admin_methods import AdminMethods
from engine.model.admin_operations import (
    CREATE_TOPIC,
    GET_AUTO_SCALE_POLICY,
    GET_METADATA,
    OPERATIONS,
    PARTS,
    REBUCKET_SEGMENT,
    SKIP_MESSAGES,
)
from engine.model.admin_parameters import Kind, Where
from engine.model.admin_requests import NO_BODY, Leader, Operation
from engine.model.policies import NamespacePolicies, TopicPolicies

ODD = "a&b?c+d%2F {e}ü"  # a name of every character that a path must quote
TOPIC = f"topic://public/default/{ODD}"

# What each kind of parameter may be given, by its name in Python.
VALUES: dict[str, Any] = {
    "topic": TOPIC,
    "segments": 4,
    "properties": {"a&b": "c=d", "e": ""},
    "key_hash": "murmur3",
    "durability": "os",
    "entry_buckets": 8,
    "namespace": f"{ODD}/n",
    "segment_id": 3,
    "other_id": 0,
    "buckets": 16,
    "segment": f"segment://public/default/{ODD}/0000-7fff-1",
    "subscriptions": [ODD, "t"],
    "force": True,
    "own": True,
    "auto_scale": {"max_segments": 9},
    "subscription": ODD,
    "initial_position": "earliest",
    "kind": "queue",
    "when": datetime(2020, 1, 1, tzinfo=UTC),
    "first": 10,
    "last": 19,
    "open_longer_than": 1.5,
    "limit": 7,
    "ident": "00000000000000ff",
    "file": "plan.json",
    "position": 5,
    "size": 100,
    "done": True,
    "policies": {"retention_time_s": 5},
    "limits": {"producers_max": 5},
    "policy": {"max_segments": 7, "split_cooldown": 5.5},
    "tenant": ODD,
    "roles": ["ann", "bob"],
    "resource": f"{ODD}/n/t",
    "role": "ann",
    "rights": ["produce", "admin"],
    "subscription_prefix": ODD,
    "name": "publish_bytes_max",
    "value": "64 MB",
    "broker": "engine://10.0.0.2:6650",
    "to": "engine://10.0.0.3:6650",
    "dry_run": True,
}
ROWS = [pytest.param(row, id=row.name) for row in OPERATIONS]


def received(operation: Operation[Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments as a server reads them from the request that a client makes of them."""
    request = operation.request(arguments)
    pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(operation.path))
    match = re.fullmatch(pattern, request.path)
    assert match, request.path
    parts = {name: unquote(text) for name, text in match.groupdict().items()}
    body = NO_BODY if request.body is NO_BODY else json.loads(json.dumps(request.body))
    return operation.read(parts, lambda name: [text for key, text in request.query if key == name], body)


@pytest.mark.parametrize("operation", ROWS)
def test_a_request_says_what_it_was_made_of(operation: Operation[Any]):
    arguments = operation.check(*(VALUES[p.name] for p in operation.parameters))
    assert received(operation, arguments) == arguments


@pytest.mark.parametrize("operation", ROWS)
def test_what_is_not_given_has_its_default(operation: Operation[Any]):
    values = [VALUES[p.name] if p.required and not p.same_as else p.default for p in operation.parameters]
    arguments = operation.check(*values)
    assert received(operation, arguments) == {**arguments, **{k: [] for k, v in arguments.items() if v == ()}}


@pytest.mark.parametrize("operation", ROWS)
def test_a_row_agrees_with_itself(operation: Operation[Any]):
    parts = [part for p in operation.among(Where.PATH) for part in p.parts]
    assert sorted(parts) == sorted(re.findall(r"{(\w+)}", operation.path))
    assert set(parts) <= PARTS.keys()
    assert operation.verb in ("GET", "PUT", "PATCH", "POST", "DELETE")
    assert operation.verb != "GET" or not operation.takes_body
    assert not operation.no_fields or not operation.fields
    assert len(operation.among(Where.BODY)) <= 1
    assert not (operation.among(Where.BODY) and operation.fields)
    assert operation.summary.endswith(".")
    assert hasattr(AdminMethods, operation.name) is operation.method


@pytest.mark.parametrize("operation", ROWS)
def test_its_errors_are_those_that_its_docstring_names(operation: Operation[Any]):
    raises = (*re.split(r"\bRaises\s", operation.docstring), "")[1]
    named = {getattr(errors, name) for name in re.findall(r"\b\w+Error\b", raises)}
    assert operation.method is False or named == set(operation.errors)
    assert all(issubclass(kind, EngineError) for kind in operation.errors)


def test_rows_differ():
    assert len({row.name for row in OPERATIONS}) == len(OPERATIONS)
    assert len({(row.verb, row.path) for row in OPERATIONS}) == len(OPERATIONS)


def test_what_a_leader_does_is_about_one_topic():
    for row in OPERATIONS:
        if row.leader is not Leader.ANY:
            assert row.parameters[0].name in ("topic", "segment"), row.name


@pytest.mark.parametrize(
    ("operation", "query", "body", "said"),
    [
        (CREATE_TOPIC, {}, {"segments": "2"}, "field 'segments' must be a whole number, got '2'"),
        (CREATE_TOPIC, {}, {"segments": True}, "a whole number"),
        (CREATE_TOPIC, {}, {"segments": 2.0}, "a whole number"),
        (CREATE_TOPIC, {}, {"properties": {"a": 1}}, "text by text"),
        (CREATE_TOPIC, {}, {"colour": 1}, "'colour' is unknown; segments, properties, keyHash, "),
        (CREATE_TOPIC, {}, [1], "a JSON object"),
        (CREATE_TOPIC, {}, None, "a JSON object"),
        (SKIP_MESSAGES, {}, {"segment": 0, "first": 1}, "'last' is missing"),
        (SKIP_MESSAGES, {}, {"segment": 0, "first": 1, "last": None}, "'last' is missing"),
        (SKIP_MESSAGES, {}, NO_BODY, "'segment' is missing"),
        (REBUCKET_SEGMENT, {"buckets": ["2", "3"]}, NO_BODY, "2 and 3"),
        (REBUCKET_SEGMENT, {"buckets": ["2"]}, {"buckets": 3}, "2 and 3"),
        (REBUCKET_SEGMENT, {}, NO_BODY, "buckets is missing"),
        (GET_METADATA, {}, NO_BODY, None),
    ],
)
def test_what_a_request_must_be(operation: Operation[Any], query: dict[str, list[str]], body: Any, said: str | None):
    parts = {"tenant": "t", "namespace": "n", "topic": "o", "subscription": "s", "segment": "0"}

    def read() -> dict[str, Any]:
        return operation.read(parts, lambda name: query.get(name, []), body)

    if said is None:
        assert read() == {"topic": "topic://t/n/o"}
        return
    with pytest.raises(InvalidArgumentError, match=re.escape(said)):
        read()


def test_null_is_as_if_it_were_not_there():
    parts = {"tenant": "t", "namespace": "n", "topic": "o"}
    empty = CREATE_TOPIC.read(parts, lambda name: [], NO_BODY)
    assert CREATE_TOPIC.read(parts, lambda name: [], {"segments": None, "keyHash": None}) == empty


def test_a_last_offset_that_is_not_given_is_the_first():
    assert SKIP_MESSAGES.check("t", "s", 0, 5, None)["last"] == 5
    with pytest.raises(InvalidArgumentError, match="last"):
        SKIP_MESSAGES.check("t", "s", 0, 5, -1)


@pytest.mark.parametrize("answer", [None, [], "text", 1])
def test_another_kind_of_answer_is_no_answer(answer: Any):
    with pytest.raises(ProtocolError, match="a JSON object"):
        GET_METADATA.result.of_json(answer)


def test_overrides_travel_by_the_names_of_the_specification():
    result = GET_AUTO_SCALE_POLICY.result
    assert result.to_json({"max_segments": 7}) == {"maxSegments": 7}
    assert result.of_json({"maxSegments": 7, "ofANewerBroker": 1}) == {"max_segments": 7}
    with pytest.raises(ProtocolError):
        result.of_json({"maxSegments": "many"})


def test_the_described_policies_are_the_policies():
    fields = {name: getattr(NamespacePolicy(), name) for name in NamespacePolicy.__struct_fields__}
    assert fields == NamespacePolicies().to_mapping()
    fields = {name: getattr(TopicPolicy(), name) for name in TopicPolicy.__struct_fields__}
    assert fields == TopicPolicies().to_mapping()


def test_text_that_is_none_is_refused():
    for value in (None, 1, ""):
        with pytest.raises(InvalidArgumentError, match="name"):
            Kind().check("name", value)
