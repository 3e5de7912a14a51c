"""Semantics 24: duplicates are recognised per producer and bucket, across restarts, rolls, splits and merges."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine._native.serve.log import Claim
from engine.errors import InvalidArgumentError
from engine.model.hashrange import HashRange
from engine.storage.dedup.dedup import CHILD_RECORDS_MAX, LANES_MAX, Dedup
from tests.kit.entry_images import KEYED, entry
from tests.kit.stores import QUARTERS, make_store, name


def keyed(sequence: int, bucket: int, segment_hash: int = 0, *, last: int | None = None, producer: str = "p") -> bytes:
    """An entry of one key."""
    values = (b"v",) if last is None else (b"v",) * 2
    return entry(
        sequence, values, producer=producer, bucket=(bucket,) * 2, segment_hash=(segment_hash,) * 2, flags=KEYED,
        last_sequence=last,
    )  # fmt: skip


async def offset_of(segment, image: bytes) -> tuple[int, bool]:
    """(first offset, duplicate) of an append."""
    (place,) = await segment.append(image)
    return place.first_offset, place.duplicate


async def test_24_buckets_of_one_producer_overtake_each_other(tmp_path: Path) -> None:
    segment = await make_store(tmp_path).create(name(), bucket_ends=QUARTERS)
    assert await offset_of(segment, keyed(5, 0x0000, last=9)) == (0, False)
    assert await offset_of(segment, keyed(1, 0x4000, last=8)) == (2, False), "lower, in another bucket: new"
    assert await offset_of(segment, entry(3, bucket=(0, 0))) == (4, False), "lower, keyless: batched apart"
    assert await offset_of(segment, keyed(1, 0x0000, last=9, producer="q")) == (5, False)
    assert await offset_of(segment, keyed(5, 0x0000, last=9)) == (0, True), "acknowledged with its original offset"
    assert await offset_of(segment, keyed(1, 0x4000, last=8)) == (2, True)
    assert await offset_of(segment, keyed(2, 0x0001, last=4)) == (-1, True), "below what the bucket has seen"
    with pytest.raises(InvalidArgumentError, match="5 to 12"):
        await segment.append(keyed(5, 0x0000, last=12))
    assert segment.last_sequence("p") == 9
    assert segment.last_sequence("nobody") == -1
    segment.release()


async def test_24_a_duplicate_waits_for_its_original(tmp_path: Path) -> None:
    segment = await make_store(tmp_path).create(name())
    first, again = segment.append(entry(0)), segment.append(entry(0))
    assert not again.done()
    await again
    assert first.done()
    assert segment.next_offset == 1
    segment.release()


async def test_24_some_of_a_frame_may_be_duplicates(tmp_path: Path) -> None:
    segment = await make_store(tmp_path).create(name())
    await segment.append(entry(0) + entry(1))
    places = await segment.append(entry(0) + entry(1) + entry(2) + entry(3))
    assert [(p.first_offset, p.duplicate) for p in places] == [(0, True), (1, True), (2, False), (3, False)]
    assert segment.statistics().duplicate_entries == 2
    segment.release()


@pytest.mark.parametrize("how", ["crash", "close", "roll"])
async def test_24_duplicates_are_recognised_after_a_restart(tmp_path: Path, how: str) -> None:
    store = make_store(tmp_path, file_size_max=4096)
    segment = await store.create(name(), bucket_ends=QUARTERS)
    for i in range(40 if how == "roll" else 6):
        await segment.append(keyed(i, (i % 4) * 0x4000))
    if how == "close":
        await store.close()
    else:
        segment.release()
    segment = await make_store(tmp_path).open(name(), bucket_ends=QUARTERS)
    end = segment.next_offset
    for i in range(end):
        offset, duplicate = await offset_of(segment, keyed(i, (i % 4) * 0x4000))
        assert duplicate
        assert offset in (i, -1)
        assert how != "crash" or offset == i
    assert segment.next_offset == end
    segment.release()


@pytest.mark.parametrize("how", ["stays", "crash", "close"])
async def test_24_another_entry_of_the_same_first_and_last_sequence_is_not_taken_for_the_original(
    tmp_path: Path, how: str
) -> None:
    """A parent's leftover lacks what its neighbour had; a program that resumes sends one batch of both."""
    store = make_store(tmp_path)
    parents = [await store.create(name(i, low, low + 0x7FFF)) for i, low in enumerate((0x0000, 0x8000))]
    merged = await store.create(name(2))
    await merged.inherit([parent.dedup_snapshot() for parent in parents])
    left = entry(38, [b"v"] * 3, bucket=(0, 9), segment_hash=(0x1000, 0x2000), flags=KEYED, last_sequence=45)
    right = entry(43, [b"v"], bucket=(0, 9), segment_hash=(0x9000, 0x9000), flags=KEYED)
    later = entry(46, [b"v"] * 2, bucket=(0, 9), segment_hash=(0x1000, 0x9000), flags=KEYED)
    assert [(await offset_of(merged, image))[0] for image in (left, right, later)] == [0, 3, 4]
    if how != "stays":
        merged = await reopened(tmp_path, store, merged, crash=how == "crash")
    both = entry(38, [b"v"] * 4, bucket=(0, 9), segment_hash=(0x1000, 0x9000), flags=KEYED, last_sequence=45)
    assert await offset_of(merged, both) == (-1, True), "it is stored, but not in one place"
    assert await offset_of(merged, left) == ((0, True) if how != "close" else (-1, True))
    merged.release()
    for parent in parents:
        parent.release()


