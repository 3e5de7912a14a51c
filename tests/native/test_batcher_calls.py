"""Callbacks, waiters, threads and re-splitting: who is told what, and when."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine._native.format.entry import Entry, compress
from engine._native.produce.batcher import Batcher
from engine._native.produce.hashing import key32
from engine._native.produce.sealed import expand
from engine.errors import CorruptionError, InvalidArgumentError, QueueFullError
from engine.model.compression import compressor, decompressor
from tests.native.batchers import HALVES, WHOLE, batcher, sealed
from tests.reference.entry_reference import PlainMessage, decode

# Callbacks.


def test_open_and_sealed_are_told_on_the_edge_only() -> None:
    told: list[str] = []
    subject = batcher(
        WHOLE, messages_max=3, on_open=lambda: told.append("open"), on_sealed=lambda: told.append("sealed")
    )
    subject.send_nowait(b"1")
    subject.send_nowait(b"2")
    assert told == ["open"]
    subject.send_nowait(b"3")
    assert told == ["open", "sealed"]
    subject.send_nowait(b"4")
    subject.seal_all()
    assert told == ["open", "sealed", "open"]
    subject.take()
    subject.seal_all()
    subject.send_nowait(b"5")
    subject.set_layout(*HALVES)
    assert told == ["open", "sealed", "open", "open", "sealed"]


def test_a_full_batch_makes_way_and_the_next_is_open() -> None:
    told: list[str] = []
    subject = batcher(
        WHOLE, bytes_max=100, on_open=lambda: told.append("open"), on_sealed=lambda: told.append("sealed")
    )
    subject.send_nowait(bytes(60))
    subject.send_nowait(bytes(60))
    assert told == ["open", "sealed", "open"]
    subject.send_nowait(bytes(500))
    assert told == ["open", "sealed", "open"]
    assert subject.open_messages == 0


def test_columns_tell_as_they_go() -> None:
    taken: list[int] = []
    subject = batcher(WHOLE, messages_max=10, on_sealed=lambda: taken.extend(e.count for e in subject.take()))
    subject.add_columns([b""] * 95)
    assert taken == [10] * 9
    assert subject.open_messages == 5


def test_callbacks_may_call_the_batcher() -> None:
    subject: Batcher
    got: list[int] = []

    def on_sealed() -> None:
        got.extend(e.count for e in subject.take())
        if len(got) < 5:
            subject.send_nowait(b"again")
            subject.add_columns([b"more"])

    subject = batcher(WHOLE, messages_max=2, on_sealed=on_sealed)
    subject.send_nowait(b"1")
    subject.send_nowait(b"2")
    assert got == [2] * 5


def test_an_error_of_a_callback_reaches_the_caller_and_loses_nothing() -> None:
    def on_sealed() -> None:
        raise RuntimeError("no")

    subject = batcher(WHOLE, messages_max=1, on_sealed=on_sealed)
    with pytest.raises(RuntimeError):
        subject.send_nowait(b"1")
    assert [e.count for e in subject.take()] == [1]
    with pytest.raises(RuntimeError):
        subject.add_columns([b"2", b"3"])
    assert [e.count for e in subject.take()] == [1]
    assert subject.next_sequence == 2


def test_full_is_told_first_and_may_make_room() -> None:
    subject: Batcher
    told: list[int] = []

    def on_full() -> None:
        told.append(subject.pending_bytes)
        for entry in sealed(subject):
            subject.release(entry.pending, entry.count)

    subject = batcher(WHOLE, pending_bytes_max=50, on_full=on_full)
    for _ in range(10):
        subject.send_nowait(bytes(20))
    assert told == [72] * 4
    assert subject.next_sequence == 10


def test_full_may_raise_and_nothing_was_taken() -> None:
    def on_full() -> None:
        raise QueueFullError("mine")

    subject = batcher(WHOLE, pending_bytes_max=1, on_full=on_full)
    subject.send_nowait(b"")
    with pytest.raises(QueueFullError, match="mine"):
        subject.add(b"")
    assert subject.next_sequence == 1


def test_columns_that_change_while_they_are_read_are_refused() -> None:
    """The checks before the first message cannot see what a callback or another thread does later."""
    rows: list[bytes] = []

    def grow() -> None:
        rows[:] = [bytes(6_000_000)] * len(rows)

    for change in (rows.clear, grow):
        rows[:] = [b"x"] * 5000
        subject = batcher(WHOLE, messages_max=3000, on_sealed=change)
        with pytest.raises(InvalidArgumentError, match="while"):
            subject.add_columns(rows)
        assert subject.next_sequence == 4096
        assert sum(e.count for e in sealed(subject)) == 4096


def test_a_list_of_ones_own_is_a_list() -> None:
    class Odd(list[bytes]):
        def __getitem__(self, at: Any) -> Any:
            return 5

    subject = batcher(WHOLE)
    subject.add_columns(Odd([b"1", b"2"]))
    assert [m.value for e in sealed(subject) for m in decode(e.data)] == [b"1", b"2"]


def test_a_batcher_in_a_cycle_is_collected() -> None:
    class Holder(Batcher):
        def opened(self) -> None:
            pass

    subject = Holder(b"test")
    subject.__init__(b"test", on_open=subject.opened)  # type: ignore[misc]
    subject.set_layout(*WHOLE)
    subject.send_nowait(b"open", key=b"k")
    gone = weakref.ref(subject)
    del subject
    gc.collect()
    assert gone() is None


# Waiters.


def test_waiters_are_found_with_their_message() -> None:
    subject = batcher(HALVES)
    for i in range(100):
        waiter = i if i % 3 == 0 else None
        subject.add(b"%d" % i, b"key-%d" % i if i % 2 else None, waiter=waiter)
    found = {}
    for entry in sealed(subject):
        values = [m.value for m in decode(entry.data)]
        found.update({waiter: values[index] for waiter, index in entry.waiters or []})
    assert found == {i: b"%d" % i for i in range(0, 100, 3)}


def test_no_waiters_are_none() -> None:
    subject = batcher(WHOLE)
    subject.send_nowait(b"")
    assert sealed(subject)[0].waiters is None


# Threads.


def test_threads_share_a_batcher() -> None:
    """Senders, column senders, a sealer and a taker: every message comes out once, in its sender's order."""
    subject = batcher(HALVES, bytes_max=2000)
    count, entries, done = 3000, [], threading.Event()

    def send(name: bytes) -> None:
        for i in range(count):
            subject.send_nowait(b"%d" % i, key=name)

    def columns(name: bytes) -> None:
        for at in range(0, count, 500):
            assert subject.add_columns([b"%d" % i for i in range(at, at + 500)], [name] * 500) == 500

    def drain() -> None:
        while not done.is_set():
            subject.seal_all()
            taken = subject.take()
            entries.extend(taken)
            subject.release(sum(e.pending for e in taken), sum(e.count for e in taken))
            if taken:
                subject.set_layout(*HALVES)

    senders = [threading.Thread(target=send, args=(b"s%d" % i,)) for i in range(3)]
    senders += [threading.Thread(target=columns, args=(b"c%d" % i,)) for i in range(3)]
    drainer = threading.Thread(target=drain)
    for thread in [drainer, *senders]:
        thread.start()
    for thread in senders:
        thread.join()
    done.set()
    drainer.join()
    last = sealed(subject)
    assert subject.pending_messages == sum(e.count for e in last)
    assert subject.pending_bytes == sum(e.pending for e in last)
    found: dict[bytes | None, list[PlainMessage]] = {}
    for entry in entries + last:
        for message in decode(entry.data):
            found.setdefault(message.key, []).append(message)
    assert len(found) == 6
    for messages in found.values():
        assert [int(m.value) for m in messages] == list(range(count))
        assert [m.sequence_id for m in messages] == sorted(m.sequence_id for m in messages)


