"""Batches as Arrow tables."""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine._native.consume.batch import MessageBatch, decode_block
from engine._native.format.entry import Entry
from engine.errors import InvalidArgumentError, UnsupportedError
from tests.reference.entry_reference import PlainMessage, Stamp, encode
from tests.reference.entry_strategies import messages

SALT = 77
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("segment", pa.int64()),
        ("offset", pa.int64()),
        ("publish_time", pa.timestamp("ms", "UTC")),
        ("event_time", pa.timestamp("ms", "UTC")),
        ("properties", pa.map_(pa.string(), pa.string())),
    ]
)


def decoded(sent: list[PlainMessage], offset: int, segment: int = 3, *, name: bytes = b"producer") -> Entry:
    block = encode(sent, producer=name, stamp=Stamp(segment, offset, 1_000 + offset, 1, 0, SALT))
    return decode_block(block, SALT, segment)[0]


def batch_of(*slices: Any) -> MessageBatch:
    return MessageBatch("t", slices, {}, lambda *_: None)


def rows(batch: MessageBatch) -> list[tuple[Any, ...]]:
    """What the table should hold, from the messages."""
    return [
        (
            m.key,
            m.value,
            m.segment_id,
            m.offset,
            1_000 + m.offset - m.offset % 100,
            m.event_time_ms,
            list(m.properties.items()),
        )
        for m in batch
    ]


def columns(table: pa.Table) -> list[tuple[Any, ...]]:
    for name in ("publish_time", "event_time"):
        at = table.column_names.index(name)
        table = table.set_column(at, name, table[name].cast(pa.int64()))
    return [tuple(row.values()) for row in table.to_pylist()]


@given(st.lists(messages(max_size=20), max_size=3), st.data())
def test_a_table_holds_what_the_messages_say(sent: list[list[PlainMessage]], data: st.DataObject):
    slices = []
    for index, one in enumerate(sent):
        start = data.draw(st.integers(0, len(one)))
        stop = data.draw(st.integers(start, len(one)))
        slices.append((decoded(one, 100 * index), start, stop))
    batch = batch_of(*slices)
    table = batch.to_arrow()
    table.validate(full=True)
    assert table.schema == SCHEMA
    assert columns(table) == rows(batch)
    assert [len(c) for c in table["value"].chunks] == [stop - start for _, start, stop in slices if stop > start]


ORIGIN = [pa.field("producer_name", pa.string()), pa.field("sequence_id", pa.int64())]


@given(st.lists(messages(max_size=20), max_size=3), st.data())
def test_producer_and_sequence_id_are_columns_where_they_are_wanted(
    sent: list[list[PlainMessage]], data: st.DataObject
):
    slices = []
    for index, one in enumerate(sent):
        start = data.draw(st.integers(0, len(one)))
        stop = data.draw(st.integers(start, len(one)))
        name = data.draw(st.binary(max_size=20))
        slices.append((decoded(one, 100 * index, name=name), start, stop))
    batch = batch_of(*slices)
    table = batch.to_arrow(include_sequence_ids=True)
    table.validate(full=True)
    assert table.schema == pa.schema([*SCHEMA, *ORIGIN])
    assert table.select(SCHEMA.names) == batch.to_arrow()
    assert table["producer_name"].to_pylist() == [m.producer_name for m in batch]
    ids = [m.sequence_id for m in batch]  # brokers take none from 2**63 on
    assert table["sequence_id"].to_pylist() == [i if i < 2**63 else i - 2**64 for i in ids]


def test_each_message_of_a_slice_has_its_own_sequence_id():
    ids = [7, 7, 9, 2**32 + 3, 2**32 + 6]
    entry = decoded([PlainMessage(b"v", sequence_id=i) for i in ids], 0, name="ünïcödé".encode())
    table = batch_of((entry, 1, 4)).to_arrow(include_sequence_ids=True)
    assert table["sequence_id"].to_pylist() == ids[1:4]
    assert table["producer_name"].to_pylist() == ["ünïcödé"] * 3


def test_the_name_of_a_producer_that_is_no_text_is_shown_as_text():
    entry = decoded([PlainMessage(b"v")] * 2, 0, name=b"a\xff")
    assert batch_of((entry, 0, 2)).to_arrow(include_sequence_ids=True)["producer_name"].to_pylist() == ["a\\xff"] * 2


def test_the_last_sequence_id_of_all():
    entry = decoded([PlainMessage(b"v", sequence_id=2**63 - 1)], 0)
    assert batch_of((entry, 0, 1)).to_arrow(include_sequence_ids=True)["sequence_id"].to_pylist() == [2**63 - 1]


