"""Definitions are bounded before they are parsed, and decided against each other in time that grows with their size."""

from __future__ import annotations

import json
from typing import Any

import avro.schema
import pytest
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InvalidArgumentError, SchemaError
from engine.limits import (
    SCHEMA_BRANCHES_MAX,
    SCHEMA_DEPTH_MAX,
    SCHEMA_ERROR_SIZE_MAX,
    SCHEMA_FIELDS_MAX,
    SCHEMA_NAMES_MAX,
    SCHEMA_SIZE_MAX,
    SCHEMA_SYMBOLS_MAX,
    SCHEMA_TYPES_MAX,
)
from engine.model.avro import parse_definition
from engine.model.resolution import why_unresolvable
from engine.model.schema import SchemaHistory, SchemaType, TopicSchema


def text(definition: object) -> str:
    return json.dumps(definition, separators=(",", ":"))


def record(name: str, *fields: tuple[str, object]) -> dict[str, object]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields]}


def why(reader: object, writer: object) -> str | None:
    return why_unresolvable(parse_definition(text(reader)), parse_definition(text(writer)))


def doubled(levels: int, leaf: object) -> dict[str, object]:
    """A record that has the one before it twice, and so on."""
    found = record("R0", ("a", leaf))
    for i in range(1, levels):
        found = record(f"R{i}", ("a", found), ("b", f"R{i - 1}"))
    return found


def doubled_in_unions(levels: int, leaf: object) -> dict[str, object]:
    found = record("R0", ("a", leaf))
    for i in range(1, levels):
        found = record(f"R{i}", ("a", ["null", found, {"type": "array", "items": f"R{i - 1}"}]), ("b", [f"R{i - 1}"]))
    return found


@pytest.mark.parametrize("make", [doubled, doubled_in_unions])
def test_what_doubles_with_each_record_is_decided(make: Any) -> None:
    """The library's own answer to these 3 kB takes 2**30 reasons."""
    one, other = make(28, "int"), make(28, "string")
    assert len(text(one)) < 3_600
    assert "it reads int, and string is written" in str(why(one, other))
    assert why(make(28, "long"), one) is None
    history = SchemaHistory(1).declared(TopicSchema(SchemaType.JSON, text(one)), producer=True)
    with pytest.raises(SchemaError, match="cannot be used to read version 1"):
        history.declared(TopicSchema(SchemaType.JSON, text(other)), producer=True)


def test_what_takes_too_many_steps_is_refused() -> None:
    """Branches of one name in many namespaces may each be meant by each."""
    records = [record(f"n{i}.A", ("u", "n0.A")) if i else record("n0.A", ("u", "int")) for i in range(150)]
    with pytest.raises(SchemaError, match="steps"):
        why(records, records)
    named = [record(f"A{i}", ("u", "int")) for i in range(200)]
    assert why(named, named) is None


def nested(levels: int) -> str:
    return '{"type":"array","items":' * levels + '"int"' + "}" * levels


