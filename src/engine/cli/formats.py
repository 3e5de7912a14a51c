"""How `engine consume` writes messages: raw lines, lines of JSON, CSV, an Arrow stream, or a template."""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import io
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from engine.cli import lines
from engine.cli.template import Template
from engine.errors import UnsupportedError
from engine.model.text import plain

if TYPE_CHECKING:
    from engine.client import MessageBatch

FORMATS = ["raw", "json", "csv", "arrow"]
CSV_COLUMNS = ["topic", "segment", "offset", "publish_time", "event_time", "key", "value", "properties"]

Write = Callable[["MessageBatch"], None]
Encode = Callable[["MessageBatch"], bytes]


class JsonMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message as a line of JSON: what `consume` writes, and what `produce` reads (of it, only the first six fields).

    Bytes that are not UTF-8 are in base64 under `…_base64`. `event_time` of None: the message has none. A number of
    milliseconds since 1970 is accepted for it, too.
    """

    key: str | msgspec.UnsetType | None = msgspec.UNSET
    key_base64: bytes | msgspec.UnsetType = msgspec.UNSET
    value: str | msgspec.UnsetType = msgspec.UNSET
    value_base64: bytes | msgspec.UnsetType = msgspec.UNSET
    event_time: datetime | int | None = None
    properties: dict[str, str] = {}
    topic: str = ""
    segment: int = 0
    offset: int = 0
    id: bytes = b""  # MessageId.to_bytes()
    publish_time: datetime | None = None
    producer: str = ""
    sequence_id: int = 0
    redelivery_count: int = 0


def writer(
    name: str, template: Template | None, by: bytes | None, out: BinaryIO, *, terminal: bool
) -> contextlib.AbstractContextManager[Write]:
    """What writes batches to `out` in one of FORMATS, or by the template. Raises UnsupportedError without pyarrow.

    `by`: the separator behind the key in raw lines. `terminal`: `out` is one, and gets no control characters.
    """
    if template is not None:
        return _encoded(out, partial(_with_template, template, terminal))
    if name == "json":
        return _encoded(out, _ascii_lines if terminal else _json_lines())
    if name == "csv":
        return _encoded(out, partial(_csv_lines, terminal), _csv_text([CSV_COLUMNS]))
    if name == "arrow":
        return _arrow(out)
    return _encoded(out, partial(_raw_lines, by, terminal))


@contextlib.contextmanager
def _encoded(out: BinaryIO, encode: Encode, head: bytes = b"") -> Iterator[Write]:
    def write(batch: MessageBatch) -> None:
        out.write(encode(batch))
        out.flush()

    out.write(head)
    yield write


@contextlib.contextmanager
def _arrow(out: BinaryIO) -> Iterator[Write]:
    """An IPC stream of the columns of to_arrow(). Its schema is written at once, its end however the command ends."""
    if importlib.util.find_spec("pyarrow") is None:
        raise UnsupportedError("--format arrow needs pyarrow 17 or later: pip install pyarrow")
    import pyarrow as pa

    from engine.client import MessageBatch, MessageId

    schema = MessageBatch("", [], {}, MessageId).to_arrow().schema
    with pa.ipc.new_stream(pa.PythonFile(out, "w"), schema) as stream:

        def write(batch: MessageBatch) -> None:
            stream.write_table(batch.to_arrow())
            out.flush()

        yield write


def for_terminal(value: bytes) -> bytes:
    """Bytes as a terminal may show them: control characters but tabs and newlines, and what is no text, escaped."""
    return plain(value.decode(errors="backslashreplace"), keep="\n\t").encode()


def _raw_lines(by: bytes | None, terminal: bool, batch: MessageBatch) -> bytes:
    values = [bytes(value) for value in batch.values]
    if by is None:
        text = b"\n".join([*values, b""])
    else:
        text = b"".join([(key or b"") + by + value + b"\n" for key, value in zip(batch.keys, values, strict=True)])
    return for_terminal(text) if terminal else text


def _with_template(template: Template, terminal: bool, batch: MessageBatch) -> bytes:
    text = b"".join(map(template.render, batch))
    return for_terminal(text) if terminal else text


def _json_lines() -> Encode:
    encoder = msgspec.json.Encoder()
    return lambda batch: encoder.encode_lines([json_message(message) for message in batch])


def _ascii_lines(batch: MessageBatch) -> bytes:
    found = [msgspec.to_builtins(json_message(message)) for message in batch]
    return "".join(f"{lines.json_text(one, ascii_only=True)}\n" for one in found).encode()


def json_message(message: Any) -> JsonMessage:
    key, value = message.key, bytes(message.value)
    made = JsonMessage(
        topic=message.topic,
        segment=message.segment_id,
        offset=message.offset,
        id=message.id.to_bytes(),
        publish_time=message.publish_time,
        event_time=message.event_time,
        properties=message.properties,
        producer=message.producer_name,
        sequence_id=message.sequence_id,
        redelivery_count=message.redelivery_count,
    )
    try:
        made.key = None if key is None else key.decode()
    except UnicodeDecodeError:
        made.key_base64 = key
    try:
        made.value = value.decode()
    except UnicodeDecodeError:
        made.value_base64 = value
    return made


def _csv_lines(terminal: bool, batch: MessageBatch) -> bytes:
    """Keys and values are the bytes themselves, quoted as CSV has it; properties are a JSON object."""
    text = _csv_text(
        [
            message.topic,
            message.segment_id,
            message.offset,
            _instant(message.publish_time),
            _instant(message.event_time),
            (message.key or b"").decode(errors="surrogateescape"),
            bytes(message.value).decode(errors="surrogateescape"),
            msgspec.json.encode(message.properties).decode() if message.properties else "",
        ]
        for message in batch
    )
    return for_terminal(text) if terminal else text


def _csv_text(rows: Any) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode(errors="surrogateescape")


@lru_cache  # those of one entry are equal
def _instant(when: datetime | None) -> str:
    return "" if when is None else when.isoformat(timespec="milliseconds")
