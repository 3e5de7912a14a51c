"""What `engine produce` reads: lines, lines of JSON, or an Arrow stream, as columns of many messages."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, BinaryIO

import msgspec

from engine.cli.formats import JsonMessage
from engine.errors import InvalidArgumentError, UnsupportedError

FORMATS = ["raw", "json", "arrow"]
READ_BYTES = 1 << 18  # at most, at once: a pipe's lines are sent as they come
LINE_BYTES_MAX = 64 << 20  # a message of the largest size fits, however it is escaped

Properties = dict[str, str] | None
Row = tuple[Any, Any, Any, Any]  # value, key, event time, properties


@dataclass(slots=True)
class Records:
    """Columns as producer.send_batch() takes them. `first`: the number of the first one's line, or of the message.

    `numbers`: the line of each record, where lines were skipped. `size`: bytes read.
    """

    values: Any
    keys: Any = None
    event_times: Any = None
    properties: Any = None
    first: int = 1
    size: int = 0
    numbers: list[int] | None = None
    unit: str = "line"

    def __len__(self) -> int:
        return len(self.values)

    def place(self, index: int) -> str:
        """Where a record was read: line 7."""
        return f"{self.unit} {self.first + index if self.numbers is None else self.numbers[index]}"

    def rows(self) -> Iterator[Row]:
        """One record after the other."""
        columns = [self.values, self.keys, self.event_times, self.properties]
        for index in range(len(self)):
            value, key, event_time, properties = (None if c is None else _python(c[index]) for c in columns)
            yield value, key, event_time, dict(properties) if isinstance(properties, list) else properties


def _python(value: Any) -> Any:
    """An Arrow scalar as a Python value, a map as a list of pairs; anything else as it is."""
    return value.as_py() if hasattr(value, "as_py") else value


def line_blocks(source: BinaryIO) -> Iterator[tuple[list[bytes], int]]:
    """(whole lines without their newlines, bytes read), as much at once as is there; a last line may lack its newline.

    Raises InvalidArgumentError for a line that no message can have.
    """
    read: Callable[[int], bytes] = getattr(source, "read1", source.read)
    parts: list[bytes] = []
    pending = 0
    while data := read(READ_BYTES):
        first, *others = data.split(b"\n")
        parts.append(first)
        pending += len(first)
        if pending > LINE_BYTES_MAX:
            raise InvalidArgumentError(f"a line must have at most {LINE_BYTES_MAX:,} bytes, got a longer one")
        if others:
            *whole, last = others
            yield [b"".join(parts), *whole], len(data)
            parts, pending = [last], len(last)
    if pending:
        yield [b"".join(parts)], 0


def raw_records(
    source: BinaryIO, key: bytes | None = None, by: bytes | None = None, common: Properties = None
) -> Iterator[Records]:
    """A message per line, with `key` or the key before the separator. Raises InvalidArgumentError for a line without
    the separator, after the records before it.
    """
    number = 1
    for found, size in line_blocks(source):
        records = Records(found, first=number, size=size)
        if by is not None:
            pairs = [line.partition(by) for line in found]
            good = next((i for i, pair in enumerate(pairs) if not pair[1]), len(pairs))
            records.keys, records.values = [p[0] for p in pairs[:good]], [p[2] for p in pairs[:good]]
        elif key is not None:
            records.keys = [key] * len(found)
        records.properties = None if common is None else [common] * len(records)
        if len(records):
            yield records
        if len(records) < len(found):
            what = f"line {number + len(records)} has no {by.decode() if by else ''!r} between key and value"
            raise InvalidArgumentError(f"{what}; nothing from it on was sent")
        number += len(found)


def json_records(source: BinaryIO, common: Properties = None) -> Iterator[Records]:
    """A message per line of JSON, as `consume --format json` writes them; empty lines are skipped.

    Raises InvalidArgumentError for a line that is none, after the records before it.
    """
    decode = msgspec.json.Decoder(JsonMessage).decode
    number = 1
    for found, size in line_blocks(source):
        rows: list[Row] = []
        numbers: list[int] = []
        fault: Exception | None = None
        at = number
        try:
            for at, line in enumerate(found, number):
                if line and not line.isspace():
                    rows.append(_row(decode(line), common))
                    numbers.append(at)
        except (msgspec.MsgspecError, UnicodeDecodeError, InvalidArgumentError) as e:
            fault = e
        if rows:
            values, keys, event_times, properties = (list(column) for column in zip(*rows, strict=True))
            yield Records(values, keys, event_times, properties, size=size, numbers=numbers)
        if fault is not None:
            raise InvalidArgumentError(f"line {at}: {fault}; nothing from it on was sent") from fault
        number += len(found)


def _row(found: JsonMessage, common: Properties) -> Row:
    """(value, key, event time, properties); those of the line win over the common ones."""
    values = [one for one in (found.value, found.value_base64) if one is not msgspec.UNSET]
    keys = [one for one in (found.key, found.key_base64) if one is not msgspec.UNSET]
    if len(values) != 1:
        raise InvalidArgumentError(f"a message must have one of value and value_base64, got {len(values)}")
    if len(keys) > 1:
        raise InvalidArgumentError("a message must have one of key and key_base64, got both")
    value, when = values[0], found.event_time
    if isinstance(when, datetime) and when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    properties = found.properties if common is None else {**common, **found.properties}
    return value.encode() if isinstance(value, str) else value, keys[0] if keys else None, when, properties


def arrow_records(source: BinaryIO, common: Properties = None) -> Iterator[Records]:
    """The record batches of an Arrow stream with a column `value`, and `key`, `event_time`, `properties` if there are.

    Raises InvalidArgumentError for what is no such stream, UnsupportedError without pyarrow.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise UnsupportedError("--format arrow needs pyarrow 17 or later: pip install pyarrow")
    import pyarrow as pa

    first = 1
    try:
        with pa.ipc.open_stream(source) as stream:
            names = stream.schema.names
            if "value" not in names:
                raise InvalidArgumentError(f"an Arrow stream must have a column value, got {', '.join(names)}")
            for batch in stream:
                keys, times, properties = (
                    batch[name] if name in names else None for name in ("key", "event_time", "properties")
                )
                if common is not None:
                    own = [None] * len(batch) if properties is None else properties.to_pylist()
                    properties = [{**common, **dict(one or ())} for one in own]
                yield Records(batch["value"], keys, times, properties, first, batch.nbytes, unit="message")
                first += len(batch)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as e:  # a damaged stream raises any of these
        raise InvalidArgumentError(f"the input must be an Arrow stream, from message {first} on: {e}") from e
