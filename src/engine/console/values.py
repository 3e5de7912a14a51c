"""What is in a message, as text for a page: decoded by the topic's schema, cut to a bounded size, nothing invisible."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from engine.client.base.schema import Schema
from engine.errors import EngineError, SchemaError
from engine.model.schema import SchemaType, TopicSchema

TEXT_MAX = 4_000  # characters of a value that are shown
NAME_MAX = 200  # of a key, and of the name or the value of a property
PROPERTIES_MAX = 50
DECODED_MAX = 1 << 20  # bytes; a larger value is shown undecoded, its first bytes
LINE_MAX = 100  # characters of JSON that stands in one line
HEX_BYTES = 512  # of a value that is no text
_ROW = 16


@dataclass(frozen=True, slots=True)
class Value:
    """`form`: how `text` was made: a schema's type, "text", "json" or "hex". `note`: what is not shown, and why."""

    form: str
    text: str
    note: str = ""


class Values:
    """Decodes the values of one topic by the newest of its schemas; those that it cannot read are shown as bytes."""

    def __init__(self, versions: Sequence[TopicSchema]) -> None:
        self.name = str(versions[-1].type) if versions else "bytes"
        self._schema = _schema_of(versions[-1]) if versions else None
        if self._schema is not None:
            self._schema.learn(versions)

    def shown(self, data: bytes) -> Value:
        """Never raises for what a producer has sent."""
        if self._schema is None or len(data) > DECODED_MAX:
            return plain(data)
        try:
            decoded = self._schema.to_plain(self._schema.decode(data))
        except (EngineError, ValueError, TypeError, RecursionError) as e:
            raw = plain(data)
            why = str(e) if isinstance(e, SchemaError) else "the value is not what the schema says"
            return Value(raw.form, raw.text, _joined(cut(why, NAME_MAX)[0], raw.note))
        if isinstance(decoded, str):
            return _text(self.name, decoded)
        return _text(self.name, _as_json(decoded))


def plain(data: bytes) -> Value:
    """A value without a schema: JSON, other text, or bytes in hexadecimal."""
    head = bytes(data[: 4 * TEXT_MAX])
    try:
        text = head.decode()
    except UnicodeDecodeError as e:
        # A character that the cut has split is no reason to show hexadecimal.
        if len(head) == len(data) or e.start < len(head) - 3:
            return _hex(data)
        text = head[: e.start].decode()
    if "\0" in text:
        return _hex(data)
    left = f"the first {len(head):,} of {len(data):,} bytes" if len(head) < len(data) else ""
    if not left and text[:1] in ("{", "["):
        try:
            return _text("json", _as_json(msgspec.json.decode(text)))
        except (msgspec.DecodeError, RecursionError):
            pass
    return _text("text", text, left)


def key_text(key: bytes | None) -> str:
    """A key in a line; "" for none."""
    return "" if key is None else _line(plain(key))


def line(text: str) -> str:
    """A name, or the value of a property."""
    return visible(cut(text, NAME_MAX)[0]).replace("\n", "\\n").replace("\t", "\\t")


def visible(text: str) -> str:
    """The text with an escape in place of each character that is not seen, or that turns others around."""
    return "".join(c if c.isprintable() or c in "\n\t" else _escape(c) for c in text)


def cut(text: str, most: int) -> tuple[str, bool]:
    """(at most so many characters, whether there are more)."""
    return (text, False) if len(text) <= most else (text[:most] + "…", True)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _line(value: Value) -> str:
    text = (
        " ".join(row.split("  ", 1)[1].split("  ")[0] for row in value.text.splitlines())
        if value.form == "hex"
        else value.text
    )
    return line(text)


def _text(form: str, text: str, note: str = "") -> Value:
    shown, more = cut(text, TEXT_MAX)
    return Value(
        form, visible(shown), _joined(note, f"the first {TEXT_MAX:,} of {len(text):,} characters" if more else "")
    )


def _hex(data: bytes) -> Value:
    """Offsets, bytes, and those that are printable ASCII."""
    head = bytes(data[:HEX_BYTES])
    rows = []
    for at in range(0, len(head), _ROW):
        part = head[at : at + _ROW]
        seen = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        rows.append(f"{at:04x}  {part.hex(' '):<47}  {seen}")
    return Value(
        "hex", "\n".join(rows), f"the first {len(head)} of {len(data):,} bytes" if len(data) > len(head) else ""
    )


def _joined(*notes: str) -> str:
    return "; ".join(note for note in notes if note)


def _as_json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=_other)
    return text if len(text) <= LINE_MAX else json.dumps(value, indent=2, ensure_ascii=False, default=_other)


def _other(value: Any) -> str:
    return value.hex() if isinstance(value, bytes | bytearray | memoryview) else str(value)


def _schema_of(newest: TopicSchema) -> Schema[Any] | None:
    """What reads values of any of the topic's schemas; None for a definition that this release does not understand."""
    try:
        if newest.type is SchemaType.STRING:
            return Schema.string()
        if newest.type is SchemaType.JSON:
            return Schema.json()
        if newest.type is SchemaType.MSGPACK:
            return Schema.msgpack()
        return Schema.avro(newest.definition)
    except EngineError:
        return None
