"""What a message may be made of, and what is refused before anything is taken."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InvalidArgumentError, MessageTooLargeError
from engine.limits import ENTRY_SIZE_MAX, KEY_SIZE_MAX, MESSAGE_SIZE_MAX, PROPERTIES_SIZE_MAX
from tests.native.batchers import batcher, messages, sealed
from tests.reference.entry_reference import PlainMessage, decode


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
        ({"value": "text"}, "must be bytes, a buffer, got str; encode it"),
        ({"value": None}, "got NoneType"),
        ({"value": 5}, "got int"),
        ({"value": memoryview(b"abcdef")[::2]}, "contiguous"),
        ({"value": b"", "key": 5}, "the key must be bytes, a buffer or str, got int"),
        ({"value": b"", "key": "\ud800"}, "not valid Unicode"),
        ({"value": b"", "properties": 5}, "mapping of str to str"),
        ({"value": b"", "properties": {"a": 1}}, "'a' to 1"),
        ({"value": b"", "properties": {b"a": "1"}}, "mapping of str to str"),
        ({"value": b"", "properties": {"a": "\ud800"}}, "not valid Unicode"),
        ({"value": b"", "event_time": datetime(2024, 1, 1)}, "event_time must be an aware datetime"),
        ({"value": b"", "event_time": 1.5}, "aware datetime or an int of milliseconds, got float"),
        ({"value": b"", "event_time": True}, "got bool"),
        ({"value": b"", "event_time": 2**63}, "64 bits"),
        ({"value": b"", "event_time": -(2**63)}, "64 bits"),
        ({"value": b"", "deliver_at": "noon"}, "deliver_at must be"),
        ({"value": b"", "deliver_at": 5, "deliver_after": 1}, "not both"),
        ({"value": b"", "deliver_after": -1}, "0 or more"),
        ({"value": b"", "deliver_after": "1"}, "0 or more"),
        ({"value": b"", "sequence_id": 0}, "greater than the last one, 0"),
        ({"value": b"", "sequence_id": 2**63}, "below 2\\*\\*63"),
        ({"value": b"", "sequence_id": "1"}, "must be an int, got str"),
        ({"value": b"", "sequence_id": True}, "got bool"),
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
    largest = {"": "x" * (PROPERTIES_SIZE_MAX - 7)}
    subject.send_nowait(bytes(MESSAGE_SIZE_MAX), key=bytes(KEY_SIZE_MAX), properties=largest)
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


@given(st.dictionaries(st.text(max_size=300), st.text(max_size=300), min_size=1, max_size=20))
def test_properties_are_msgpack(properties: dict[str, str]) -> None:
    packed = msgpack.packb(properties)
    subject = batcher()
    for given_as in (properties, MappingProxyType(properties)):
        subject.send_nowait(b"", properties=given_as)
    (entry,) = sealed(subject)
    assert packed * 2 in entry.data
    assert [list(m.properties.items()) for m in decode(entry.data)] == [list(properties.items())] * 2


def test_kinds_of_str_and_bytes_are_str_and_bytes() -> None:
    class Kind(StrEnum):
        ORDER = "order"

    class Raw(bytes):
        pass

    subject = batcher()
    subject.send_nowait(Raw(b"v"), key=Kind.ORDER, properties={Kind.ORDER: Kind.ORDER})
    subject.add_columns([Raw(b"v")], [Kind.ORDER])
    assert messages(subject) == [
        PlainMessage(b"v", b"order", {"order": "order"}),
        PlainMessage(b"v", b"order", sequence_id=1),
    ]
