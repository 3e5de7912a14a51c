"""Files that people import, and lines that they pipe into a command: rows, messages, or a fault that has a place."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path

from engine.cli.records import arrow_records, json_records, raw_records
from engine.cli.transfer.mapping import Columns, Mapping
from engine.cli.transfer.readers import CsvReader, Fault, JsonLinesReader, ParquetReader, Reader
from engine.client.base.schema import Schema

_COLUMNS = Columns("column", "value", "key", "event_time", "properties")
_NAMES = _COLUMNS.used


def _sent(reader: Reader, encoding: str | None, *, lines: bool) -> int:
    """As an import reads it: each row is a message or a fault, once, in order."""
    mapping, row, messages = Mapping(_COLUMNS, Schema.bytes(), encoding, lines=lines), 0, 0
    for rows in reader:
        for fault in rows.faults:
            assert fault.reason
        assert rows.first >= row
        row = rows.first
        for found in mapping.messages(rows):
            if isinstance(found, Fault):
                assert (found.row, bool(found.reason)) == (row, True)
                row += 1
            else:
                assert found[0].first == row
                row += found[0].count
                messages += len(found[1])
    return messages


def csv(data: bytes) -> int:
    """A CSV file, as UTF-8: pyarrow cannot show a row with the wrong number of columns that is not."""
    reader = CsvReader("it", io.BytesIO(data.decode("utf-8", "replace").encode()))
    for name in _NAMES:
        if (reader.names or []).count(name) != 1:
            return 0
    return _sent(reader, "text", lines=False)


def csv_seeds() -> list[bytes]:
    head = b"value,key,event_time,properties,other\n"
    rows = [b'a,k,5,"{""a"": ""b""}",x', b'"x,\ny",,2026-01-01T00:00:00Z,,', b",,,,"]
    return [head + b"\n".join(rows), b"\xef\xbb\xbf" + head + b"\r\n".join(rows) + b"\r\n"]


def json_lines(data: bytes) -> int:
    """A file of JSON objects."""
    reader = JsonLinesReader("it", io.BytesIO(data))
    reader.columns = _NAMES
    return _sent(reader, "text", lines=True)


def json_seeds() -> list[bytes]:
    some = [
        {"value": "a", "key": "k", "event_time": 5, "properties": {"a": "b"}},
        {"value": "x" * 40, "other": [1, {"a": None}]},
        {"value": "b", "event_time": "2026-01-01T00:00:00Z"},
    ]
    lines = [json.dumps(one).encode() for one in some]
    return [b"\n".join(lines), b"\n\n".join(lines) + b"\n", b"\n".join([b'{"value": "%d"}' % n for n in range(9)])]


def parquet(data: bytes, path: Path) -> int:
    """A Parquet file, which is put at `path`."""
    path.write_bytes(data)
    reader = ParquetReader(str(path))
    if any((reader.names or []).count(name) != 1 for name in _NAMES):
        return 0
    reader.columns = _NAMES
    return _sent(reader, None, lines=False)


@cache
def _table() -> object:
    import pyarrow as pa

    return pa.table(
        {
            "value": pa.array([b"a", b"b" * 40, None], pa.binary()),
            "key": pa.array(["k", None, ""]),
            "event_time": pa.array([5, None, 2**40], pa.int64()),
            "properties": pa.array(['{"a": "b"}', None, "{}"]),
        }
    )


@cache
def parquet_seeds() -> list[bytes]:
    import pyarrow.parquet as pq

    found = []
    for compression in ("none", "zstd"):
        sink = io.BytesIO()
        pq.write_table(_table(), sink, compression=compression, row_group_size=2)
        found.append(sink.getvalue())
    return found


def piped(data: bytes) -> int:
    """Lines to `produce`: raw, with a key before a separator, and objects of JSON, until one is bad."""
    raw = sum(len(one) for one in raw_records(io.BytesIO(data), b"k"))
    assert raw == data.count(b"\n") + bool(data and not data.endswith(b"\n"))
    return sum(len(one) for one in json_records(io.BytesIO(data), {"a": "b"}))


def piped_seeds() -> list[bytes]:
    some: list[dict[str, object]] = [
        {"value": "a", "key": "k", "event_time": "2026-01-01T00:00:00Z", "properties": {"x": "y"}},
        {"value_base64": "YQ==", "key_base64": "aw==", "event_time": None},
    ]
    return [b"\n".join(json.dumps(one).encode() for one in some) + b"\n", b"{}\n", b"plain\nlines"]


def arrow(data: bytes) -> int:
    """An Arrow stream to `produce`."""
    return sum(len(one) for one in arrow_records(io.BytesIO(data)))


@cache
def arrow_seeds() -> list[bytes]:
    import pyarrow as pa

    sink = io.BytesIO()
    table = pa.table({"value": pa.array([b"a", b"bc"], pa.binary()), "key": pa.array([b"k", None], pa.binary())})
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return [sink.getvalue()]
