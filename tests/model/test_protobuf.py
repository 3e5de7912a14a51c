"""Protobuf definitions: which go together, and what is none."""

from __future__ import annotations

import base64
import json
import random
import sys
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from engine.errors import InvalidArgumentError, SchemaError
from engine.limits import SCHEMA_FIELDS_MAX, SCHEMA_NAMES_MAX
from engine.model.protobuf import parse_protobuf, why_unreadable
from engine.model.schema import SchemaHistory, SchemaType, TopicSchema

KINDS = {name[5:].lower(): number for name, number in FieldDescriptorProto.Type.items()}
LABELS = {"optional": 1, "required": 2, "repeated": 3}
Spec = tuple[Any, ...]  # (number, kind or ".type", label), in which the label may be left out


def file_of(
    messages: dict[str, list[Spec]], *, name: str = "shop.proto", syntax: str = "proto2"
) -> FileDescriptorProto:
    file = FileDescriptorProto(name=name, package="shop", syntax=syntax)
    file.enum_type.add(name="Colour").value.add(name="RED", number=0)
    for message, specs in messages.items():
        described = file.message_type.add(name=message)
        for number, kind, *label in specs:
            one = described.field.add(name=f"f{number}", number=number, label=LABELS[label[0] if label else "optional"])
            if kind.startswith("."):
                one.type, one.type_name = KINDS["enum" if kind == ".shop.Colour" else "message"], kind
            else:
                one.type = KINDS[kind]
    return file


def said(*files: FileDescriptorProto, root: str = "shop.Order", home: str = "shop.proto") -> str:
    encoded = base64.b64encode(FileDescriptorSet(file=files).SerializeToString()).decode()
    return json.dumps({"fileDescriptorSet": encoded, "rootMessageTypeName": root, "rootFileDescriptorName": home})


def definition(*specs: Spec, **more: list[Spec]) -> str:
    return said(file_of({"Order": list(specs), **more}))


def unreadable(reader: str, writer: str) -> str | None:
    return why_unreadable(parse_protobuf(reader), parse_protobuf(writer))


@pytest.mark.parametrize(
    ("reader", "writer"),
    [
        (definition((1, "int32")), definition((1, "int64"), (2, "string"))),
        (definition((1, "bool")), definition((1, ".shop.Colour"))),
        (definition((1, "sint32")), definition((1, "sint64"))),
        (definition((1, "sfixed64")), definition((1, "fixed64"))),
        (definition((1, "bytes")), definition((1, "string"))),
        (definition((7, "string")), definition((1, "double", "required"))),
        (definition((1, "float", "required")), definition((1, "float", "required"))),
        (definition((1, ".shop.Item", "repeated"), Item=[(1, "string")]),
         definition((1, ".shop.Thing", "repeated"), Thing=[(1, "string"), (2, ".shop.Order")])),
    ],
)  # fmt: skip
def test_what_can_be_read(reader: str, writer: str):
    assert unreadable(reader, writer) is None
    assert unreadable(reader, reader) is None


@pytest.mark.parametrize(
    ("reader", "writer", "why"),
    [
        (definition((1, "int32")), definition((1, "sint32")), "is a int32, and a sint32 where it was written"),
        (definition((1, "fixed32")), definition((1, "float")), "is a fixed32, and a float"),
        (definition((1, "string")), definition((1, "bytes")), "is a string, and a bytes"),
        (definition((1, "int32")), definition((1, "int32", "repeated")), "is single, and repeated"),
        (definition((1, "int32", "required")), definition((2, "int32")), "is required, and may be missing"),
        (definition((1, "int32", "required")), definition((1, "int32")), "is required, and may be missing"),
        (definition((1, ".shop.Item"), Item=[(1, "string")]), definition((1, "string")), "is a message, and a string"),
        (definition((1, ".shop.Item"), Item=[(3, "string")]), definition((1, ".shop.Item"), Item=[(3, "int64")]),
         r"the field 3 \(f3\) of shop.Item is a string"),
        (definition(), said(file_of({"Item": []}), root="shop.Item"), "it reads shop.Order, and these are shop.Item"),
    ],
)  # fmt: skip
def test_what_cannot_be_read(reader: str, writer: str, why: str):
    found = unreadable(reader, writer)
    assert found is not None
    with pytest.raises(SchemaError, match=f"version 1 of the topic's .protobuf.: .*{why}"):
        SchemaHistory(7, (TopicSchema(SchemaType.PROTOBUF, writer),)).declared(
            TopicSchema(SchemaType.PROTOBUF, reader), producer=False
        )


