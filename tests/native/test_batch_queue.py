"""The queue between a connection that delivers entries and a user who receives messages."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine._native.consume.batch import decode_block
from engine._native.consume.entry_queue import EntryQueue
from engine._native.format.entry import Entry
from engine.errors import InvalidArgumentError
from tests.reference.entry_reference import PlainMessage, Stamp, encode

SALT = 77


def entry(count: int, offset: int, segment: int = 1, size: int = 10) -> Entry:
    sent = [PlainMessage(b"%010d" % (offset + i) * (size // 10), b"k", sequence_id=i) for i in range(count)]
    block = encode(sent, stamp=Stamp(segment, offset, 0, 0, 0, SALT))
    return decode_block(block, SALT, segment)[0]


def make_id(segment_id: int, offset: int, positions: dict[int, int]) -> tuple[int, int, dict[int, int]]:
    return segment_id, offset, positions


def queue(**positions: Any) -> EntryQueue:
    return EntryQueue("t", make_id, **positions)


def drain(waiting: EntryQueue) -> list[int]:
    return [m.offset for m in iter(waiting.pop_message, None)]


def test_messages_come_in_the_order_of_arrival():
    waiting = queue()
    assert waiting.push([entry(3, 10), entry(2, 13)]) == 5
    assert waiting.push([entry(1, 7, segment=2)]) == 1
    assert (len(waiting), waiting.messages, waiting.topic) == (6, 6, "t")
    assert drain(waiting) == [10, 11, 12, 13, 14, 7]
    assert waiting.pop_message() is None
    assert len(waiting.pop_batch(10)) == 0
    assert (waiting.messages, waiting.bytes) == (0, 0)


def test_semantics_11_positions_are_those_of_the_moment_of_delivery():
    waiting = queue(positions={9: 5})
    waiting.push([entry(3, 10), entry(2, 50, segment=2), entry(2, 13)])
    one = waiting.pop_message()
    two = waiting.pop_message()
    batch = waiting.pop_batch(4)
    last = waiting.pop_message()
    assert one is not None
    assert two is not None
    assert last is not None
    ids = [m.id for m in (one, two, *batch, last)]
    assert ids == [
        (1, 10, {9: 5, 1: 11}),
        (1, 11, {9: 5, 1: 12}),
        (1, 12, {9: 5, 1: 13}),
        (2, 50, {9: 5, 1: 13, 2: 51}),
        (2, 51, {9: 5, 1: 13, 2: 52}),
        (1, 13, {9: 5, 1: 14, 2: 52}),
        (1, 14, {9: 5, 1: 15, 2: 52}),
    ]
    assert waiting.positions == {9: 5, 1: 15, 2: 52}


def test_batches_stop_at_messages_and_at_bytes():
    waiting = queue()
    waiting.push([entry(5, 0), entry(5, 5)])  # 11 bytes a message
    assert [m.offset for m in waiting.pop_batch(3)] == [0, 1, 2]
    assert [m.offset for m in waiting.pop_batch(100, 44)] == [3, 4, 5, 6]
    assert [m.offset for m in waiting.pop_batch(100, 32)] == [7, 8]
    assert [m.offset for m in waiting.pop_batch(100, 0)] == [9]  # one message always
    waiting.push([entry(2, 10)])
    assert len(waiting.pop_batch(0)) == 0
    assert [m.offset for m in waiting.pop_batch(100)] == [10, 11]


def test_skipped_messages_are_not_delivered():
    waiting = queue()
    assert waiting.push([entry(6, 10), entry(3, 16)], skip=[[12, 13], [15, 16]]) == 5
    assert drain(waiting) == [10, 11, 14, 17, 18]
    assert waiting.push([entry(3, 19)], skip=[(0, 100)]) == 0
    assert waiting.take_credit()[1] == (5, sum(e.size for e in (entry(6, 10), entry(3, 16), entry(3, 19))))


def test_delivery_starts_inside_an_entry():
    waiting = queue()
    entries = [entry(4, 10), entry(4, 14), entry(4, 18)]
    assert waiting.push(entries, start_offset=16) == 6
    assert waiting.take_credit() == {1: (6, entries[0].size)}
    assert drain(waiting) == [16, 17, 18, 19, 20, 21]
    assert waiting.take_credit() == {1: (6, entries[1].size + entries[2].size)}


@pytest.mark.parametrize(
    ("skip", "start", "delivered", "due"),
    [
        ([[8, 9]], 13, 1, 3),
        ([[11, 12]], 13, 1, 1),
        ([[10, 10], [13, 13]], 13, 0, 2),
        ([[10, 13]], 14, 0, 0),
        ([[11, 12]], 14, 0, 2),
        ([[0, 10], [13, 99]], 14, 0, 2),
        ([[14, 20]], 14, 0, 4),
    ],
)
def test_below_the_start_what_is_skipped_gives_nothing_back(skip, start, delivered, due):
    """Nobody was charged for it."""
    waiting = queue()
    assert waiting.push([entry(4, 10)], skip=skip, start_offset=start) == delivered
    assert waiting.take_credit().get(1, (0, 0)) == (due, 0 if delivered else entry(4, 10).size)


def test_redelivery_counts_are_those_of_their_push():
    waiting = queue()
    waiting.push([entry(3, 10)], redelivered=[[10, 10, 3], [12, 12, 1]])
    waiting.push([entry(1, 13)])
    assert [m.redelivery_count for m in waiting.pop_batch(10)] == [3, 0, 1, 0]


def test_credit_is_given_by_message_and_by_whole_entry():
    waiting = queue()
    entries = [entry(3, 10), entry(2, 0, segment=2)]
    waiting.push(entries)
    assert waiting.take_credit() == {}
    waiting.pop_message()
    waiting.pop_message()
    assert waiting.take_credit() == {1: (2, 0)}
    assert waiting.bytes == entries[0].size + entries[1].size
    waiting.pop_message()
    assert waiting.take_credit() == {1: (1, entries[0].size)}
    waiting.pop_batch(1)
    assert waiting.take_credit() == {2: (1, 0)}
    waiting.pop_batch(1)
    assert waiting.take_credit() == {2: (1, entries[1].size)}
    assert (waiting.bytes, waiting.take_credit()) == (0, {})


def test_what_waits_of_a_segment_can_be_dropped():
    waiting = queue()
    one, two = entry(4, 10), entry(4, 0, segment=2)
    waiting.push([one, two, entry(4, 14)], skip=[(16, 16)])
    waiting.pop_message()
    assert waiting.drop(1) == 6
    assert (waiting.messages, waiting.bytes) == (4, two.size)
    assert waiting.take_credit() == {}
    assert waiting.pop_batch(2).last_id == (2, 1, {1: 11, 2: 2})
    assert waiting.drop(1) == 0
    assert drain(waiting) == [2, 3]
    assert waiting.drop(2) == 0


def test_dropping_keeps_the_place_in_another_entry():
    waiting = queue()
    waiting.push([entry(4, 10), entry(4, 0, segment=2)])
    waiting.pop_message()
    assert waiting.drop(2) == 4
    assert drain(waiting) == [11, 12, 13]


def test_what_waits_of_a_segment_can_be_put_aside_and_come_back():
    waiting, aside = queue(), queue()
    one, two, three = entry(4, 10), entry(4, 0, segment=2), entry(4, 14)
    waiting.push([one, two, three], skip=[(16, 16)])
    waiting.pop_message()
    assert waiting.move(1, aside) == 6
    assert (waiting.messages, waiting.bytes) == (4, two.size)
    assert (aside.messages, aside.bytes) == (6, one.size + three.size)
    assert waiting.take_credit() == {1: (1, 0)}
    aside.push([entry(2, 18)])
    assert waiting.pop_batch(2).last_id == (2, 1, {1: 11, 2: 2})
    assert aside.move(1, waiting) == 8
    assert (len(aside), aside.bytes, aside.move(1, waiting)) == (0, 0, 0)
    assert drain(waiting) == [2, 3, 11, 12, 13, 14, 15, 17, 18, 19]
    assert waiting.take_credit() == {1: (8, one.size + three.size + entry(2, 18).size), 2: (4, two.size)}
    assert (waiting.messages, waiting.bytes) == (0, 0)


def test_putting_aside_keeps_the_place_in_another_entry():
    waiting, aside = queue(), queue()
    waiting.push([entry(4, 10), entry(4, 0, segment=2)])
    waiting.pop_message()
    assert waiting.move(2, aside) == 4
    assert drain(waiting) == [11, 12, 13]
    assert aside.move(2, waiting) == 4
    assert drain(waiting) == [0, 1, 2, 3]


def test_semantics_11_a_position_that_was_forgotten_is_in_no_later_vector():
    waiting = queue(positions={9: 5})
    waiting.push([entry(4, 10), entry(2, 0, segment=2)])
    first = waiting.pop_message()
    waiting.forget_positions({9: 100, 8: 100})
    second = waiting.pop_message()
    waiting.forget_positions({1: 100})
    third = waiting.pop_message()
    assert first is not None
    assert second is not None
    assert third is not None
    assert [m.id for m in (first, second, third)] == [(1, 10, {9: 5, 1: 11}), (1, 11, {1: 12}), (1, 12, {1: 13})]
    assert waiting.pop_batch(10).positions == {1: 14, 2: 2}


def test_what_was_acknowledged_unread_can_be_forgotten():
    waiting = queue()
    entries = [entry(6, 10), entry(4, 0, segment=2), entry(4, 16)]
    waiting.push(entries)
    waiting.pop_message()
    assert waiting.forget(1, [(16, 40), (0, 10), (12, 13)]) == 6
    assert (waiting.messages, waiting.bytes) == (7, entries[0].size + entries[1].size)
    assert waiting.take_credit() == {1: (7, entries[2].size)}
    assert waiting.forget(3, [(0, 9)]) == 0
    assert drain(waiting) == [11, 14, 15, 0, 1, 2, 3]
    assert waiting.take_credit() == {1: (3, entries[0].size), 2: (4, entries[1].size)}
    assert waiting.bytes == 0


@given(st.integers(0, 2**32))
def test_every_way_of_popping_gives_each_message_once(seed: int):
    rng, waiting = random.Random(seed), queue()
    next_offset, expected, popped, credit = {1: 0, 2: 100}, [], [], {1: [0, 0], 2: [0, 0]}
    sizes = dict.fromkeys(next_offset, 0)
    for _ in range(60):
        action = rng.randrange(5)
        if action == 0:
            segment, count = rng.choice([1, 2]), rng.randint(1, 4)
            made = entry(count, next_offset[segment], segment)
            offsets = range(made.first_offset, made.first_offset + count)
            hole = rng.choice(offsets)
            skip = [(hole, hole)] if rng.random() < 0.3 else None
            kept = [o for o in offsets if skip is None or o != hole]
            expected += [(segment, o) for o in kept]
            assert waiting.push([made], skip) == len(kept)
            next_offset[segment] += count
            sizes[segment] += made.size
        elif action in (1, 2):
            message = waiting.pop_message()
            popped += [] if message is None else [message.id[:2]]
        elif action == 3:
            popped += [m.id[:2] for m in waiting.pop_batch(rng.randint(0, 6), rng.choice([-1, 0, 20, 50]))]
        else:
            for segment, (messages, size) in waiting.take_credit().items():
                credit[segment][0] += messages
                credit[segment][1] += size
        assert popped == expected[: len(popped)]
        assert len(waiting) == len(expected) - len(popped)
    popped += [m.id[:2] for m in waiting.pop_batch(1_000)]
    assert popped == expected
    for segment, (messages, size) in waiting.take_credit().items():
        credit[segment][0] += messages
        credit[segment][1] += size
    assert {s: c[1] for s, c in credit.items()} == sizes
    assert {s: c[0] for s, c in credit.items()} == {s: sum(e[0] == s for e in expected) for s in credit}


def test_a_long_queue_gives_its_memory_back():
    waiting = queue()
    single = entry(1, 0)
    for _ in range(5):
        waiting.push([single] * 3_000)
        assert len(drain(waiting)) == 3_000
    assert (waiting.messages, waiting.bytes) == (0, 0)


def test_threads_share_a_queue():
    """Two that pop and one that pushes: each message once, each thread's in order."""
    waiting, done = queue(), threading.Event()
    found: list[list[int]] = [[], []]

    def pop(into: list[int], single: bool) -> None:
        while not done.is_set() or waiting.messages:
            messages = [waiting.pop_message()] if single else list(waiting.pop_batch(3))
            into += [m.offset for m in messages if m is not None]

    threads = [threading.Thread(target=pop, args=(found[i], i == 0)) for i in range(2)]
    for thread in threads:
        thread.start()
    for i in range(300):
        waiting.push([entry(5, 5 * i)])
    done.set()
    for thread in threads:
        thread.join()
    assert sorted(found[0] + found[1]) == list(range(1500))
    assert found[0] == sorted(found[0])
    assert found[1] == sorted(found[1])


