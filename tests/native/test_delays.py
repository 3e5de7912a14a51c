"""When the messages of an entry are due: read from the column, against a plain account of the rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine._native.format.entry import compress
from engine._native.serve.delays import has_delays, withheld
from engine.errors import CorruptionError, InvalidArgumentError
from tests.native.batchers import batcher, sealed
from tests.reference.entry_reference import PlainMessage, Stamp, encode

NOW = 1_750_000_000_000
TICK = 100
DELAYS = st.none() | st.integers(-5, 500) | st.integers(-(2**40), 2**40) | st.just(2**63 - 1 - NOW)


def entry(delays: list[int | None], **parts: object) -> bytes:
    messages = [
        PlainMessage(value=b"v" * i, sequence_id=i, deliver_at_ms=None if d is None else NOW + d, key=b"k" * (i % 3))
        for i, d in enumerate(delays)
    ]
    return encode(
        messages, stamp=Stamp(salt=0, term=1, first_offset=1000, publish_time_ms=0, durable_upto=0, segment_id=3)
    )


@given(st.lists(DELAYS, min_size=1, max_size=40))
def test_what_is_not_due_is_withheld_and_looked_at_in_time(delays: list[int | None]) -> None:
    runs = withheld(entry(delays), NOW, TICK)
    found = {offset - 1000: time for time, first, stop in runs for offset in range(first, stop)}
    assert set(found) == {i for i, d in enumerate(delays) if d is not None and d > 0}
    for i, time in found.items():
        due = NOW + (delays[i] or 0)
        assert time > NOW, "every look comes later than this one"
        assert time - due < TICK, "at most a tick late"
        assert time >= due or due - time <= (due - NOW) / 16, "early only by a part of the delay"
        assert time >= due or due - NOW > 64 * TICK, "what is due soon is not looked at twice"
    assert [first for _, first, _ in runs] == sorted(first for _, first, _ in runs)


@given(st.integers(0, 2**40), st.integers(0, 2**20))
def test_a_message_is_looked_at_a_few_times_until_it_is_due(delay: int, late: int) -> None:
    image, now, looks = entry([delay]), NOW, 0
    while runs := withheld(image, now, TICK):
        assert now < NOW + delay
        now = runs[0][0] + (late if runs[0][0] < NOW else 0)
        looks += 1
    assert NOW + delay <= now < NOW + delay + TICK
    assert looks <= 10


@given(st.lists(st.integers(1, 2**41), min_size=300, max_size=300, unique=True))
def test_the_times_of_many_messages_are_few(delays: list[int]) -> None:
    times = {time for time, _, _ in withheld(entry(list(delays)), NOW, TICK)}
    assert len(times) <= 64 * 40
    near = [d for d in delays if d < 2**21]
    assert len({t for t in times if t < NOW + 2**21}) <= 64 * 20 or not near


def test_messages_of_one_time_are_one_run() -> None:
    assert withheld(entry([50] * 5 + [0] + [60] * 2 + [250]), NOW, TICK) == [
        (NOW + 100, 1000, 1005),
        (NOW + 100, 1006, 1008),
        (NOW + 300, 1008, 1009),
    ]


def test_a_block_tells_whether_any_of_its_entries_has_delays() -> None:
    plain, delayed = entry([None, None]), entry([None, 1])
    assert not has_delays(plain + plain)
    assert has_delays(plain + delayed + plain)
    assert not has_delays(b"")
    assert not has_delays(bytes(200)), "what is no entry is for others to find"
    assert withheld(plain, NOW, TICK) == []


def test_bytes_that_are_no_entry_are_refused() -> None:
    image = bytearray(entry([5]))
    image[40] ^= 1
    for wrong in (b"", bytes(128), image):
        with pytest.raises(CorruptionError):
            withheld(wrong, NOW, TICK)
    with pytest.raises(InvalidArgumentError, match="tick_ms must be"):
        withheld(entry([5]), NOW, 0)


def test_an_entry_with_delays_is_never_compressed() -> None:
    subject = batcher()
    subject.add(b"a" * 1000, b"k", deliver_at=NOW)
    (delayed,) = sealed(subject)
    subject.add(b"a" * 1000, b"k")
    (plain,) = sealed(subject)
    assert compress(delayed.data, 1, lambda _: b"") is delayed.data
    assert compress(plain.data, 1, lambda _: b"short") is not plain.data


def test_an_entry_holds_messages_of_about_one_time() -> None:
    """What is sent when one of them is due is the whole entry."""
    subject = batcher()
    for deliver_at in (None, None, NOW, NOW + 1000, NOW - 1000, NOW + 1001, None, NOW):
        subject.add(b"", b"k", deliver_at=deliver_at)
    assert [e.count for e in sealed(subject)] == [2, 3, 1, 1, 1]
    subject.add_columns([b"1", b"2"], [b"k", b"k"])
    subject.add(b"", b"k", deliver_at=2**63 - 1)
    subject.add(b"", b"k", deliver_at=-(2**63) + 1)
    assert [e.count for e in sealed(subject)] == [2, 1, 1]