def test_an_entry_written_without_the_gil_keeps_others_waiting() -> None:
    """Large entries are written with the GIL released; a second thread that adds meanwhile finds a whole batcher."""
    subject = batcher(WHOLE, bytes_max=4 * 1024 * 1024)

    def send(name: bytes) -> None:
        for i in range(40):
            subject.send_nowait(bytes(300_000), key=name, sequence_id=None, properties={"i": str(i)})

    threads = [threading.Thread(target=send, args=(b"%d" % i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found: dict[bytes | None, list[str]] = {}
    for entry in sealed(subject):
        for message in decode(entry.data):
            found.setdefault(message.key, []).append(message.properties["i"])
    assert found == {b"%d" % n: [str(i) for i in range(40)] for n in range(3)}


# Re-splitting.


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.binary(max_size=20),
            st.binary(max_size=4),
            st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=1),
            st.one_of(st.none(), st.integers(0, 100)),
            st.integers(0, 1000),
            st.integers(0, 2),
            st.booleans(),
        ),
        min_size=1,
        max_size=30,
    ),
    st.booleans(),
)
def test_resplit_moves_every_message_with_all_it_has(rows: list[Any], delayed: bool) -> None:
    subject = batcher(WHOLE)
    for value, key, properties, event_time, time, skip, waits in rows:
        sequence, deliver_at = subject.next_sequence + skip, time if delayed else None
        subject.add(value, key, properties, event_time, sequence, sequence if waits else None, deliver_at)
    (parent,) = sealed(subject)
    parent.attempts = 3
    subject.set_layout(*HALVES)
    children = subject.resplit(parent)
    assert subject.take() == []
    moved = [m for child in children for m in decode(child.data)]
    assert sorted(moved, key=lambda m: m.sequence_id) == decode(parent.data)
    assert sum(child.pending for child in children) == parent.pending
    assert sum(child.count for child in children) == parent.count
    waiting = {}
    for child in children:
        messages = decode(child.data)
        assert child.attempts == 3
        assert (child.first_sequence, child.last_sequence) == (messages[0].sequence_id, messages[-1].sequence_id)
        for message in messages:
            hashed = key32(message.key or b"")
            assert (child.segment_id, child.bucket) == (1 + (hashed >> 31), (hashed & 0xFFFF) >> 15)
        waiting.update({waiter: messages[index].sequence_id for waiter, index in child.waiters or []})
    assert waiting == {waiter: waiter for waiter, _ in parent.waiters or []}


