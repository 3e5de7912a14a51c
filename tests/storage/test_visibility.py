"""Readers see what is decided, in order, and what was decided stays so through every crash."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from engine._native.serve.undecided import Write
from engine.errors import CorruptionError, FencedError, NotOwnerError, UnsupportedError
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.model.names import SegmentName
from engine.storage.cursor.visibility import Visibility, pack, unpack
from engine.testing.clock import FakeClock

SEGMENT = SegmentName.parse("segment://public/default/orders/0000-ffff-0")
KEY = keys.visibility(SEGMENT)


class Lease:
    """One owner's."""

    born = 1

    def __init__(self, term: int) -> None:
        self.term = term
        self.held = True

    def check(self) -> None:
        if not self.held:
            raise NotOwnerError("it is over")


class Log:
    """As far as a segment reaches."""

    def __init__(self) -> None:
        self.end = 0

    def __call__(self) -> int:
        return self.end

    def append(self, visibility: Visibility, messages: int) -> Write:
        """A transaction's, durable at once."""
        write = visibility.wrote(self.end, self.end + messages - 1)
        self.end += messages
        return write


@pytest.fixture
async def store() -> AsyncIterator[MemoryMetadataStore]:
    store = MemoryMetadataStore(FakeClock())
    yield store
    await store.close()


async def test_nothing_is_read_from_the_first_undecided_on(store: MemoryMetadataStore) -> None:
    log = Log()
    visibility = await Visibility.open(store, SEGMENT, log)
    assert visibility.limit is None
    first, second, third = (log.append(visibility, 5) for _ in range(3))
    assert visibility.limit == 0
    visibility.decide(second, visible=True)
    assert (visibility.limit, visibility.undecided) == (0, 2)
    visibility.decide(first, visible=False)
    assert (visibility.limit, list(visibility.hidden)) == (10, [0, 1, 2, 3, 4])
    visibility.withdraw(third)
    assert (visibility.limit, visibility.undecided) == (None, 0)
    visibility.decide(first, visible=True)  # once and for all
    assert list(visibility.hidden) == [0, 1, 2, 3, 4]


async def test_readers_are_told(store: MemoryMetadataStore) -> None:
    log, told = Log(), []
    visibility = await Visibility.open(store, SEGMENT, log)
    visibility.changed = lambda: told.append(visibility.limit)
    first, second = log.append(visibility, 1), log.append(visibility, 1)
    visibility.decide(first, visible=True)
    visibility.decide(second, visible=False)
    assert told == [1, None]


async def test_a_segment_without_transactions_has_no_record_and_nothing_to_look_for(store: MemoryMetadataStore) -> None:
    log = Log()
    log.end = 1000
    visibility = await Visibility.open(store, SEGMENT, log)
    assert (visibility.marked, visibility.unsettled_from) == (False, None)
    await visibility.mark()
    assert (visibility.marked, visibility.unsettled_from) == (True, 1000)
    again = await Visibility.open(store, SEGMENT, log)
    assert (again.marked, again.unsettled_from) == (True, 1000)


async def test_what_was_decided_is_known_after_a_crash_and_the_rest_is_looked_for(store: MemoryMetadataStore) -> None:
    log = Log()
    visibility = await Visibility.open(store, SEGMENT, log)
    await visibility.mark()
    writes = [log.append(visibility, 2) for _ in range(4)]
    visibility.decide(writes[0], visible=True)
    visibility.decide(writes[2], visible=True)
    visibility.decide(writes[3], visible=False)
    await visibility.save()
    again = await Visibility.open(store, SEGMENT, log)
    assert again.unsettled_from == 2
    assert [again.is_decided(offset) for offset in range(8)] == [True, True, False, False, True, True, True, True]
    assert list(again.hidden) == [6, 7]


async def test_what_reached_further_than_the_segment_now_does_is_forgotten(store: MemoryMetadataStore) -> None:
    """Where a crash takes what was not synced, others get those offsets."""
    log = Log()
    visibility = await Visibility.open(store, SEGMENT, log)
    await visibility.mark()
    first, second = log.append(visibility, 5), log.append(visibility, 5)
    visibility.decide(first, visible=True)
    visibility.decide(second, visible=False)
    await visibility.save()
    log.end = 7
    again = await Visibility.open(store, SEGMENT, log)
    assert (again.unsettled_from, list(again.hidden)) == (7, [5, 6])
    assert not again.is_decided(7)


