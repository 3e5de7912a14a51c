"""log: walking, stamping, cutting and scanning entries; hostile bytes."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine._native.serve import log
from engine.errors import CorruptionError, InvalidArgumentError
from tests.kit.entry_images import KEYED, entry, values_of

SALT, SEGMENT = 0xC0FFEE, 9
WHOLE = (0xFFFF,)


def run(count: int, *, first: int = 0, durable_upto: int = 0, seed: int = 1) -> bytearray:
    """Stamped entries of one to three messages, back to back."""
    rng = random.Random(seed)
    images, sequence = bytearray(), 0
    for _ in range(count):
        n = rng.randint(1, 3)
        images += entry(sequence, tuple(b"x" * rng.randrange(60) for _ in range(n)))
        sequence += n
    log.stamp(images, SALT, 4, first, 1000, durable_upto, SEGMENT)
    return images


def test_entries_tells_what_stands_in_each_header() -> None:
    data = entry(7, (b"a", b"b"), bucket=(3, 4), segment_hash=(5, 6), flags=KEYED) + entry(9)
    first, second = log.entries(data)
    assert (first.position, first.size, first.count, first.kind) == (0, len(data) - len(entry(9)), 2, 1)
    assert (first.bucket_min, first.bucket_max, first.segment_hash_min, first.segment_hash_max) == (3, 4, 5, 6)
    assert (first.first_sequence, first.last_sequence, second.first_sequence) == (7, 8, 9)
    assert first.producer_id == second.producer_id
    assert second.position == first.size


@pytest.mark.parametrize("check_body", [True, False])
def test_entries_refuses_every_flipped_bit_it_checks(check_body: bool) -> None:
    data = entry(0, (b"abc",))
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << (at % 8)
        if 80 <= at < 128 or (at >= 128 and not check_body):
            log.entries(damaged, check_body)
        else:
            with pytest.raises(CorruptionError):
                log.entries(damaged, check_body)


def test_entries_refuses_nothing_and_halves() -> None:
    with pytest.raises(InvalidArgumentError):
        log.entries(b"")
    data = entry(0) + entry(1)
    for size in range(1, len(data)):
        if size != len(entry(0)):
            with pytest.raises(CorruptionError):
                log.entries(data[:size])


def test_cut_finds_the_block_of_any_offset() -> None:
    data = bytes(run(40, first=100))
    messages = values_of(data)
    end = messages[-1][0] + 1
    for offset in range(100, end):
        for bytes_max in (1, 300, 1000, 1 << 20):
            start, stop, first, after, count, missing = log.cut(data, SALT, SEGMENT, offset, bytes_max)
            found = values_of(data[start:stop])
            assert missing == 0
            assert found[0][0] == first <= offset < after == found[-1][0] + 1
            assert count == len(found)
            assert stop - start <= bytes_max or len(log.entries(data[start:stop])) == 1
    assert log.cut(data, SALT, SEGMENT, end, 1000)[4] == 0


def test_cut_says_how_much_it_misses() -> None:
    data = bytes(run(3))
    for size in range(len(data)):
        start, stop, _, _, count, missing = log.cut(data[:size], SALT, SEGMENT, 0, 1 << 20)
        assert count or start == stop
        assert count == 0 or missing == 0
        if not count and size >= 128:
            assert missing == int.from_bytes(data[4:8], "little")


def test_cut_serves_what_is_good_before_the_damage_and_then_reports_it() -> None:
    data = run(3)
    sizes = [e.size for e in log.entries(data)]
    data[sizes[0] + 130] ^= 1
    start, stop, *_ = log.cut(data, SALT, SEGMENT, 0, 1 << 20)
    assert (start, stop) == (0, sizes[0])
    second = log.entries(data, False)[0].count
    with pytest.raises(CorruptionError, match=f"segment 9, offset {second}"):
        log.cut(data, SALT, SEGMENT, second, 1 << 20)


@pytest.mark.parametrize(("salt", "segment"), [(SALT + 1, SEGMENT), (SALT, SEGMENT + 1)])
def test_entries_of_other_files_and_segments_are_refused(salt: int, segment: int) -> None:
    data = run(2)
    with pytest.raises(CorruptionError):
        log.cut(data, salt, segment, 0, 1000)
    scan = log.Scan(salt, segment, 0, 0, WHOLE)
    assert scan.feed(data) == 0
    assert scan.fault


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 1 << 30), piece=st.integers(128, 3000))
def test_scan_in_pieces_agrees_with_a_walk(seed: int, piece: int) -> None:
    data = run(60, seed=seed)
    scan = log.Scan(SALT, SEGMENT, 0, 0, WHOLE, step=500)
    size = piece
    while scan.position < len(data):
        chunk = data[scan.position : scan.position + size]
        taken = scan.feed(chunk)
        assert scan.fault == 0
        size = piece if taken else size * 2
    heads = log.entries(data)
    assert scan.entries == len(heads)
    assert scan.next_offset == sum(h.count for h in heads)
    assert (scan.term, scan.time_ms) == (4, 1000)
    ((_, kind, bucket, recent, _),) = scan.lanes_list()
    assert (kind, bucket) == (0, 0)
    assert [r[:2] for r in recent] == [(h.first_sequence, h.last_sequence) for h in heads[-16:]]
    marks = scan.marks_list()
    assert marks[0] == (0, 0, 1000)
    assert all(b[1] - a[1] >= 500 for a, b in itertools.pairwise(marks))
    positions = {h.position for h in heads}
    assert all(m[1] in positions for m in marks)


def test_scan_keeps_a_lane_per_producer_kind_and_bucket() -> None:
    data = bytearray()
    for i in range(200):
        producer, bucket, flags = f"p{i % 25}", (i % 4) * 0x4000, (i // 100) * KEYED
        data += entry(i, producer=producer, bucket=(bucket, bucket), flags=flags)
    log.stamp(data, SALT, 1, 0, 1, 0, SEGMENT)
    scan = log.Scan(SALT, SEGMENT, 0, 0, (0x3FFF, 0x7FFF, 0xBFFF, 0xFFFF))
    assert scan.feed(data) == len(data)
    lanes = scan.lanes_list()
    assert len(lanes) == 200
    assert {lane[1] for lane in lanes} == {0, 1}
    assert all(recent == [(o, o, o, 1)] for *_, recent, _ in lanes for o in [recent[0][0]])


def test_scan_stops_at_its_end_offset_and_at_faults() -> None:
    data = run(10)
    heads = log.entries(data)
    end = sum(h.count for h in heads[:4])
    scan = log.Scan(SALT, SEGMENT, 0, 0, WHOLE, end)
    assert scan.feed(data) == heads[4].position
    assert scan.finished
    data[heads[6].position + 20] ^= 1
    scan = log.Scan(SALT, SEGMENT, 0, 0, WHOLE)
    assert scan.feed(data) == heads[6].position == scan.position
    assert scan.fault
    with pytest.raises(CorruptionError, match="segment 9"):
        log.raise_fault(scan.fault, SEGMENT, scan.next_offset)
    with pytest.raises(InvalidArgumentError):
        log.Scan(SALT, SEGMENT, 0, 0, ())


def test_find_durable_looks_at_every_place() -> None:
    data = bytes(run(1, first=50, durable_upto=40))
    for pad in range(0, 64, 8):
        noise = b"\xee" * pad + data
        assert log.find_durable(noise, SALT, SEGMENT, 39) == pad
        assert log.find_durable(noise, SALT, SEGMENT, 40) == -1
        assert log.find_durable(noise, SALT + 1, SEGMENT, 39) == -1
        assert log.find_durable(noise[: pad + 128], SALT, SEGMENT, 39) == pad, "the header is enough"
        assert log.find_durable(noise[: pad + 127], SALT, SEGMENT, 39) == -1


def test_offset_at_time() -> None:
    data = bytearray()
    for i in range(5):
        part = bytearray(entry(i))
        log.stamp(part, SALT, 1, i, 100 * i, 0, SEGMENT)
        data += part
    assert [log.offset_at_time(data, t) for t in (-5, 0, 1, 100, 399, 400, 401)] == [0, 0, 1, 1, 4, 4, -1]


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=600), flips=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=8))
def test_noise_is_never_read_past_its_end(data: bytes, flips: list[tuple[int, int]]) -> None:
    """Whatever comes is refused or counted, under sanitizers as well."""
    image = run(5)
    for at, value in flips:
        image[at % len(image)] = value
    for noise in (data, bytes(image), bytes(image[: len(image) // 2]), data + bytes(image)):
        for attempt in (
            lambda n=noise: log.entries(n),
            lambda n=noise: log.cut(n, SALT, SEGMENT, 3, 500),
            lambda n=noise: log.find_durable(n, SALT, SEGMENT, 0),
            lambda n=noise: log.Scan(SALT, SEGMENT, 0, 0, WHOLE).feed(n),
        ):
            try:
                attempt()
            except (CorruptionError, InvalidArgumentError):
                continue
