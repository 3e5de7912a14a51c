"""Blocks with bad entries among good ones, and compressed entries that are opened when their turn comes."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from engine._native.consume.entry_queue import EntryQueue
from engine._native.consume.opening import damaged_entry, first_value, take_block
from engine._native.format.entry import Entry
from engine.errors import CorruptionError
from engine.model.compression import compressor, decompressor
from tests.reference.entry_reference import PlainMessage, Stamp, body_of, stamped
from tests.reference.hostile_entries import COUNT, DAMAGING, FORMS, good, seal

SALT, SEGMENT = 77, 3
CODEC, ZSTD = compressor("zstd")


def make_id(segment_id: int, offset: int, positions: dict[int, int]) -> tuple[int, int]:
    return segment_id, offset


def at(image: bytes, offset: int, segment_id: int = SEGMENT) -> bytes:
    return stamped(image, Stamp(segment_id, offset, 1, 1, 0, SALT))


def packed(count: int, size: int, first: int = 0) -> bytes:
    assert ZSTD is not None
    body = body_of([PlainMessage(bytes(size), sequence_id=first + i) for i in range(count)], 0, b"producer")
    return seal(ZSTD(body), first, 0, last=first + count - 1, codec=CODEC, raw_size=len(body), count=count)


def queue(**options: Any) -> EntryQueue:
    return EntryQueue("t", make_id, None, None, decompressor(), **options)


@pytest.mark.parametrize("form", DAMAGING, ids=lambda form: form.name.replace(" ", "-"))
def test_good_entries_around_a_bad_one_are_taken(form: Any):
    [count] = [Entry(form.make(0)).count]
    block = at(good(0), 0) + at(form.make(5), COUNT) + at(good(10), COUNT + count)
    entries, lost = take_block(block, SALT, SEGMENT, 0)
    assert lost is None
    assert [entry.first_offset for entry in entries] == [0, COUNT, COUNT + count]
    waiting = queue()
    assert waiting.push(entries) == waiting.messages == 2 * COUNT + count
    found = [waiting.pop_message() for _ in range(COUNT)]
    assert waiting.damaged() is None or not form.taken
    for pop in (waiting.pop_message, lambda: waiting.pop_batch(100), waiting.pop_message):
        with pytest.raises(CorruptionError, match="segment 3, offset 5: "):
            pop()
    entry, first, last = waiting.damaged(drop=True) or (None, 0, 0)
    assert (entry, first, last) == (entries[1], COUNT, COUNT + count - 1)
    assert waiting.positions == {SEGMENT: COUNT + count}
    assert waiting.damaged() is None
    found += list(waiting.pop_batch(100))
    assert [message.offset for message in found if message] == [*range(COUNT), *range(COUNT + count, 2 * COUNT + count)]
    assert waiting.take_credit() == {SEGMENT: (2 * COUNT + count, len(block))}
    assert (waiting.messages, waiting.bytes) == (0, 0)


@pytest.mark.parametrize("form", DAMAGING, ids=lambda form: form.name.replace(" ", "-"))
def test_a_batch_ends_before_a_bad_entry(form: Any):
    count = Entry(form.make(0)).count
    entries, _ = take_block(at(good(0), 0) + at(form.make(5), 5) + at(good(5 + count), 5 + count), SALT, SEGMENT)
    waiting = queue()
    waiting.push(entries)
    assert len(waiting.pop_batch(100_000)) == COUNT
    with pytest.raises(CorruptionError):
        waiting.pop_batch(100_000)
    assert waiting.drop(SEGMENT) == COUNT + count


@pytest.mark.parametrize("broken", ["stamp", "segment", "order", "short", "magic", "version"])
def test_where_even_the_place_is_uncertain_nothing_behind_is_taken(broken: str):
    bad = {
        "stamp": stamped(good(5), Stamp(SEGMENT, 5, 1, 1, 0, SALT + 1)),
        "segment": at(good(5), 5, SEGMENT + 1),
        "order": at(good(5), 4),
        "short": at(good(5), 5)[:-8],
        "magic": b"RTNE" + at(good(5), 5)[4:],
        "version": at(next(form for form in FORMS if form.name == "unknown version").make(5), 5),
    }[broken]
    behind = b"" if broken == "short" else at(good(10), 10)
    entries, lost = take_block(at(good(0), 0) + bad + behind, SALT, SEGMENT, 0)
    assert [entry.first_offset for entry in entries] == [0]
    assert lost is not None
    assert (lost.segment_id, lost.first_offset, lost.count, lost.size) == (SEGMENT, 5, 1, 0)
    assert lost.failure
    assert (lost.bucket_min, lost.raw_size, lost.compression) == (0, 0, 0)


def test_every_flipped_bit_costs_one_entry_at_most():
    block = at(good(0), 0) + at(good(5), 5) + at(good(10), 10)
    size = len(block) // 3
    for bit in range(8 * size, 16 * size):
        damaged = bytearray(block)
        damaged[bit // 8] ^= 1 << bit % 8
        entries, lost = take_block(bytes(damaged), SALT, SEGMENT, 0)
        kept = [entry.first_offset for entry in entries if entry.failure is None]
        assert kept == ([0, 10] if lost is None else [0]), bit
        assert (lost is None) is (len(entries) == 3)


def test_an_end_has_its_turn_like_an_entry():
    waiting = queue()
    waiting.push(take_block(at(good(0), 0), SALT, SEGMENT)[0])
    waiting.push([damaged_entry(SEGMENT, 5, "the disk is bad")])
    assert len(waiting.pop_batch(100)) == COUNT
    with pytest.raises(CorruptionError, match="segment 3, offset 5: the disk is bad"):
        waiting.pop_message()
    assert (waiting.damaged() or ())[1:] == (5, 5)


def test_compressed_entries_are_opened_in_their_turn_and_may_be_closed_again():
    told: list[int] = []
    waiting = queue(on_open=lambda _, size: told.append(size))
    entries, _ = take_block(at(packed(4, 1000), 0) + at(packed(4, 1000, 4), 4), SALT, SEGMENT)
    raw = entries[0].raw_size
    waiting.push(entries, skip=[(1, 1)])
    assert (waiting.opened, told) == (0, [])
    first = waiting.pop_message()
    assert first is not None
    assert (waiting.opened, told) == (raw, [raw])
    waiting.close_front()
    assert (waiting.opened, waiting.messages, waiting.positions) == (0, 6, {SEGMENT: 1})
    assert first.value == bytes(1000)  # whoever has it keeps it
    second = waiting.pop_message()
    assert second is not None
    assert (second.offset, second.value, told) == (2, bytes(1000), [raw, raw])
    assert waiting.opened == raw
    batch = waiting.pop_batch(3)
    assert [message.offset for message in batch] == [3, 4, 5]
    assert (waiting.opened, told) == (raw, [raw, raw, raw])
    waiting.close_front()
    assert [message.offset for message in waiting.pop_batch(100)] == [6, 7]
    assert waiting.take_credit() == {SEGMENT: (7, sum(entry.size for entry in entries))}
    waiting.close_front()


def test_a_batch_of_compressed_entries_is_bounded_but_has_one():
    size = 8 * 2**20 - 4096
    waiting = queue()
    entries, _ = take_block(b"".join(at(packed(1, size, i), i) for i in range(9)), SALT, SEGMENT)
    waiting.push(entries)
    counts = []
    while waiting.messages:
        counts.append(len(waiting.pop_batch(100)))
    assert counts == [4, 4, 1]


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("place", ["decompress", "told"])
def test_a_batch_that_is_interrupted_has_popped_nothing(place: str, error: type[BaseException]):
    """Ctrl-C comes into the thread that receives, as soon as any Python runs there."""
    calls: list[int] = []

    def interrupted(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == (2 if place == "decompress" else 1):
            raise error
        return decompress(*arguments) if place == "decompress" else None

    decompress = decompressor()
    waiting = EntryQueue(
        "t", make_id, None, None, *((interrupted, None) if place == "decompress" else (decompress, interrupted))
    )
    entries, _ = take_block(b"".join(at(packed(4, 100, 4 * i), 4 * i) for i in range(3)), SALT, SEGMENT)
    waiting.push(entries)
    with pytest.raises(error):
        waiting.pop_batch(10)
    assert (waiting.messages, waiting.positions, waiting.take_credit()) == (12, {}, {})
    assert [message.offset for message in waiting.pop_batch(10)] == list(range(10))
    assert [message.offset for message in waiting.pop_batch(10)] == [10, 11]
    assert waiting.take_credit() == {SEGMENT: (12, sum(entry.size for entry in entries))}


def test_the_first_value_is_looked_at_and_let_go_of():
    [entry] = take_block(at(packed(2, 100), 0), SALT, SEGMENT)[0]
    assert first_value(entry, decompressor()) == bytes(100)
    waiting = queue()
    waiting.push([entry])
    assert waiting.opened == 0
    assert len(waiting.pop_batch(5)) == 2
    bad = next(form for form in FORMS if form.name == "lz4 that is noise")
    [entry] = take_block(at(bad.make(0), 0), SALT, SEGMENT)[0]
    assert first_value(entry, decompressor()) is None
    [plain] = take_block(at(good(0), 0), SALT, SEGMENT)[0]
    assert first_value(plain, decompressor()) == b"hostile-0"


def test_threads_close_each_others_entries():
    """Each receives from a queue of its own; together they may have less open than one entry each."""
    entries, each, size = 40, 5, 64 * 1024
    queues: list[EntryQueue] = []
    opened: dict[EntryQueue, int] = {}

    def on_open(queue: EntryQueue, raw: int) -> None:
        opened[queue] = raw
        for other in queues:
            if other is not queue and other.opened:
                other.close_front()

    blocks = [take_block(at(packed(each, size, i * each), i * each), SALT, SEGMENT)[0] for i in range(entries)]
    queues += [queue(on_open=on_open) for _ in range(4)]
    wrong: list[object] = []
    feeding = threading.Barrier(5)

    def receive(waiting: EntryQueue) -> None:
        feeding.wait(20)
        expected = 0
        while expected < entries * each:
            message = waiting.pop_message()
            if message is None:
                continue
            if message.offset != expected or message.value != bytes(size):
                wrong.append((expected, message))
            expected += 1

    threads = [threading.Thread(target=receive, args=(waiting,), daemon=True) for waiting in queues]
    for thread in threads:
        thread.start()
    feeding.wait(20)
    for block in blocks:
        for waiting in queues:
            waiting.push(block)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not wrong
    assert len(opened) == 4