@pytest.mark.parametrize("wide", [False, True])
def test_a_column_outlives_the_stream_it_came_from(wide: bool):
    entry = decoded([PlainMessage(b"v%d" % i, b"k", {"a": str(i)}, i, 3 * i) for i in range(10)], 0, name=b"writer")
    before = sys.getrefcount(entry)
    table = batch_of((entry, 0, 10)).to_arrow(include_sequence_ids=wide)
    kept = {name: table[name] for name in table.column_names[-2:]}
    del table
    gc.collect()
    assert sys.getrefcount(entry) > before
    if wide:
        assert kept["producer_name"].to_pylist() == ["writer"] * 10
        assert kept["sequence_id"].to_pylist() == [3 * i for i in range(10)]
    del kept
    gc.collect()
    assert sys.getrefcount(entry) == before


def test_keys_and_values_are_not_copied():
    block = encode([PlainMessage(b"value", b"key", event_time_ms=1)] * 3, stamp=Stamp(3, 0, 0, 0, 0, SALT))
    address, end = pa.py_buffer(block).address, pa.py_buffer(block).address + len(block)
    batch = batch_of((decode_block(block, SALT, 3)[0], 1, 3))
    table = batch.to_arrow()
    for name in ("key", "value"):
        for buffer in table[name].chunk(0).buffers()[1:]:
            assert address <= buffer.address < end
    assert address <= table["event_time"].chunk(0).buffers()[1].address < end


def test_a_column_outlives_everything_else():
    entry = decoded([PlainMessage(b"v%d" % i, b"k", {"a": str(i)}, i, i) for i in range(10)], 0)
    before = sys.getrefcount(entry)
    batch = batch_of((entry, 0, 10))
    reader = pa.RecordBatchReader.from_stream(batch)
    record = reader.read_next_batch()
    properties = record.column("properties").items
    del batch, reader, record
    gc.collect()
    assert sys.getrefcount(entry) > before
    assert properties.to_pylist() == [str(i) for i in range(10)]
    del properties
    gc.collect()
    assert sys.getrefcount(entry) == before


def test_an_unread_stream_releases_what_it_holds():
    entry = decoded([PlainMessage(b"v")], 0)
    before = sys.getrefcount(entry)
    capsule = batch_of((entry, 0, 1)).__arrow_c_stream__()
    del capsule
    reader = pa.RecordBatchReader.from_stream(batch_of((entry, 0, 1)))
    del reader
    gc.collect()
    assert sys.getrefcount(entry) == before


def test_a_table_may_die_on_another_thread():
    entry = decoded([PlainMessage(b"v")], 0)
    before = sys.getrefcount(entry)
    held = [batch_of((entry, 0, 1)).to_arrow()]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    gc.collect()
    assert sys.getrefcount(entry) == before


def test_others_take_a_batch_as_it_is():
    batch = batch_of((decoded([PlainMessage(b"v", b"k")], 0), 0, 1))
    assert pa.table(batch) == batch.to_arrow()


def test_the_longest_entry():
    sent = [PlainMessage(b"", sequence_id=i) for i in range(65_535)]
    table = batch_of((decoded(sent, 0), 0, 65_535)).to_arrow()
    table.validate(full=True)
    assert table["key"].null_count == table["event_time"].null_count == 65_535
    assert table["properties"].null_count == 0
    assert table["offset"][-1].as_py() == 65_534


@given(st.lists(messages(max_size=20), max_size=4), st.data())
def test_joined_columns_hold_the_same_in_one_piece(sent: list[list[PlainMessage]], data: st.DataObject):
    batches = []
    for index, one in enumerate(sent):
        start = data.draw(st.integers(0, len(one)))
        whole = (decoded(one, 100 * index), 0, len(one))
        batches.append(batch_of(whole, (whole[0], start, len(one))) if one else batch_of())
    for name in ("key", "value"):
        found = MessageBatch.join_arrow(batches, name)
        found.validate(full=True)
        assert found.type == pa.binary()
        assert found.to_pylist() == [getattr(m, name) for batch in batches for m in batch]
        assert found.null_count == found.to_pylist().count(None)


def test_joined_columns_keep_no_entry():
    entry = decoded([PlainMessage(b"value", b"key")], 0)
    before = sys.getrefcount(entry)
    found = MessageBatch.join_arrow([batch_of((entry, 0, 1))], "value")
    assert sys.getrefcount(entry) == before
    assert found.to_pylist() == [b"value"]


def test_only_keys_and_values_are_joined():
    with pytest.raises(InvalidArgumentError, match="must be 'key' or 'value'"):
        MessageBatch.join_arrow([], "offset")


def test_without_pyarrow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UnsupportedError, match="pip install pyarrow"):
        batch_of().to_arrow()
    with pytest.raises(UnsupportedError, match="pip install pyarrow"):
        MessageBatch.join_arrow([], "value")
