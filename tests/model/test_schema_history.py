"""Which schemas go together, and how a topic's history of them grows."""

from __future__ import annotations

import json

import pytest

from engine.errors import CorruptionError, InvalidArgumentError, SchemaError
from engine.limits import SCHEMA_SIZE_MAX, SCHEMA_VERSIONS_MAX
from engine.model.schema import Pair, SchemaHistory, SchemaType, TopicSchema, canonical


def record(*fields: dict[str, object], kind: SchemaType = SchemaType.JSON) -> TopicSchema:
    return TopicSchema(kind, canonical({"type": "record", "name": "value", "fields": list(fields)}))


NUMBER = {"name": "number", "type": "long"}
NOTE = {"name": "note", "type": ["null", "string"], "default": None}
PLACE = {"name": "place", "type": "string"}
STRING = TopicSchema(SchemaType.STRING)
NOTHING = SchemaHistory(7)


def test_the_first_schema_is_recorded_whoever_declares_it() -> None:
    assert NOTHING.declared(STRING, producer=True).versions == (STRING,)
    assert NOTHING.declared(STRING, producer=False).versions == (STRING,)


def test_a_known_schema_adds_no_version() -> None:
    once = NOTHING.declared(record(NUMBER), producer=True)
    assert once.declared(record(NUMBER), producer=True) is once
    assert once.declared(record(NUMBER), producer=False) is once


def test_an_optional_field_may_come_and_go() -> None:
    both = NOTHING.declared(record(NUMBER), producer=True).declared(record(NUMBER, NOTE), producer=True)
    assert len(both.versions) == 2
    assert NOTHING.declared(record(NUMBER, NOTE), producer=True).declared(record(NUMBER), producer=True).versions


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (record(NUMBER), record(NUMBER, PLACE), "place"),  # cannot read what is there
        (record(NUMBER, PLACE), record(NUMBER), "place"),  # present readers could not go on
        (record(NUMBER), record({"name": "number", "type": "string"}), "number|long"),
        (STRING, record(NUMBER), "string"),
        (record(NUMBER), record(NUMBER, kind=SchemaType.MSGPACK), "msgpack"),
    ],
)
def test_a_producer_that_does_not_go_together_is_refused(before: TopicSchema, after: TopicSchema, said: str) -> None:
    history = NOTHING.declared(before, producer=True)
    with pytest.raises(SchemaError, match=said):
        history.declared(after, producer=True)


def test_a_new_version_is_held_against_every_one_before_it() -> None:
    """Two that go with the second need not go with the first: versions are not a chain."""
    text = {"name": "note", "type": "string", "default": ""}
    number = {"name": "note", "type": "long", "default": 0}
    history = NOTHING.declared(record(NUMBER, text), producer=True).declared(record(NUMBER), producer=True)
    with pytest.raises(SchemaError, match="version 1"):
        history.declared(record(NUMBER, number), producer=True)


def test_a_consumer_needs_to_read_and_adds_nothing() -> None:
    history = NOTHING.declared(record(NUMBER, PLACE), producer=True)
    assert history.declared(record(NUMBER), producer=False) is history
    with pytest.raises(SchemaError, match="cannot be used to read version 1"):
        history.declared(record(NUMBER, PLACE, {"name": "more", "type": "long"}), producer=False)


def test_what_has_no_declared_form_goes_with_all_of_its_type() -> None:
    loose = TopicSchema(SchemaType.JSON)
    assert (
        NOTHING.declared(loose, producer=True).declared(record(NUMBER), producer=True).declared(loose, producer=False)
    )


def test_versions_are_bounded() -> None:
    history = NOTHING
    for i in range(SCHEMA_VERSIONS_MAX):
        history = history.declared(record(NUMBER, {**NOTE, "name": f"note{i}"}), producer=True)
    with pytest.raises(SchemaError, match=f"{SCHEMA_VERSIONS_MAX} versions"):
        history.declared(record(NUMBER), producer=True)


def pair(separated: bool = True, key: TopicSchema | None = None, value: TopicSchema | None = None) -> TopicSchema:
    return TopicSchema(SchemaType.PAIR, Pair(separated, key, value).to_text())


def test_pairs_are_compared_part_by_part() -> None:
    text, form, wider = TopicSchema(SchemaType.STRING), record(NUMBER), record(NUMBER, NOTE)
    assert pair(key=text, value=wider).why_unreadable(pair(key=text, value=form)) is None
    assert pair().why_unreadable(pair()) is None
    for reader, writer, why in (
        (pair(True), pair(False), "the message's key"),
        (pair(key=text), pair(key=None), "of the key: one is bytes"),
        (pair(key=text), pair(key=form), "of the key: it reads string values, and these are json"),
        (pair(value=record(NUMBER, {"name": "m", "type": "long"})), pair(value=form), "of the value: "),
    ):
        assert why in (reader.why_unreadable(writer) or "")
    history = NOTHING.declared(pair(key=text, value=form), producer=True)
    history = history.declared(pair(key=text, value=wider), producer=True)
    assert SchemaHistory.from_json(history.to_json()) == history
    assert Pair.parse(history.versions[0].definition) == Pair(True, text, form)


@pytest.mark.parametrize(
    "make",
    [
        lambda: TopicSchema(SchemaType.AVRO),
        lambda: TopicSchema(SchemaType.AVRO, '{"type":"record"}'),
        lambda: TopicSchema(SchemaType.JSON, "{"),
        lambda: TopicSchema(SchemaType.STRING, '"string"'),
        lambda: TopicSchema(SchemaType.JSON, json.dumps({"type": "string", "doc": "x" * SCHEMA_SIZE_MAX})),
        lambda: TopicSchema.of({"type": "protobuf", "definition": ""}),
        lambda: TopicSchema.of({"type": "json", "definition": 5}),
        lambda: TopicSchema.of({"type": "pair", "definition": ""}),
        lambda: TopicSchema.of({"type": "pair", "definition": "{"}),
        lambda: TopicSchema.of({"type": "pair", "definition": "[" * 10_000}),
        lambda: TopicSchema.of({"type": "pair", "definition": '{"separated":true,"key":null}'}),
        lambda: TopicSchema.of({"type": "pair", "definition": '{"separated":1,"key":null,"value":null}'}),
        lambda: TopicSchema.of({"type": "pair", "definition": '{"separated":true,"key":5,"value":null}'}),
        lambda: pair(key=TopicSchema(SchemaType.MSGPACK)),
        lambda: pair(value=pair()),
        lambda: pair(key=TopicSchema(SchemaType.PLAIN_AVRO, "{", checked=False)),
        lambda: TopicSchema.of([]),
        lambda: canonical({1, 2}),
    ],
)
def test_what_is_no_schema_is_refused(make: object) -> None:
    with pytest.raises(InvalidArgumentError):
        make()  # type: ignore[operator]


def test_the_record_is_read_as_it_was_written() -> None:
    history = NOTHING.declared(record(NUMBER), producer=True).declared(record(NUMBER, NOTE), producer=True)
    assert SchemaHistory.from_json(history.to_json()) == history


@pytest.mark.parametrize("value", [b"{}", b"[]", b'{"topicCreatedAt":1,"versions":[{"type":"xml"}]}', b"\xff"])
def test_a_damaged_record_is_corruption(value: bytes) -> None:
    with pytest.raises(CorruptionError, match="schema record"):
        SchemaHistory.from_json(value)