def test_resplit_of_keyless_messages_moves_the_entry_whole_and_keeps_its_hash() -> None:
    subject = batcher(WHOLE)
    parents = []
    for _ in range(8):
        subject.add(b"1", waiter="a")
        subject.add(b"2", waiter="b")
        parents += sealed(subject)
    subject.set_layout(*HALVES)
    found = [subject.resplit(parent) for parent in parents]
    assert {entries[0].segment_id for entries in found} == {1, 2}
    for parent, (entry,) in zip(parents, found, strict=True):
        hashes = Entry(parent.data)
        assert entry.data == parent.data, "the same hash, so that duplicate detection knows it"
        assert (entry.segment_id, entry.bucket) == (1 + (hashes.segment_hash_min >> 15), hashes.bucket_min >> 15)
        assert entry.waiters == [("a", 0), ("b", 1)]
        assert (entry.count, entry.pending, entry.keyed) == (2, parent.pending, False)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_expand_gives_back_what_was_compressed(codec: str) -> None:
    subject = batcher(WHOLE)
    for n in range(100):
        subject.add(b"much of the same " * 4, key=b"k%d" % n, properties={"a": "b"})
    (entry,) = sealed(subject)
    number, function = compressor(codec)
    packed = compress(entry.data, number, function)
    assert len(packed) < len(entry.data)
    assert expand(packed, decompressor()) == entry.data
    assert expand(entry.data, decompressor()) is entry.data
    with pytest.raises(CorruptionError, match="another size"):
        expand(packed, lambda codec, body, size: b"short")


def test_a_child_made_by_resplit_is_what_the_batcher_would_have_made() -> None:
    subject, fresh = batcher(WHOLE), batcher(HALVES)
    for i in range(50):
        for one in (subject, fresh):
            one.send_nowait(b"%d" % i, key=b"key-%d" % i)
    (parent,) = sealed(subject)
    subject.set_layout(*HALVES)
    made = sorted(sealed(fresh), key=lambda entry: (entry.segment_id, entry.bucket))
    assert [e.data for e in subject.resplit(parent)] == [e.data for e in made]


def test_only_whole_uncompressed_entries_are_split() -> None:
    subject = batcher(WHOLE)
    subject.send_nowait(b"1", key=b"k")
    (entry,) = sealed(subject)
    whole = entry.data
    for damaged in (b"", whole[:100], whole[:-8], bytes(len(whole))):
        entry.data = damaged
        with pytest.raises(InvalidArgumentError):
            subject.resplit(entry)
    with pytest.raises(InvalidArgumentError, match="set_layout"):
        Batcher(b"").resplit(entry)


def test_the_message_sent_last_ends_the_entry_sealed_last() -> None:
    subject = Batcher(b"p")
    subject.set_layout(*HALVES)
    for n in range(64):
        subject.send_nowait(b"v", key=b"key-%d" % n)
    subject.seal_all()
    ends = [entry.last_sequence for entry in subject.take()]
    assert ends == sorted(ends)
    assert ends[-1] == 63
