"""Columns of messages: every kind makes the entries that single sends make, or is refused as a whole."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from engine._native.produce.arguments import MessageColumns
from engine.errors import InvalidArgumentError, MessageTooLargeError
from engine.limits import KEY_SIZE_MAX, MESSAGE_SIZE_MAX
from tests.native.batchers import batcher, messages, sealed

ROWS = [(b"value-%d" % i, b"key-%d" % (i % 37)) for i in range(5000)]
VALUES, KEY_COLUMN = [value for value, _ in ROWS], [key for _, key in ROWS]
TWO_CHUNKS = pa.chunked_array([VALUES[:123], [], VALUES[123:]], pa.binary())
COLUMNS = {
    "lists": (VALUES, KEY_COLUMN),
    "tuples, str keys": (tuple(VALUES), tuple(key.decode() for key in KEY_COLUMN)),
    "buffers": ([bytearray(v) for v in VALUES], [memoryview(k) for k in KEY_COLUMN]),
    "numpy S": (np.array(VALUES), np.array(KEY_COLUMN)),
    "numpy object, U": (np.array(VALUES, dtype=object), np.array([k.decode() for k in KEY_COLUMN])),
    "arrow": (pa.array(VALUES), pa.array(KEY_COLUMN)),
    "arrow large, string": (pa.array(VALUES, pa.large_binary()), pa.array([k.decode() for k in KEY_COLUMN])),
    "arrow chunked": (TWO_CHUNKS, pa.chunked_array([KEY_COLUMN[:3000], KEY_COLUMN[3000:]])),
    "arrow and list": (TWO_CHUNKS, KEY_COLUMN),
}


@pytest.mark.parametrize(("values", "keys"), COLUMNS.values(), ids=COLUMNS.keys())
def test_columns_make_the_entries_that_single_sends_make(values: Any, keys: Any) -> None:
    one, many = batcher(bytes_max=3000), batcher(bytes_max=3000)
    for value, key in ROWS:
        one.send_nowait(value, key=key)
    assert many.add_columns(values, keys) == len(ROWS)
    assert [e.data for e in sealed(many)] == [e.data for e in sealed(one)]


def test_rows_of_bytes_are_values() -> None:
    rows = np.random.default_rng(1).integers(0, 256, (100, 16), dtype=np.uint8)
    for values in (rows, pa.array([row.tobytes() for row in rows], pa.binary(16))):
        subject = batcher()
        subject.add_columns(values)
        assert [m.value for m in messages(subject)] == [row.tobytes() for row in rows]


def test_a_null_key_is_a_keyless_message() -> None:
    for keys in ([b"a", None, b""], pa.array([b"a", None, b""]), np.array([b"a", None, b""], dtype=object)):
        subject = batcher()
        subject.add_columns([b"1", b"2", b"3"], keys)
        assert [m.key for m in messages(subject)] == [b"a", None, b""]


def test_keyless_messages_between_keyed_ones_take_no_key_of_their_neighbours() -> None:
    keys = [None if i % 3 == 1 or 100 <= i < 200 else key for i, key in enumerate(KEY_COLUMN)]
    one = batcher(bytes_max=3000)
    for value, key in zip(VALUES, keys, strict=True):
        one.send_nowait(value, key=key)
    wanted = [e.data for e in sealed(one)]
    for column in (keys, pa.array(keys)):
        many = batcher(bytes_max=3000)
        assert many.add_columns(VALUES, column) == len(keys)
        assert [e.data for e in sealed(many)] == wanted


def test_event_times_of_columns() -> None:
    subject = batcher()
    subject.add_columns([b"1", b"2", b"3"], event_times=[5, None, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)])
    assert [m.event_time_ms for m in messages(subject)] == [5, None, 1000]


MAPS = [{"color": "blue", "größe": ""}, {}, {f"name-{i}": "x" * 40 * i for i in range(20)}, {"a": "y" * 300}] * 300
ARROW_MAPS = pa.array([None if not one else list(one.items()) for one in MAPS], pa.map_(pa.string(), pa.string()))
LARGE_MAPS = pa.array([list(one.items()) for one in MAPS], pa.map_(pa.large_string(), pa.large_string()))


@pytest.mark.parametrize(
    "properties",
    [MAPS, [one or None for one in MAPS], ARROW_MAPS, LARGE_MAPS, pa.chunked_array([ARROW_MAPS[:7], ARROW_MAPS[7:]])],
    ids=["dicts", "none", "arrow with nulls", "arrow large", "arrow chunked"],
)
def test_properties_of_columns(properties: Any) -> None:
    one, many = batcher(bytes_max=3000), batcher(bytes_max=3000)
    for i, found in enumerate(MAPS):
        one.send_nowait(b"%d" % i, properties=found)
    assert many.add_columns([b"%d" % i for i in range(len(MAPS))], properties=properties) == len(MAPS)
    assert [e.data for e in sealed(many)] == [e.data for e in sealed(one)]


def test_no_properties_at_all() -> None:
    for properties in ([None], [{}], pa.array([None], ARROW_MAPS.type), pa.chunked_array([], ARROW_MAPS.type)):
        subject = batcher()
        values = [b"1"] * len(properties)
        subject.add_columns(values, properties=properties)
        assert [m.properties for m in messages(subject)] == [{}] * len(values)


@pytest.mark.parametrize(
    ("properties", "error", "said"),
    [
        ([{}, {}], InvalidArgumentError, "1 values need as many properties, got 2"),
        ([{"a": 1}], InvalidArgumentError, "a mapping of str to str"),
        (pa.array([[("a", None)]], ARROW_MAPS.type), InvalidArgumentError, r"properties\[0\] has a null"),
        (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), InvalidArgumentError, "string to string"),
        (pa.array([[("a", "x" * 70_000)]], ARROW_MAPS.type), MessageTooLargeError, "over the limit"),
        (pa.array(["a"]), InvalidArgumentError, "an Arrow array of maps"),
    ],
)
def test_bad_properties_of_columns_are_refused(properties: Any, error: type[Exception], said: str) -> None:
    subject = batcher()
    with pytest.raises(error, match=said):
        subject.add_columns([b"1"], properties=properties)
    assert subject.pending_messages == 0


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (([b"a"], [b"k", b"l"]), InvalidArgumentError, "1 values need as many keys, got 2"),
        (([b"a"], None, [1, 2]), InvalidArgumentError, "as many event times, got 2"),
        (([b"a", None],), InvalidArgumentError, r"values\[1\] must be bytes or a buffer, got NoneType"),
        (([b"a", "b"],), InvalidArgumentError, r"values\[1\] .* got str; encode it"),
        ((pa.array([b"a", None]),), InvalidArgumentError, r"values\[1\] is null"),
        ((np.array(["a"]),), InvalidArgumentError, "encode them as bytes"),
        (([b"a"] * 9 + [bytes(MESSAGE_SIZE_MAX + 1)],), MessageTooLargeError, rf"values\[9\] .* {MESSAGE_SIZE_MAX:,}"),
        (([b"a"], [bytes(KEY_SIZE_MAX + 1)]), MessageTooLargeError, rf"keys\[0\] .* {KEY_SIZE_MAX:,}"),
        (([b"a"], None, None, 2), InvalidArgumentError, r"start must be in 0..1, got 2"),
        ((b"abc",), InvalidArgumentError, "got bytes"),
    ],
)
def test_bad_columns_are_refused_before_anything_is_taken(arguments: Any, error: type[Exception], said: str) -> None:
    subject = batcher()
    with pytest.raises(error, match=said):
        subject.add_columns(*arguments)
    assert subject.pending_messages == subject.next_sequence == 0


def test_columns_stop_at_the_pending_limit_and_go_on_from_there() -> None:
    subject = batcher(pending_bytes_max=1000)
    columns = MessageColumns([b"x" * 84] * 25)
    assert len(columns) == 25
    taken = []
    while sum(taken) < 25:
        assert subject.pending_bytes == 0
        taken.append(subject.add_columns(columns, start=sum(taken)))
        assert subject.add_columns(columns, start=sum(taken)) == 0 or sum(taken) == 25
        entries = sealed(subject)
        subject.release(sum(e.pending for e in entries), sum(e.count for e in entries))
    assert taken == [10, 10, 5]
    assert (subject.pending_bytes, subject.pending_messages) == (0, 0)