@pytest.mark.parametrize("bad", [[[1]], [[1, 2, 3, 4]], [["a", "b"]], [[-1, 2]], [[1, 2**63]], [[1.0, 2]]])
def test_ranges_of_another_form_are_refused(bad: Any):
    with pytest.raises(InvalidArgumentError, match="skip must be a list of"):
        queue().push([entry(1, 0)], skip=bad)
    with pytest.raises(InvalidArgumentError, match="redelivered must be a list of"):
        queue().push([entry(1, 0)], redelivered=bad)


def test_what_is_not_an_entry_is_refused():
    with pytest.raises(TypeError):
        queue().push([b"entry"])  # type: ignore[list-item]


def test_values_are_what_decode_makes_of_their_bytes():
    waiting = EntryQueue("t", make_id, decode=int)
    waiting.push([entry(5, 10)])
    message = waiting.pop_message()
    assert message is not None
    assert message.value == 10
    batch = waiting.pop_batch(3)
    assert batch.values == [m.value for m in batch] == [11, 12, 13]
    assert batch[1:].values == [12, 13]
    assert batch.to_arrow()["value"].to_pylist() == [b"%010d" % i for i in (11, 12, 13)]


def test_ids_are_made_as_was_said_last():
    waiting = queue()
    waiting.push([entry(3, 10)])
    first = waiting.pop_message()
    waiting.set_make_id(lambda segment_id, offset, positions: offset)
    second = waiting.pop_message()
    assert first is not None
    assert second is not None
    assert (first.id, second.id) == ((1, 10, {1: 11}), 11)
    assert waiting.pop_batch(5).last_id == 12
