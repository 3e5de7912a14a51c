"""A change of what a segment's record says of its objects, where the metadata store does not say whether it wrote it.

The caller deletes what it meant to name when nothing was written. So that is said only where no write may have been.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from engine.broker.hosting.ownership import Owned, Owner, Ownership
from engine.clock import SystemClock
from engine.control.base.brokers import Brokers
from engine.errors import NotOwnerError, UnknownOutcomeError
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import ANY, Expected, OutcomeUnknownError, Stat
from engine.model.names import SegmentName
from engine.storage.objects.references import SegmentObjects
from engine.testing.metadata import FaultyMetadataStore

NAME = SegmentName.parse("segment://public/default/orders/0000-ffff-0")
KEY = keys.segment(NAME)
WANTED = SegmentObjects(floor=7)
WRITTEN, UNHEARD, LOST = "written", "written, and the answer is lost", "lost on its way"


class Unsure(FaultyMetadataStore):
    """Each write of the record ends as `ends` says, then well; `then` is what happens behind the first one."""

    def __init__(self, inner: MemoryMetadataStore) -> None:
        super().__init__(inner, random.Random(1))
        self.ends: list[str] = []
        self.then: Callable[[], Awaitable[Any]] | None = None
        self.writes = 0

    async def put(self, key: str, value: bytes, expected: Expected | int = ANY, **options: Any) -> Stat:
        end = self.ends.pop(0) if key == KEY and self.ends else WRITTEN
        self.writes += key == KEY
        try:
            stat = None if end == LOST else await super().put(key, value, expected, **options)
        finally:
            then, self.then = (self.then, None) if key == KEY else (None, self.then)
            if then is not None:
                await then()
        if stat is None or end == UNHEARD:
            raise OutcomeUnknownError(end)
        return stat


class Change:
    """A segment that this broker owns, and one change of its record."""

    def __init__(self, inner: MemoryMetadataStore) -> None:
        self.inner = inner
        self.store = Unsure(inner)
        self.clock = SystemClock()
        self.brokers = Brokers(self.store, clock=self.clock, url="engine://a")
        self.ownership = Ownership(self.store, self.brokers, self.clock, follows=True)
        self.fenced = False

    async def begin(self, ends: list[str]) -> Owned:
        """Claim the segment; from then on writes end so."""
        await self.brokers.start()
        owned = await self.ownership.claim(NAME)
        self.store.ends, self.store.writes = ends, 0
        return owned

    async def also(self) -> Mapping[str, int]:
        """No demands; as where the own session with the object store is fenced, or not."""
        if self.fenced:
            raise NotOwnerError("the session was fenced")
        return {}

    async def run(self, owned: Owned) -> SegmentObjects:
        return await self.ownership.change(
            NAME, owned, lambda now: msgspec.structs.replace(now or SegmentObjects(), floor=7), self.also
        )

    async def owner(self) -> Owner:
        return Owner.of(await self.inner.newest.get(KEY))

    async def other_claims(self) -> None:
        """As another broker does that takes this one for dead."""
        record, owner = await self.inner.newest.get(KEY), await self.owner()
        assert record is not None
        taken = replace(owner, url="engine://b", session=99, term=owner.term + 1)
        await self.inner.put(KEY, taken.to_json(), record.stat.version)

    async def fence(self) -> None:
        self.fenced = True

    async def close(self) -> None:
        await self.ownership.close()
        await self.brokers.close()


@pytest.fixture
async def change() -> AsyncIterator[Change]:
    made = Change(MemoryMetadataStore(SystemClock()))
    yield made
    await made.close()


@pytest.mark.parametrize("meanwhile", ["other_claims", "fence"])
@pytest.mark.parametrize("end", [UNHEARD, LOST])
async def test_a_write_that_may_have_been_is_not_reported_as_none(change: Change, end: str, meanwhile: str) -> None:
    owned = await change.begin([end])
    change.store.then = getattr(change, meanwhile)
    with pytest.raises(UnknownOutcomeError, match="may have been written before"):
        await change.run(owned)
    assert (await change.owner()).objects == (WANTED if end == UNHEARD else None)
    assert change.store.writes == 1, "nothing is written by a broker that is not the owner"


async def test_what_was_written_unheard_stays_with_the_next_owner(change: Change) -> None:
    """R1: its claim keeps what the write named; so the object must not be deleted."""
    owned = await change.begin([UNHEARD])
    change.store.then = change.other_claims
    with pytest.raises(UnknownOutcomeError):
        await change.run(owned)
    owner = await change.owner()
    assert (owner.url, owner.objects) == ("engine://b", WANTED)


@pytest.mark.parametrize(
    ("ends", "writes"), [([UNHEARD], 1), ([LOST], 2), ([LOST, UNHEARD], 2), ([LOST, LOST, WRITTEN], 3), ([WRITTEN], 1)]
)
async def test_an_owner_that_still_is_one_finds_out(change: Change, ends: list[str], writes: int) -> None:
    assert await change.run(await change.begin(ends)) == WANTED
    assert (await change.owner()).objects == WANTED
    assert change.store.writes == writes, "what is there is not written again"


@pytest.mark.parametrize("meanwhile", ["other_claims", "fence"])
async def test_nothing_was_written_where_no_write_was_sent(change: Change, meanwhile: str) -> None:
    owned = await change.begin([])
    await getattr(change, meanwhile)()
    with pytest.raises(NotOwnerError):
        await change.run(owned)
    assert change.store.writes == 0
    assert (await change.owner()).objects is None


async def test_a_write_that_was_refused_is_none(change: Change) -> None:
    """Another broker's claim came first: the store says so."""
    owned = await change.begin([])
    real = change.ownership._put

    async def put(*arguments: Any) -> int:
        await change.other_claims()
        change.ownership._put = real  # type: ignore[method-assign]
        return await real(*arguments)

    change.ownership._put = put  # type: ignore[method-assign]
    with pytest.raises(NotOwnerError):
        await change.run(owned)
    assert (await change.owner()).objects is None


async def test_r2_r14_a_session_that_is_fenced_in_that_moment_writes_nothing(change: Change) -> None:
    """Behind the look at its record, and before the write: the write itself demands that it is as it was seen."""
    owned = await change.begin([])
    log = keys.wal("a")
    await change.inner.put(log, b"lives")

    async def also() -> Mapping[str, int]:
        found = await change.inner.newest.get(log)
        assert found is not None
        if found.value == b"fenced":
            raise NotOwnerError("the session was fenced")
        await change.inner.put(log, b"fenced")
        return {log: found.stat.version}

    change.also = also  # type: ignore[assignment,method-assign]
    with pytest.raises(NotOwnerError, match="was fenced"):
        await change.run(owned)
    assert (await change.owner()).objects is None


async def test_r14_an_owner_of_a_later_term_is_another_one(change: Change) -> None:
    """The segment went to another broker and came back to the same session; what began before names nothing."""
    owned = await change.begin([])
    await change.ownership.leave(NAME, owned.term, "engine://a")
    again = await change.ownership.claim(NAME)
    assert again.term > owned.term
    with pytest.raises(NotOwnerError):
        await change.run(owned)
    assert (await change.owner()).objects is None
    assert await change.run(again) == WANTED


async def test_a_store_that_never_answers_leaves_it_unknown(change: Change) -> None:
    owned = await change.begin([LOST] * 100)
    with pytest.raises(UnknownOutcomeError, match="did not say whether"):
        await change.run(owned)
    assert (await change.owner()).objects is None
