"""Conformance: several writes with one call, each with its own outcome, all seen at once. Every store passes it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from engine.errors import AlreadyClosedError, DiskFullError, InvalidArgumentError
from engine.limits import METADATA_COMMIT_WRITES_MAX, METADATA_VALUE_SIZE_MAX, METADATA_WRITE_ALL_MAX
from engine.metadata.sqlite import SqliteMetadataStore
from engine.metadata.store import (
    ABSENT,
    ConflictError,
    Delete,
    EventKind,
    MetadataStore,
    OutcomeUnknownError,
    Put,
    Stat,
)


async def test_each_has_its_own_outcome(store: MetadataStore, clock: Any):
    held = await store.put("/held", b"0")
    doomed = await store.put("/doomed", b"0")
    clock.now_ms = 2_000
    new, taken, later, gone, absent, old = await store.write_all(
        [
            Put("/new", b"1", ABSENT, partition_key="1", indexes={"i": "k"}),
            Put("/held", b"1", ABSENT),
            Put("/held", b"2", held.version),
            Delete("/doomed"),
            Delete("/nothing"),
            Delete("/doomed", doomed.version),
        ]
    )
    assert doomed.version < new.version < later.version < store.version
    assert new == Stat(new.version, 2_000, 2_000)
    assert later == Stat(later.version, 1_000, 2_000)
    assert (gone, absent) == (True, False)
    assert isinstance(taken, ConflictError)
    assert isinstance(old, ConflictError)
    assert [(record.key, record.value) for record in await store.list("", "z")] == [("/held", b"2"), ("/new", b"1")]
    assert [record.key for _, record in await store.list_index("i", "", "z")] == ["/new"]


async def test_each_finds_what_those_before_it_did(store: MetadataStore):
    first, again, gone, anew = await store.write_all(
        [Put("/a", b"1", ABSENT), Put("/a", b"2", ABSENT), Delete("/a"), Put("/a", b"3", ABSENT)]
    )
    assert isinstance(first, Stat)
    assert isinstance(again, ConflictError)
    assert gone is True
    assert isinstance(anew, Stat)
    assert first.version < anew.version == store.version
    assert [record.value for record in await store.list("", "z")] == [b"3"]


async def test_an_ended_session_is_the_matter_of_its_own_writes(store: MetadataStore):
    lasting, ended = await store.session(), await store.session()
    await ended.close()
    kept, refused, plain = await store.write_all(
        [Put("/a", b"", session=lasting), Put("/b", b"", session=ended), Put("/c", b"")]
    )
    assert isinstance(kept, Stat)
    assert kept.session == lasting.id
    assert isinstance(refused, AlreadyClosedError)
    assert isinstance(plain, Stat)
    await lasting.close()
    assert await store.list_keys("", "z") == ["/c"]


@pytest.mark.parametrize(
    "wrong",
    [Put("", b""), Put("/b", bytes(METADATA_VALUE_SIZE_MAX + 1)), Put("/b", b"", "1"),
     Put("/b", b"", indexes={"i": ()}), Delete("/a", "1"), ("/b", b"")],
)  # fmt: skip
async def test_what_cannot_be_stored_is_refused_whole(store: MetadataStore, wrong: Any):
    before = await store.put("/a", b"")
    with pytest.raises(InvalidArgumentError):
        await store.write_all([Put("/c", b""), wrong, Delete("/a")])
    assert (await store.list_keys("", "z"), store.version) == (["/a"], before.version)


async def test_there_may_be_none_and_only_so_many(store: MetadataStore):
    assert await store.write_all([]) == []
    writes = [Put(f"/{at:04}", b"") for at in range(METADATA_WRITE_ALL_MAX)]
    assert len(await store.write_all(writes)) == METADATA_WRITE_ALL_MAX
    with pytest.raises(InvalidArgumentError, match=f"at most {METADATA_WRITE_ALL_MAX}"):
        await store.write_all([*writes, Put("/more", b"")])
    assert len(await store.list_keys("", "z")) == METADATA_WRITE_ALL_MAX


async def test_nobody_sees_a_part_of_it_and_watches_hear_of_all_in_order(store: MetadataStore):
    await store.put("/b", b"0")
    watch = store.watch("/")
    assert [(await anext(aiter(watch))).kind for _ in range(2)] == [EventKind.PUT, EventKind.SNAPSHOT_END]
    writing = asyncio.ensure_future(store.write_all([Put("/a", b"1"), Delete("/b"), Put("/c", b"1"), Delete("/x")]))
    seen = set()
    while not writing.done():
        seen.add(tuple(await store.list_keys("", "z")))
        await asyncio.sleep(0)
    assert seen <= {("/b",), ("/a", "/c")}
    heard = [await anext(aiter(watch)) for _ in range(3)]
    assert [(event.kind, event.key) for event in heard] == [
        (EventKind.PUT, "/a"), (EventKind.DELETE, "/b"), (EventKind.PUT, "/c"),
    ]  # fmt: skip
    assert [event.version for event in heard] == sorted(event.version for event in heard)


async def test_of_many_at_once_each_key_is_won_once(store: MetadataStore):
    writes = [[Put(f"/{key}", b"%d" % by, ABSENT) for key in range(5)] for by in range(10)]
    found = await asyncio.gather(*map(store.write_all, writes))
    for at, record in enumerate(await store.list("", "z")):
        (winner,) = [by for by, outcomes in enumerate(found) if isinstance(outcomes[at], Stat)]
        assert record.value == b"%d" % winner
    assert len(await store.list_keys("", "z")) == 5


async def test_a_closed_store_says_so(store: MetadataStore):
    await store.close()
    with pytest.raises(AlreadyClosedError):
        await store.write_all([Delete("/a")])


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    return tmp_path / "m.db"


async def test_it_is_one_commit_and_survives_a_restart(path: Path, clock: Any):
    store = await SqliteMetadataStore.open(path, clock=clock)
    await store.put("/b", b"")
    before = store.statistics()
    await store.write_all([Put("/a", b"1", indexes={"i": "k"}), Delete("/b"), Put("/a", b"2", ABSENT)])
    after = store.statistics()
    assert after.commits - before.commits == 1
    assert (after.writes - before.writes, after.conflicts - before.conflicts) == (3, 1)
    await store.close()
    store = await SqliteMetadataStore.open(path, clock=clock)
    assert [(key, record.value) for key, record in await store.list_index("i", "", "z")] == [("k", b"1")]
    assert await store.list_keys("", "z") == ["/a"]
    await store.close()


async def test_a_commit_holds_only_so_many_writes_however_many_each_call_makes(path: Path, clock: Any):
    store = await SqliteMetadataStore.open(path, clock=clock)
    sizes: list[int] = []
    commit = store._image.commit
    store._image.commit = lambda step: (sizes.append(len(step.put)), commit(step))[1]  # type: ignore[assignment]
    calls = METADATA_COMMIT_WRITES_MAX // METADATA_WRITE_ALL_MAX
    many = [[Put(f"/{call}/{at}", b"") for at in range(METADATA_WRITE_ALL_MAX)] for call in range(calls)]
    await asyncio.gather(store.put("/a", b""), *map(store.write_all, many), store.put("/b", b""))
    assert sizes == [METADATA_COMMIT_WRITES_MAX - METADATA_WRITE_ALL_MAX + 1, METADATA_WRITE_ALL_MAX + 1]
    await store.close()


@pytest.mark.parametrize("failure", [DiskFullError("full"), OutcomeUnknownError("the sync failed")])
async def test_a_commit_that_fails_is_told_of_all(path: Path, clock: Any, failure: Exception):
    store = await SqliteMetadataStore.open(path, clock=clock)
    first = await store.put("/a", b"")

    def fail(step: Any) -> None:
        raise failure

    store._image.commit = fail  # type: ignore[method-assign]
    with pytest.raises(type(failure)):
        await store.write_all([Put("/a", b"", ABSENT), Put("/b", b"")])
    assert (await store.list_keys("", "z"), store.version) == (["/a"], first.version)
    await store.close()