@pytest.mark.parametrize(
    ("definition", "said"),
    [
        (nested(SCHEMA_DEPTH_MAX), f"{SCHEMA_DEPTH_MAX} types inside each other"),
        (text({"type": "int", "doc": []}).replace("[]", "[" * 300 + "]" * 300), "values inside each other"),
        ("[" * 8_000 + "]" * 8_000, "must be an Avro schema|values inside each other"),  # 3.14 reads it
        (text([record(f"A{i}") for i in range(SCHEMA_NAMES_MAX + 1)]), f"{SCHEMA_BRANCHES_MAX} branches"),
        (
            text(record("v", *[(f"f{i}", {"type": "enum", "name": f"e{i}", "symbols": ["a"]}) for i in range(257)])),
            f"{SCHEMA_NAMES_MAX} named types",
        ),
        (text(record("v", *[(f"f{i}", "int") for i in range(SCHEMA_FIELDS_MAX + 1)])), "1,000 fields"),
        (text({"type": "enum", "name": "e", "symbols": [f"s{i}" for i in range(SCHEMA_SYMBOLS_MAX + 1)]}), "symbols"),
        (
            text(record("v", *[(f"f{i}", ["null", "int"]) for i in range(SCHEMA_TYPES_MAX // 3 + 1)])),
            "2,000 types",
        ),
    ],
    ids=["depth", "depth of values", "depth of JSON", "branches", "names", "fields", "symbols", "types"],
)
def test_each_part_of_a_definition_is_bounded(definition: str, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        parse_definition(definition)


def test_what_is_just_within_the_bounds_is_taken() -> None:
    assert parse_definition(nested(SCHEMA_DEPTH_MAX - 1)).kind == "array"
    fields = [(f"f{i}", "long") for i in range(530)]
    assert len(text(record("v", *fields))) < SCHEMA_SIZE_MAX
    assert why(record("v", *fields), record("v", *fields)) is None


def test_an_error_is_bounded_and_a_logical_type_warns_nobody() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_definition(nested(60).replace("int", "x" * 5_000))
    assert len(str(caught.value)) < SCHEMA_ERROR_SIZE_MAX + 100
    assert parse_definition('{"type":"int","logicalType":"of a stranger"}').kind == "int"  # a warning is an error here


@pytest.mark.parametrize(
    "definition",
    [
        {"type": "array", "items": "null"},
        {"type": "array", "items": record("Empty", ("a", "null"))},
        doubled(28, "null"),
        record("Endless", ("itself", "Endless")),
    ],
    ids=["array of nothing", "array of empty records", "2**28 records in no byte", "a record in itself"],
)
def test_avro_values_that_are_larger_than_their_bytes_are_refused(definition: object) -> None:
    with pytest.raises(InvalidArgumentError, match=r"must have|must take"):
        TopicSchema(SchemaType.AVRO, text(definition))
    assert TopicSchema(SchemaType.JSON, text(definition)), "JSON spells each"


def test_a_recorded_definition_beyond_the_limits_stays_usable_by_those_that_have_it() -> None:
    wide = TopicSchema(SchemaType.JSON, nested(SCHEMA_DEPTH_MAX), checked=False)
    history = SchemaHistory.from_json(SchemaHistory(1, (wide,)).to_json())
    assert history.versions == (wide,)
    assert history.declared(wide, producer=False) is history
    with pytest.raises(SchemaError, match="version 1"):
        history.declared(TopicSchema(SchemaType.JSON, '"int"'), producer=True)


def test_types_that_hold_themselves() -> None:
    def tree(value: str, more: str = "Tree") -> dict[str, object]:
        return record("Tree", ("value", value), ("more", {"type": "array", "items": more}))

    assert why(tree("long"), tree("int")) is None
    assert why(tree("int"), tree("long")) == "at value: it reads int, and long is written"


def test_an_assumption_that_fails_takes_with_it_what_was_built_on_it() -> None:
    """`B` reads `B` only as long as `A` reads `A`, which it does not: a branch must not remember that it did."""

    def pair(value: str) -> dict[str, object]:
        inner = record("B", ("back", ["null", "A"]))
        return record("Top", ("one", ["null", record("A", ("b", inner), ("value", value))]), ("two", "B"))

    assert why(pair("long"), pair("int")) is None
    assert why(pair("int"), pair("string")) is not None


names = st.sampled_from(["A", "B", "C"])
plain = st.sampled_from(["null", "boolean", "int", "long", "float", "double", "bytes", "string"])


@st.composite
def definitions(draw: st.DrawFn) -> str:
    taken: set[str] = set()

    def one(depth: int, in_union: bool = False) -> Any:
        kinds = ["plain"] * 3
        if depth < 3:
            kinds += ["record", "record", "array", "map", "enum", "fixed"] + ["union"] * (not in_union)
        kind = draw(st.sampled_from(kinds))
        if kind == "array":
            return {"type": "array", "items": one(depth + 1)}
        if kind == "map":
            return {"type": "map", "values": one(depth + 1)}
        if kind == "union":
            return union(depth)
        if kind == "plain" or not (left := {"A", "B", "C"} - taken):
            return draw(plain)
        taken.add(name := draw(st.sampled_from(sorted(left))))
        if kind == "enum":
            symbols = draw(st.lists(st.sampled_from("xyz"), min_size=1, unique=True))
            default = {"default": symbols[0]} if draw(st.booleans()) else {}
            return {"type": "enum", "name": name, "symbols": symbols, **default}
        if kind == "fixed":
            return {"type": "fixed", "name": name, "size": draw(st.integers(1, 2))}
        return {"type": "record", "name": name, "aliases": draw(st.lists(names, max_size=1)), "fields": fields(depth)}

    def fields(depth: int) -> list[dict[str, Any]]:
        found = []
        for name in draw(st.lists(st.sampled_from("abc"), unique=True, max_size=3)):
            default = {"default": None} if draw(st.booleans()) else {}
            found.append({"name": name, "type": one(depth + 1), **default})
        return found

    def union(depth: int) -> list[Any]:
        branches = [one(depth + 1, in_union=True) for _ in range(draw(st.integers(1, 3)))]
        kinds = [b["type"] if isinstance(b, dict) else b for b in branches]
        named = ("record", "enum", "fixed")
        return [b for i, b in enumerate(branches) if kinds[i] in named or kinds[i] not in kinds[:i]]

    return text(one(0))


@given(definitions(), definitions())
def test_the_answer_is_the_library_s_where_types_do_not_hold_themselves(reader: str, writer: str) -> None:
    checker: Any = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
    for one, other in ((reader, writer), (writer, reader), (reader, reader)):
        found = checker.get_compatibility(avro.schema.parse(one), avro.schema.parse(other))
        fits = found.compatibility is SchemaCompatibilityType.compatible
        assert (why_unresolvable(parse_definition(one), parse_definition(other)) is None) == fits