def test_types_that_hold_themselves_are_compared_once():
    tree = definition((1, ".shop.Order", "repeated"), (2, ".shop.Item"), Item=[(1, ".shop.Order")])
    assert (
        unreadable(tree, definition((1, ".shop.Order", "repeated"), (2, ".shop.Item"), Item=[(1, ".shop.Order")]))
        is None
    )


def test_types_of_other_files_and_inside_others():
    other = file_of({"Item": [(1, "string")]}, name="item.proto")
    other.message_type[0].nested_type.add(name="Part").field.add(name="n", number=1, label=1, type=KINDS["int32"])
    order = file_of({"Order": [(1, ".shop.Item"), (2, ".shop.Item.Part")]})
    assert parse_protobuf(said(other, order)).fields[2].message is not None


@pytest.mark.parametrize(
    "text",
    ["", "[]", "1", "{}", definition().replace("rootMessageTypeName", "root"), definition().replace("shop.Order", "x"),
     definition().replace("shop.proto", "x"), json.dumps({"fileDescriptorSet": "?", "rootMessageTypeName": "a",
                                                          "rootFileDescriptorName": "a"}),
     json.dumps({"fileDescriptorSet": base64.b64encode(b"\xff" * 9).decode(), "rootMessageTypeName": "a",
                 "rootFileDescriptorName": "a"}), definition((1, ".shop.Missing")),
     definition((1, ".shop.Order"), (1, "int32")),
     said(file_of({"Order": []}), file_of({"Order": []}, name="again.proto")),
     said(file_of({"Order": []}, syntax="editions"))],
)  # fmt: skip
def test_what_is_no_definition_says_what_would_be(text: str):
    with pytest.raises(InvalidArgumentError, match="the definition must be a JSON object of fileDescriptorSet, root"):
        parse_protobuf(text)
    with pytest.raises(InvalidArgumentError):
        TopicSchema(SchemaType.PROTOBUF, text)


@pytest.mark.parametrize("name", ["shop", "Order", "Colour", ".shop.Colour", "f1"])
def test_names_are_text(name: str):
    """Those of proto2 may be any bytes on the wire: of the package, a message, an enum, a field's type, a field."""
    described = json.loads(definition((1, ".shop.Colour")))
    files = base64.b64decode(described["fileDescriptorSet"])
    mark, size = name.encode(), len(name).to_bytes(1)
    assert size + mark in files
    encoded = base64.b64encode(files.replace(size + mark, size + b"\xff" * len(mark))).decode()
    with pytest.raises(InvalidArgumentError, match="must be UTF-8, got b'"):
        parse_protobuf(json.dumps({**described, "fileDescriptorSet": encoded}))


def test_limits():
    with pytest.raises(InvalidArgumentError, match=f"at most {SCHEMA_FIELDS_MAX} fields in shop.Order"):
        parse_protobuf(definition(*((n, "int32") for n in range(1, SCHEMA_FIELDS_MAX + 2))))
    with pytest.raises(InvalidArgumentError, match=f"at most {SCHEMA_NAMES_MAX} messages"):
        parse_protobuf(said(file_of({"Order": [], **{f"M{n}": [] for n in range(SCHEMA_NAMES_MAX)}})))


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "google.protobuf.descriptor_pb2", None)
    with pytest.raises(InvalidArgumentError, match=r"needs the package protobuf: pip install 'engine\[pulsar\]'"):
        parse_protobuf(definition((99, "int32")))


def class_of(text: str) -> Any:
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(base64.b64decode(json.loads(text)["fileDescriptorSet"])).file:
        pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


SINGLE = [kind for kind in KINDS if kind not in ("group", "message", "enum")]


@pytest.mark.parametrize("seed", range(60))
def test_what_is_said_to_be_readable_is_read_by_the_library(seed: int):
    """What the library writes by one definition, and reads by another, keeps its field, or is of another form."""
    rng = random.Random(seed)
    one, other = rng.choice(SINGLE), rng.choice(SINGLE)
    writer, reader = definition((1, one)), definition((1, other))
    value = {"string": "text", "bytes": b"text", "bool": True}.get(one, 1)
    data = class_of(writer)(f1=value).SerializeToString()
    found = class_of(reader).FromString(data)
    if unreadable(reader, writer) is None:
        assert found.HasField("f1")
        expected = b"text" if (one, other) == ("string", "bytes") else value
        assert found.f1 == expected
    elif (one, other) != ("bytes", "string"):
        assert not found.HasField("f1") or found.f1 != value
