"""The batcher against the readable model, byte by byte, and its promises one by one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from batcher_reference import ModelBatcher, key32
from entry_reference import PlainMessage, crc32c, decode
from hypothesis import given, settings
from hypothesis import strategies as st

from engine._native.batcher import Batcher, MessageColumns, SealedEntry
from engine._native.hashing import MURMUR3, XXH64
from engine.errors import InvalidArgumentError, MessageTooLargeError, QueueFullError
from engine.limits import ENTRY_SIZE_MAX, KEY_SIZE_MAX, MESSAGE_SIZE_MAX, PROPERTIES_SIZE_MAX

QUARTERS = [0x3FFF, 0x7FFF, 0xBFFF, 0xFFFF]
ONE = ([0], [0], [QUARTERS])
LAYOUTS = [
    ONE,
    ([0], [5], [[0xFFFF]]),
    ([0, 0x8000], [1, 2], [[0x7FFF, 0xFFFF], [0xFFFF]]),
    ([0, 1, 0x5000, 0xFFFF], [7, 3, 9, 4], [[0, 1, 0xFFFF], QUARTERS, [0xFFFF], [0xFFFE, 0xFFFF]]),
]


def batcher(layout: Any = ONE, **options: Any) -> Batcher:
    made = Batcher(options.pop("name", b"test"), **options)
    made.set_layout(*layout)
    return made


def sealed(subject: Batcher) -> list[SealedEntry]:
    subject.seal_all()
    return subject.take()


def messages(subject: Batcher) -> list[PlainMessage]:
    """Everything that was sealed, by sequence id."""
    return sorted((m for entry in sealed(subject) for m in decode(entry.data)), key=lambda m: m.sequence_id)


def agree(entries: list[SealedEntry], model: ModelBatcher) -> None:
    assert len(entries) == len(model.sealed)
    for entry, expected in zip(entries, model.sealed, strict=True):
        assert (entry.segment_id, entry.bucket) == (expected.segment_id, expected.bucket)
        assert entry.data == expected.data
        assert entry.count == len(expected.messages)
        assert (entry.first_sequence, entry.last_sequence) == (
            expected.messages[0].sequence_id,
            expected.messages[-1].sequence_id,
        )
        assert entry.keyed is (expected.messages[0].key is not None)
        assert (entry.waiters or []) == expected.waiters
        assert (entry.pending, entry.attempts) == (expected.pending, 0)
    model.sealed.clear()


KEYS = st.one_of(st.none(), st.binary(max_size=12), st.sampled_from([b"", b"a", b"b"]))
PROPERTIES = st.dictionaries(st.text(max_size=5), st.text(max_size=10), max_size=2)
INSTANTS = st.one_of(st.none(), st.integers(1 - 2**63, 2**63 - 1))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.binary(max_size=60), KEYS, PROPERTIES, INSTANTS, INSTANTS, st.integers(0, 3)),
        st.tuples(st.just("plain"), st.binary(max_size=60), KEYS),
        st.tuples(st.just("columns"), st.lists(st.tuples(st.binary(max_size=60), KEYS), max_size=40)),
        st.tuples(st.just("seal")),
        st.tuples(st.just("layout"), st.sampled_from(LAYOUTS)),
    ),
    max_size=60,
)


def play(step: tuple[Any, ...], subject: Batcher, model: ModelBatcher) -> None:
    match step:
        case ("add", value, key, properties, event_time, deliver_at, skip):
            sequence, waiter = model.sequence + skip, object()
            got = subject.add(value, key, properties, event_time, sequence if skip else None, waiter, deliver_at)
            assert got == sequence
            model.add(PlainMessage(value, key, properties, event_time, sequence, deliver_at), waiter)
        case ("plain", value, key):
            subject.send_nowait(value, key=key)
            model.add(PlainMessage(value, key, sequence_id=model.sequence))
        case ("columns", rows):
            assert subject.add_columns([v for v, _ in rows], [k for _, k in rows]) == len(rows)
            for value, key in rows:
                model.add(PlainMessage(value, key, sequence_id=model.sequence))
        case ("seal",):
            subject.seal_all()
            model.seal_all()
        case ("layout", layout):
            subject.set_layout(*layout)
            model.set_layout(*layout)


@settings(max_examples=150, deadline=None)
@given(
    STEPS,
    st.sampled_from(LAYOUTS),
    st.sampled_from([XXH64, MURMUR3]),
    st.sampled_from([1, 40, 300, 5000, 131072]),
    st.sampled_from([1, 2, 7, 10_000]),
    st.binary(max_size=20),
)
def test_agrees_with_the_model(steps, layout, key_hash, bytes_max, messages_max, name) -> None:
    options = {"key_hash": key_hash, "bytes_max": bytes_max, "messages_max": messages_max}
    subject, model = batcher(layout, name=name, **options), ModelBatcher(name, **options)
    model.set_layout(*layout)
    for step in steps:
        play(step, subject, model)
        assert subject.next_sequence == model.sequence
        assert subject.open_messages == sum(len(b.messages) for b in model.open.values())
    model.seal_all()
    pending = sum(expected.pending for expected in model.sealed)
    assert subject.pending_bytes == pending
    agree(sealed(subject), model)


def test_every_header_field() -> None:
    subject = batcher(ONE, first_sequence=10)
    subject.add(b"v1", b"k")
    subject.add(b"v22", b"k")
    (entry,) = sealed(subject)
    data = entry.data
    hashed = key32(b"k", XXH64)
    fields = {
        0: (4, 0x52544E45),
        4: (4, len(data)),
        12: (4, crc32c(data[128:])),
        8: (4, crc32c(data[12:80])),
        16: (1, 1),  # version
        17: (1, 1),  # KEYED
        18: (2, 0),
        20: (4, 2),
        24: (4, len(data) - 128),
        28: (2, hashed & 0xFFFF),
        30: (2, hashed & 0xFFFF),
        32: (2, hashed >> 16),
        34: (2, hashed >> 16),
        36: (2, 4),
        48: (8, 10),
        56: (8, 11),
        64: (16, 0),
        80: (48, 0),
    }
    for at, (size, expected) in fields.items():
        assert int.from_bytes(data[at : at + size], "little") == expected, at
    assert len(data) % 8 == 0


# What a message may be made of.


@pytest.mark.parametrize(
    "value",
    [b"bytes", bytearray(b"bytes"), memoryview(b"bytes"), np.frombuffer(b"bytes", np.uint8), pa.py_buffer(b"bytes")],
    ids=lambda v: type(v).__name__,
)
def test_any_buffer_is_a_value_and_a_key(value: Any) -> None:
    subject = batcher()
    subject.send_nowait(value, key=value)
    assert messages(subject) == [PlainMessage(b"bytes", b"bytes")]


def test_a_str_key_is_its_utf8_and_the_empty_key_is_a_key() -> None:
    subject = batcher()
    subject.send_nowait(b"1", key="日本")
    subject.send_nowait(b"2", key="日本".encode())
    subject.send_nowait(b"3", key=b"")
    subject.send_nowait(b"4", key="")
    subject.send_nowait(b"5")
    assert [m.key for m in messages(subject)] == ["日本".encode(), "日本".encode(), b"", b"", None]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"value": "text"}, "must be bytes, a buffer, not str; encode it"),
        ({"value": None}, "not NoneType"),
        ({"value": 5}, "not int"),
        ({"value": memoryview(b"abcdef")[::2]}, "contiguous"),
        ({"value": b"", "key": 5}, "the key must be bytes, a buffer or str, not int"),
        ({"value": b"", "key": "\ud800"}, "not valid Unicode"),
        ({"value": b"", "properties": 5}, "mapping of str to str"),
        ({"value": b"", "properties": {"a": 1}}, "'a' to 1"),
        ({"value": b"", "properties": {b"a": "1"}}, "mapping of str to str"),
        ({"value": b"", "event_time": datetime(2024, 1, 1)}, "event_time must be an aware datetime"),
        ({"value": b"", "event_time": 1.5}, "aware datetime or an int of milliseconds, not float"),
        ({"value": b"", "event_time": True}, "not bool"),
        ({"value": b"", "event_time": 2**63}, "64 bits"),
        ({"value": b"", "event_time": -(2**63)}, "64 bits"),
        ({"value": b"", "deliver_at": "noon"}, "deliver_at must be"),
        ({"value": b"", "deliver_at": 5, "deliver_after": 1}, "not both"),
        ({"value": b"", "deliver_after": -1}, "0 or more"),
        ({"value": b"", "deliver_after": "1"}, "0 or more"),
        ({"value": b"", "sequence_id": 0}, "greater than the last one, 0"),
        ({"value": b"", "sequence_id": 2**63}, "below 2\\*\\*63"),
        ({"value": b"", "sequence_id": "1"}, "must be an int, not str"),
        ({"value": b"", "sequence_id": True}, "not bool"),
    ],
)
def test_bad_arguments_are_refused_and_nothing_is_taken(arguments: dict[str, Any], said: str) -> None:
    subject = batcher(now_ms=lambda: 0)
    subject.send_nowait(b"before")
    before = (subject.pending_bytes, subject.pending_messages, subject.next_sequence)
    with pytest.raises(InvalidArgumentError, match=said):
        subject.send_nowait(**arguments)
    assert (subject.pending_bytes, subject.pending_messages, subject.next_sequence) == before
    assert len(messages(subject)) == 1


@pytest.mark.parametrize(
    ("arguments", "limit"),
    [
        ({"value": bytes(MESSAGE_SIZE_MAX + 1)}, MESSAGE_SIZE_MAX),
        ({"value": b"", "key": bytes(KEY_SIZE_MAX + 1)}, KEY_SIZE_MAX),
        ({"value": b"", "key": "x" * (KEY_SIZE_MAX + 1)}, KEY_SIZE_MAX),
        ({"value": b"", "properties": {"a": "x" * PROPERTIES_SIZE_MAX}}, PROPERTIES_SIZE_MAX),
    ],
    ids=["value", "key", "str key", "properties"],
)
def test_limits_name_the_size_and_the_limit(arguments: dict[str, Any], limit: int) -> None:
    subject = batcher()
    with pytest.raises(MessageTooLargeError, match=f"bytes, over the limit of {limit:,}"):
        subject.send_nowait(**arguments)
    assert subject.pending_messages == subject.next_sequence == 0


def test_the_largest_message_goes_alone() -> None:
    subject = batcher(([0], [0], [[0xFFFF]]))
    subject.send_nowait(b"small", key=b"k")
    subject.send_nowait(bytes(MESSAGE_SIZE_MAX), key=bytes(KEY_SIZE_MAX), properties={"": "x" * (PROPERTIES_SIZE_MAX - 7)})
    subject.send_nowait(b"small", key=b"k")
    entries = sealed(subject)
    assert [entry.count for entry in entries] == [1, 1, 1]
    assert MESSAGE_SIZE_MAX < len(entries[1].data) < ENTRY_SIZE_MAX


def test_an_entry_never_exceeds_its_limits() -> None:
    subject = batcher(([0], [0], [[0xFFFF]]), bytes_max=ENTRY_SIZE_MAX, messages_max=65_535)
    for size in (MESSAGE_SIZE_MAX // 2,) * 7:
        subject.add(bytes(size), b"k")
    subject.add_columns([b""] * 140_000, [b""] * 140_000, np.arange(140_000))
    entries = sealed(subject)
    assert max(len(entry.data) for entry in entries) <= ENTRY_SIZE_MAX
    assert max(entry.count for entry in entries) == 65_535
    assert sum(entry.count for entry in entries) == 140_007


def test_times_may_be_datetimes() -> None:
    subject = batcher(now_ms=lambda: 1_000_000)
    noon = datetime(2024, 5, 1, 12, 0, 0, 1999, tzinfo=UTC)
    ms = 1_714_564_800_001
    subject.send_nowait(b"", event_time=noon, deliver_at=noon.astimezone(timezone(timedelta(hours=5))))
    subject.send_nowait(b"", event_time=datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC), deliver_after=2.5)
    subject.send_nowait(b"", deliver_after=timedelta(seconds=3))
    subject.send_nowait(b"")
    found = [(m.event_time_ms, m.deliver_at_ms) for m in messages(subject)]
    assert found == [(ms, ms), (-1, 1_002_500), (None, 1_003_000), (None, None)]


def test_deliver_after_needs_a_clock() -> None:
    with pytest.raises(InvalidArgumentError, match="needs a clock"):
        batcher().send_nowait(b"", deliver_after=1)


def test_properties_are_packed_once_and_kept_in_order() -> None:
    calls = []

    def pack(properties: dict[str, str]) -> bytes:
        calls.append(properties)
        return msgpack.packb(properties)

    subject = batcher(pack=pack)
    subject.send_nowait(b"1", key="k", properties={"b": "1", "a": "ü"})
    subject.send_nowait(b"2", key="k", properties={})
    subject.send_nowait(b"3", key="k")
    assert [list(m.properties.items()) for m in messages(subject)] == [[("b", "1"), ("a", "ü")], [], []]
    assert calls == [{"b": "1", "a": "ü"}]


# Sequence ids.


def test_sequence_ids_count_up_and_may_skip() -> None:
    subject = batcher(first_sequence=5)
    assert (subject.next_sequence, subject.last_sequence) == (5, 4)
    assert [subject.add(b"", sequence_id=given) for given in (None, None, 100, None)] == [5, 6, 100, 101]
    assert (subject.next_sequence, subject.last_sequence) == (102, 101)
    assert subject.add_columns([b"", b""]) == 2
    assert [m.sequence_id for m in messages(subject)] == [5, 6, 100, 101, 102, 103]
    assert batcher().last_sequence == -1


def test_a_gap_wider_than_the_column_starts_a_new_entry() -> None:
    subject = batcher()
    for sequence in (0, 2**32 - 1, 2**32, 2**63 - 1):
        subject.add(b"", sequence_id=sequence)
    assert [(e.first_sequence, e.last_sequence) for e in sealed(subject)] == [(0, 2**32 - 1), (2**32, 2**32), (2**63 - 1,) * 2]


# Columns.

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


def test_event_times_of_columns() -> None:
    subject = batcher()
    subject.add_columns([b"1", b"2", b"3"], event_times=[5, None, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)])
    assert [m.event_time_ms for m in messages(subject)] == [5, None, 1000]


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (([b"a"], [b"k", b"l"]), InvalidArgumentError, "1 values need as many keys, not 2"),
        (([b"a"], None, [1, 2]), InvalidArgumentError, "as many event times, not 2"),
        (([b"a", None],), InvalidArgumentError, r"values\[1\] must be bytes or a buffer, not NoneType"),
        (([b"a", "b"],), InvalidArgumentError, r"values\[1\] .* not str; encode it"),
        ((pa.array([b"a", None]),), InvalidArgumentError, r"values\[1\] is null"),
        ((np.array(["a"]),), InvalidArgumentError, "encode them as bytes"),
        (([b"a"] * 9 + [bytes(MESSAGE_SIZE_MAX + 1)],), MessageTooLargeError, rf"values\[9\] .* {MESSAGE_SIZE_MAX:,}"),
        (([b"a"], [bytes(KEY_SIZE_MAX + 1)]), MessageTooLargeError, rf"keys\[0\] .* {KEY_SIZE_MAX:,}"),
        (([b"a"], None, None, 2), InvalidArgumentError, r"start must be in 0..1, not 2"),
        ((b"abc",), InvalidArgumentError, "not bytes"),
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


# Layouts.


def test_messages_need_a_layout() -> None:
    subject = Batcher(b"")
    for call in (lambda: subject.send_nowait(b""), lambda: subject.add_columns([b""])):
        with pytest.raises(InvalidArgumentError, match="set_layout"):
            call()
    assert sealed(subject) == []


def test_a_bad_layout_changes_nothing() -> None:
    subject = batcher()
    subject.send_nowait(b"1", key=b"k")
    with pytest.raises(InvalidArgumentError):
        subject.set_layout([0], [0], [[5]])
    assert subject.open_messages == 1
    assert [e.segment_id for e in sealed(subject)] == [0]


def test_rule_2_bucket_ends_tile_the_whole_ring_in_every_segment() -> None:
    subject = batcher(([0, 0x8000], [1, 2], [QUARTERS, QUARTERS]))
    subject.add_columns([b""] * 2000, [b"%d" % i for i in range(2000)])
    entries = sealed(subject)
    assert {(e.segment_id, e.bucket) for e in entries} == {(s, b) for s in (1, 2) for b in range(4)}
    for entry in entries:
        for message in decode(entry.data):
            assert (key32(message.key or b"", XXH64) & 0xFFFF) >> 14 == entry.bucket


def test_publish_order_of_a_key_is_kept_through_every_way_in_and_every_layout() -> None:
    subject = batcher(bytes_max=500)
    for turn, layout in enumerate(LAYOUTS * 3):
        for i in range(20):
            subject.send_nowait(b"%d" % turn, key=b"k%d" % (i % 3))
            subject.add_columns([b"%d" % turn] * 3, [b"k0", b"k1", b"k2"])
        subject.set_layout(*layout)
    last: dict[bytes | None, int] = {}
    for entry in sealed(subject):
        for message in decode(entry.data):
            assert message.sequence_id > last.get(message.key, -1)
            last[message.key] = message.sequence_id


def test_counters_per_bucket() -> None:
    subject = batcher()
    subject.add_columns([b"v"] * 100, [b"%d" % i for i in range(100)])
    entries = sealed(subject)
    assert subject.counters == {(e.segment_id, e.bucket): (1, e.count, len(e.data)) for e in entries}
    subject.send_nowait(b"v", key=b"0")
    (entry,) = sealed(subject)
    before = next(e for e in entries if e.bucket == entry.bucket)
    assert subject.counters[0, entry.bucket] == (2, before.count + 1, len(before.data) + len(entry.data))


@pytest.mark.parametrize(
    "options",
    [
        {"bytes_max": 0},
        {"bytes_max": ENTRY_SIZE_MAX + 1},
        {"messages_max": 0},
        {"messages_max": 65_536},
        {"pending_bytes_max": 0},
        {"key_hash": 2},
        {"name": bytes(257)},
    ],
)
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        batcher(**options)


def test_a_subclass_may_have_a_constructor_of_its_own() -> None:
    class Producer(Batcher):
        def __init__(self, topic: str) -> None:
            super().__init__(topic.encode(), bytes_max=50)
            self.topic = topic

    subject = Producer("orders")
    subject.set_layout(*ONE)
    subject.send_nowait(b"1")
    assert (subject.producer_name, subject.topic, len(messages(subject))) == (b"orders", "orders", 1)


def test_the_pending_limit() -> None:
    subject = batcher(pending_bytes_max=100)
    subject.send_nowait(bytes(200))
    with pytest.raises(QueueFullError, match="216 bytes are pending, the limit is 100"):
        subject.send_nowait(b"")
    assert subject.next_sequence == 1
    for size, count in ((217, 1), (216, 2), (-1, 0)):
        with pytest.raises(InvalidArgumentError, match="cannot release"):
            subject.release(size, count)
    subject.release(216, 1)
    subject.send_nowait(b"")
