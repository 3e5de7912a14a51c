"""Values as text for a page: by their schema, cut, and with nothing that hides or turns around."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import engine
from engine.console.values import DECODED_MAX, HEX_BYTES, TEXT_MAX, Values, key_text, line, plain, visible
from engine.model.schema import SchemaType, TopicSchema


@dataclass
class Flight:
    number: int
    origin: str


def values(*schemas: engine.Schema[object]) -> Values:
    return Values([schema.facts for schema in schemas if schema.facts is not None])


@pytest.mark.parametrize("make", [engine.Schema.avro, engine.Schema.json, engine.Schema.msgpack])
def test_a_value_is_decoded_by_the_topics_schema(make) -> None:
    schema = make(Flight)
    shown = values(schema).shown(schema.encode(Flight(7, "EWR")))
    assert (shown.text, shown.note) == ('{"number": 7, "origin": "EWR"}', "")
    assert shown.form in ("avro", "json", "msgpack")


def test_values_of_an_older_avro_schema_are_read_by_the_newest() -> None:
    fields = [{"name": "number", "type": "long"}]
    later = [*fields, {"name": "delay", "type": "double", "default": 0.5}]
    older, newer = (engine.Schema.avro({"type": "record", "name": "Flight", "fields": one}) for one in (fields, later))
    shown = values(older, newer).shown(older.encode({"number": 7}))
    assert '"delay": 0.5' in shown.text


def test_text_and_what_is_no_value_of_the_schema() -> None:
    assert values(engine.Schema.string()).shown("Zürich".encode()).text == "Zürich"
    broken = values(engine.Schema.avro(Flight)).shown(b"\xc3\x01nothing of it")
    assert (broken.form, bool(broken.note)) == ("hex", True)
    assert values(engine.Schema.json()).shown(b"{").note
    unknown = Values([TopicSchema(SchemaType.AVRO, '{"type": "nothing"}', checked=False)])
    assert unknown.shown(b"plain").text == "plain"


def test_without_a_schema_json_text_and_bytes_are_told_apart() -> None:
    assert plain(b'{"a": [1]}').form == "json"
    assert plain(b"[" * 100_000).form == "text"  # deeper than can be followed
    assert plain(b"hello").text == "hello"
    assert plain(b"").text == ""
    found = plain(bytes(range(256)) * 4)
    assert (found.form, found.note) == ("hex", f"the first {HEX_BYTES} of 1,024 bytes")
    assert found.text.splitlines()[4] == "0040  40 41 42 43 44 45 46 47 48 49 4a 4b 4c 4d 4e 4f  @ABCDEFGHIJKLMNO"


def test_a_huge_body_is_cut_whatever_it_is() -> None:
    text = plain("é".encode() * (1 << 20))  # the cut splits a character
    assert (text.form, len(text.text)) == ("text", TEXT_MAX + 1)
    assert "of 2,097,152 bytes" in text.note
    schema = engine.Schema.json()
    undecoded = values(schema).shown(schema.encode("x" * (DECODED_MAX + 1)))
    assert len(undecoded.text) == TEXT_MAX + 1
    assert len(values(schema).shown(schema.encode(["x"] * 100_000)).text) == TEXT_MAX + 1


def test_what_hides_or_turns_around_is_escaped() -> None:
    assert visible("a\u202eb\x1b[31m\u200bc\n") == "a\\u202eb\\x1b[31m\\u200bc\n"
    assert line("a\nb" + "x" * 1_000).startswith("a\\nbxx")
    assert len(line("x" * 1_000)) == 201
    assert (key_text(None), key_text(b"k\n"), key_text(b"\xff\x00")) == ("", "k\\n", "ff 00")