async def test_24_children_inherit_through_split_and_merge(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    left = await store.create(name(0, 0x0000, 0x7FFF), bucket_ends=QUARTERS)
    right = await store.create(name(1, 0x8000, 0xFFFF), bucket_ends=QUARTERS)
    await left.append(keyed(10, 0x0000, 0x1000, last=20))
    await right.append(keyed(1, 0x0000, 0x9000, last=2))
    merged = await store.create(name(2), bucket_ends=(0x7FFF, 0xFFFF))
    for _ in range(2):
        await merged.inherit([left.dedup_snapshot(), right.dedup_snapshot()])
    merged.release()
    merged = await make_store(tmp_path).open(name(2), bucket_ends=(0x7FFF, 0xFFFF))
    assert await offset_of(merged, keyed(10, 0x0000, 0x1000, last=20)) == (-1, True)
    assert await offset_of(merged, keyed(1, 0x0000, 0x9000, last=2)) == (-1, True)
    assert await offset_of(merged, keyed(5, 0x0000, 0x9000)) == (0, False), "the right parent never saw it"
    assert await offset_of(merged, keyed(21, 0x0000, 0x1000)) == (1, False)
    child = await make_store(tmp_path).create(name(3, 0x8000, 0xFFFF), bucket_ends=(0xFFFF,))
    await child.inherit([merged.dedup_snapshot()])
    assert await offset_of(child, keyed(5, 0x0000, 0x9000)) == (-1, True), "inherited from the merged one"
    assert await offset_of(child, keyed(1, 0x0000, 0x9000, last=2)) == (-1, True), "and through it from its parent"
    assert child.last_sequence("p") == 5, "of its own range; the left child inherits that of the left one"
    child.release()
    merged.release()


@pytest.mark.parametrize("how", ["stays", "crash", "close", "roll"])
async def test_24_what_two_parents_left_meets_in_one_bucket(tmp_path: Path, how: str) -> None:
    """Neither parent knew the producer; sequences rise only in each of 2 x 2 cells."""
    store = make_store(tmp_path, file_size_max=4096)
    parents = [
        await store.create(name(0, 0x0000, 0x7FFF), bucket_ends=(0x7FFF, 0xFFFF)),
        await store.create(name(1, 0x8000, 0xFFFF), bucket_ends=(0x7FFF, 0xFFFF)),
    ]
    merged = await store.create(name(2), bucket_ends=(0xFFFF,))
    await merged.inherit([parent.dedup_snapshot() for parent in parents])
    cells = [(hash_, bucket) for hash_ in (0x1000, 0x9000) for bucket in (0x1000, 0x9000)]
    images = [keyed(10 * n + i, bucket, hash_, last=90 + i + 10 * n) for n in range(0, 90, 10) for i, (hash_, bucket)
              in enumerate(cells)]  # fmt: skip
    images = sorted(images, key=lambda image: images.index(image) % 4)  # one cell after the other
    for i, image in enumerate(images):
        assert await offset_of(merged, image) == (2 * i, False)
    if how == "roll":
        for sequence in range(5000, 5040):
            await merged.append(keyed(sequence, 0x1000, 0x1000))
    end = merged.next_offset
    if how != "stays":
        merged = await reopened(tmp_path, store, merged, crash=how != "close")
    for image in images:
        assert (await offset_of(merged, image))[1]
    assert merged.next_offset == end
    assert await offset_of(merged, keyed(2000, 0x9000, 0x9000)) == (end, False)
    merged.release()
    for parent in parents:
        parent.release()


async def reopened(tmp_path: Path, store, segment, *, crash: bool):  # type: ignore[no-untyped-def]
    if crash:
        segment.release()
    else:
        await store.close()
    return await make_store(tmp_path).open(segment.name, bucket_ends=(0xFFFF,))


def test_24_what_is_bequeathed_does_not_grow_with_the_generations() -> None:
    """A topic that splits and merges and rebuckets for ever bequeaths no more than its shapes have cells."""
    whole, halves = HashRange.whole(), HashRange.divide(2)
    known, sizes = b"", []
    for sequence in range(0, 400, 10):
        merged = Dedup(whole, QUARTERS)
        merged.load(known, from_parent=True)
        merged.record(claim(sequence, sequence + 4, 0), sequence, sequence)
        children = [Dedup(half, (0x7FFF, 0xFFFF)) for half in halves]
        for child in children:
            child.load(merged.child_snapshot(), from_parent=True)
        children[0].record(claim(sequence + 5, sequence + 9, 0), sequence, sequence)
        known = b"".join(child.child_snapshot() for child in children)
        sizes.append(len(known))
    assert max(sizes[5:]) == min(sizes[5:])


def test_24_too_many_producers_for_a_child_and_the_silent_ones_are_forgotten() -> None:
    parent, child = Dedup(HashRange.whole(), QUARTERS), Dedup(HashRange.whole(), QUARTERS)
    first = Dedup(HashRange.whole(), QUARTERS)
    for producer in range(3000):
        first.record(Claim(0, 136, 1, 1, 0, 0, 0, 0, producer, 0, 0), producer, producer)
    parent.load(first.child_snapshot(), from_parent=True)
    for producer in (5, *range(3000, 3000 + CHILD_RECORDS_MAX - 1)):
        parent.record(Claim(0, 136, 1, 1, 0, 0, 0, 0, producer, 7, 7), producer, producer)
    bequest = parent.child_snapshot()
    assert len(bequest) <= 48 * (CHILD_RECORDS_MAX + 5)
    child.load(bequest, from_parent=True)
    assert [child.last_sequence(p) for p in (4, 5, 2999, 3000, 3000 + CHILD_RECORDS_MAX - 2)] == [-1, 7, -1, 7, 7]


def claim(first: int, last: int, bucket: int) -> Claim:
    """An entry's claim."""
    return Claim(0, 136, last - first + 1, 1, bucket, bucket, 0, 0, 77, first, last)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_24_any_resend_pattern_stores_each_entry_once(seed: int) -> None:
    """Against a set of what was stored: resends, failures and snapshots at random."""
    rng = random.Random(seed)
    dedup = Dedup(HashRange.whole(), QUARTERS)
    history = [[claim(i * 10, i * 10 + 4, b * 0x4000) for i in range(80)] for b in range(4)]
    stored: dict[tuple[int, int], int] = {}
    at, durable, offset = [0] * 4, 0, 0
    for _ in range(150):
        bucket = rng.randrange(4)
        start = max(0, at[bucket] - rng.choice([0, 0, 0, 1, 5, 40]))
        entry_ = history[bucket][min(start, 79)]
        known = dedup.find(entry_)
        key = (bucket, entry_.first_sequence)
        assert (known is None) == (key not in stored)
        if known is None:
            dedup.record(entry_, offset, durable)
            stored[key] = offset
            at[bucket] += 1
            offset += 5
        else:
            assert known in (-1, stored[key])
        if rng.random() < 0.3:
            durable = rng.randrange(durable, offset + 1, 5)
        if rng.random() < 0.05:
            dedup.rollback(durable)
            stored = {k: o for k, o in stored.items() if o < durable}
            at = [sum(1 for b, _ in stored if b == bucket) for bucket in range(4)]
            offset = durable
        if rng.random() < 0.05:
            durable = offset
            dedup_new = Dedup(HashRange.whole(), QUARTERS)
            dedup_new.load(dedup.snapshot())
            dedup = dedup_new


def known_of(producers: int) -> Dedup:
    """What a segment knows after so many producers have each sent an entry."""
    dedup = Dedup(HashRange.whole(), QUARTERS)
    for producer in range(producers):
        one = Claim(0, 136, 1, 1, 0, 0, 0, 0, producer, 1, 1, 1)
        assert dedup.find(one) is None
        dedup.record(one, producer, producer)
    return dedup


def test_24_a_hundred_thousand_producer_names_cost_no_more_than_the_bound() -> None:
    """The names that were silent longest are forgotten first; a segment's memory has a bound, and so has its file."""
    sizes = []
    for producers in (LANES_MAX, 100_000):
        tracemalloc.start()
        dedup = known_of(producers)
        sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert len(dedup.snapshot()) <= 2 * 48 * LANES_MAX
        assert (dedup.last_sequence(producers - 1), dedup.floor(producers - 1)) == (1, 1)
        assert dedup.last_sequence(producers - LANES_MAX) == 1
    assert dedup.last_sequence(100_000 - LANES_MAX - 1) == -1
    assert dedup.floor(100_000 - LANES_MAX - 1) == 0
    assert sizes[1] < 1.3 * sizes[0]
    assert sizes[1] < 20e6