async def test_d6_nothing_is_said_to_be_settled_that_is_not_durable(store: MemoryMetadataStore) -> None:
    """The log goes by what the record says was durable once: plain messages before those may be on their way."""
    log = Log()
    visibility = await Visibility.open(store, SEGMENT, log)
    log.end = 5
    await visibility.mark()
    visibility.wrote(9, 10)  # behind plain messages 5 to 8, none of them durable
    await visibility.save()
    assert await Visibility.reach(store, SEGMENT) == 5
    log.end = 9
    await visibility.save()
    assert await Visibility.reach(store, SEGMENT) == 9
    log.end = 11
    await visibility.save()
    assert await Visibility.reach(store, SEGMENT) == 9


async def test_who_was_succeeded_saves_nothing(store: MemoryMetadataStore) -> None:
    """G3, L1."""
    log = Log()
    old = await Visibility.open(store, SEGMENT, log, Lease(1))
    await old.mark()
    write = log.append(old, 1)
    new = await Visibility.open(store, SEGMENT, log, Lease(2))
    old.decide(write, visible=True)
    with pytest.raises(FencedError):
        await old.save()
    with pytest.raises(FencedError):
        await Visibility.open(store, SEGMENT, log, Lease(1))
    assert new.unsettled_from == 0


async def test_nothing_is_confirmed_without_the_lease(store: MemoryMetadataStore) -> None:
    lease = Lease(1)
    visibility = await Visibility.open(store, SEGMENT, Log(), lease)
    lease.held = False
    with pytest.raises(NotOwnerError):
        await visibility.mark()
    assert not visibility.marked


async def test_damage_is_reported(store: MemoryMetadataStore) -> None:
    """D6."""
    image = bytearray(pack(5, BitMap64([1, 2]), BitMap64([7])))
    for at in range(len(image)):
        damaged = bytearray(image)
        damaged[at] ^= 1
        await store.put(KEY, bytes(damaged))
        with pytest.raises(CorruptionError, match="visibility"):
            await Visibility.open(store, SEGMENT, Log())
    with pytest.raises(CorruptionError):
        unpack(bytes(image[:-1]), KEY)
    with pytest.raises(CorruptionError):
        unpack(b"", KEY)


def test_a_format_of_the_future_is_refused() -> None:
    from engine._native.format.crc32c import crc32c

    image = bytearray(pack(5, BitMap64(), BitMap64()))
    image[8] = 2
    image[4:8] = crc32c(bytes(image[8:])).to_bytes(4, "little")
    with pytest.raises(UnsupportedError, match="format 2"):
        unpack(bytes(image), KEY)


steps = st.lists(
    st.tuples(st.sampled_from(["append", "plain", "show", "hide", "withdraw", "save", "crash"]), st.integers(0, 5)),
    max_size=40,
)


@given(steps)
async def test_against_a_model_that_remembers_everything(steps: list[tuple[str, int]]) -> None:
    """`fate` of each offset: None undecided, else whether it is visible. Saved decisions survive; others may go."""
    store = MemoryMetadataStore(FakeClock())
    log = Log()
    visibility = await Visibility.open(store, SEGMENT, log)
    await visibility.mark()
    open_writes: list[Write] = []
    written: set[int] = set()
    fate: dict[int, bool | None] = {}
    saved: dict[int, bool | None] = {}
    for step, n in steps:
        if step == "append":
            write = log.append(visibility, n + 1)
            open_writes.append(write)
            written.update(range(write.first, write.last + 1))
            fate.update(dict.fromkeys(range(write.first, write.last + 1)))
        elif step == "plain":
            fate.update(dict.fromkeys(range(log.end, log.end + n), True))
            log.end += n
        elif step in ("show", "hide", "withdraw") and open_writes:
            write = open_writes.pop(n % len(open_writes))
            visible = step == "show"
            if step == "withdraw":  # only what never came into the log: as if it were hidden
                visibility.withdraw(write)
                visibility.decide(visibility.wrote(write.first, write.last), visible=False)
            visibility.decide(write, visible=visible)
            fate.update(dict.fromkeys(range(write.first, write.last + 1), visible))
        elif step == "save":
            await visibility.save()
            saved = dict(fate)
        elif step == "crash":
            visibility = await Visibility.open(store, SEGMENT, log)
            open_writes = []
            start = visibility.unsettled_from
            assert start is not None
            for offset in sorted(written):  # what recovery finds in the log, one by one
                if offset >= start and not visibility.is_decided(offset):
                    assert saved.get(offset) is None
                    fate[offset] = None
                    open_writes.append(visibility.wrote(offset, offset))
                else:
                    assert fate[offset] is not None
        undecided = [offset for offset, seen in fate.items() if seen is None]
        assert visibility.limit == (min(undecided) if undecided else None)
        assert set(visibility.hidden) >= {offset for offset, seen in saved.items() if seen is False}
        assert not set(visibility.hidden) & {offset for offset, seen in fate.items() if seen is True}
    await store.close()
