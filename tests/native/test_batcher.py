"""The batcher against the readable model, byte by byte, and its promises one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine._native.produce.batcher import Batcher
from engine._native.produce.hashing import MURMUR3, XXH64
from engine._native.produce.sealed import SealedEntry
from engine.errors import InvalidArgumentError, QueueFullError
from engine.limits import ENTRY_SIZE_MAX
from tests.native.batchers import HALVES, LAYOUTS, ONE, QUARTERS, batcher, messages, sealed
from tests.reference.batcher_reference import ModelBatcher, key32
from tests.reference.entry_reference import PlainMessage, crc32c, decode


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
    found = [(entry.first_sequence, entry.last_sequence) for entry in sealed(subject)]
    assert found == [(0, 2**32 - 1), (2**32, 2**32), (2**63 - 1, 2**63 - 1)]


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


def test_semantics_2_bucket_ends_tile_the_whole_ring_in_every_segment() -> None:
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
        {"key_hash": 3},
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
        with pytest.raises(InvalidArgumentError, match=r"release\(\) must be within"):
            subject.release(size, count)
    subject.release(216, 1)
    subject.send_nowait(b"")


def test_counters_name_the_segments_of_the_layout() -> None:
    subject = batcher(HALVES)
    for i in range(50):
        subject.send_nowait(b"v", key=b"%d" % i)
    subject.seal_all()
    assert {segment_id for segment_id, _ in subject.counters} == {1, 2}
    kept = {where: counted for where, counted in subject.counters.items() if where[0] == 1}
    subject.set_layout([0, 0x8000], [1, 3], [[0x7FFF, 0xFFFF], [0xFFFF]])
    assert subject.counters == kept
