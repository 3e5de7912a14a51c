"""Conformance: a compare-and-set and a new record in one write, both or nothing. Every store passes it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from engine.errors import AlreadyClosedError, InvalidArgumentError
from engine.limits import METADATA_VALUE_SIZE_MAX
from engine.metadata.sqlite import SqliteMetadataStore
from engine.metadata.store import ABSENT, Append, ConflictError, EventKind, MetadataStore, Put, Stat

APPEND = Append("/op/1", b"")


async def everything(store: MetadataStore) -> list[tuple[str, int]]:
    return [(record.key, record.stat.version) for record in await store.list("", "z")]


async def test_both_are_written_the_record_first(store: MetadataStore, clock: Any):
    before = await store.put("/txn/1", b"open")
    clock.now_ms = 2_000
    stat, record = await store.put_with_sequence(
        Put("/txn/1", b"done", before.version, partition_key="1"), Append("/op/1", b"write", "1")
    )
    assert before.version < record.stat.version < stat.version == store.version
    assert stat == Stat(stat.version, 1_000, 2_000, None)
    assert record.stat == Stat(record.stat.version, 2_000, 2_000, None)
    assert (record.key[:6], len(record.key), record.value) == ("/op/1/", 26, b"write")
    assert await store.list("/op/", "/op0") == [record]
    found = await store.get("/txn/1")
    assert found is not None
    assert (found.value, found.stat) == (b"done", stat)


@pytest.mark.parametrize("demand", ["absent", "too old", "too new"])
async def test_a_conflict_writes_nothing(store: MetadataStore, demand: str):
    first = await store.put("/txn/1", b"0", indexes={"state": "open"})
    second = await store.put("/txn/1", b"1", indexes={"state": "open"})
    expected = {"absent": ABSENT, "too old": first.version, "too new": second.version + 1}[demand]
    before = await everything(store)
    with pytest.raises(ConflictError):
        await store.put_with_sequence(
            Put("/txn/1", b"2", expected, indexes={"state": "done"}), Append("/op/1", b"", indexes={"segment": "7"})
        )
    assert await everything(store) == before
    assert await store.list_index("segment", "", "z") == []
    assert [key for key, _ in await store.list_index("state", "", "z")] == ["open"]
    record = await store.get("/txn/1")
    assert record is not None
    assert (record.value, record.stat) == (b"1", second)


async def test_what_is_missing_is_a_conflict_or_made(store: MetadataStore):
    with pytest.raises(ConflictError):
        await store.put_with_sequence(Put("/txn/1", b"", 1), APPEND)
    assert await everything(store) == []
    _, first = await store.put_with_sequence(Put("/txn/1", b"a", ABSENT), APPEND)
    _, second = await store.put_with_sequence(Put("/txn/1", b"b"), APPEND)
    assert await store.list_keys("", "z") == [first.key, second.key, "/txn/1"]
    assert first.key < second.key


async def test_each_has_its_own_indexes(store: MetadataStore):
    before = await store.put("/txn/1", b"", indexes={"deadline": "5"})
    _, record = await store.put_with_sequence(
        Put("/txn/1", b"", before.version, indexes={"final": "9"}),
        Append("/op/1", b"", indexes={"segment": ("7", "8")}),
    )
    assert await store.list_index("deadline", "", "z") == []
    assert [found.key for _, found in await store.list_index("final", "", "z")] == ["/txn/1"]
    assert await store.list_index("segment", "", "z") == [("7", record), ("8", record)]


async def test_watches_hear_of_both_in_order(store: MetadataStore):
    watch, of_header, of_index = store.watch("/"), store.watch("/txn/"), store.watch_index("segment", "7", "8")
    for each in (watch, of_header, of_index):
        assert (await anext(aiter(each))).kind is EventKind.SNAPSHOT_END
    stat, record = await store.put_with_sequence(
        Put("/txn/1", b"", ABSENT), Append("/op/1", b"", indexes={"segment": "7"})
    )
    heard = [await anext(aiter(watch)) for _ in range(2)]
    assert [(e.kind, e.key, e.version) for e in heard] == [
        (EventKind.PUT, record.key, record.stat.version), (EventKind.PUT, "/txn/1", stat.version),
    ]  # fmt: skip
    assert (await anext(aiter(of_header))).version == stat.version
    assert (await anext(aiter(of_index))).record == record


async def test_of_many_at_once_one_wins_and_one_record_is_there(store: MetadataStore):
    before = await store.put("/txn/1", b"")
    puts = [
        store.put_with_sequence(Put("/txn/1", b"%d" % i, before.version), Append("/op/1", b"%d" % i)) for i in range(20)
    ]
    results = await asyncio.gather(*puts, return_exceptions=True)
    (won,) = [i for i, result in enumerate(results) if isinstance(result, tuple)]
    assert sum(isinstance(result, ConflictError) for result in results) == 19
    assert [record.value for record in await store.list("", "z")] == [b"%d" % won] * 2


async def test_sequences_are_shared_with_those_of_single_records(store: MetadataStore):
    one = await store.put_sequence("/op/1", b"")
    _, two = await store.put_with_sequence(Put("/txn/1", b""), APPEND)
    three = await store.put_sequence("/op/1", b"")
    assert one.key < two.key < three.key


@pytest.mark.parametrize("wrong", ["key", "value", "prefix", "appended", "expected", "index"])
async def test_what_cannot_be_stored_is_refused_whole(store: MetadataStore, wrong: str):
    large = bytes(METADATA_VALUE_SIZE_MAX + 1)
    good, bad = Put("/txn/1", b""), Put("/txn/1", b"", "1")  # type: ignore[arg-type]
    put, appended = {
        "key": (Put("", b""), APPEND), "value": (Put("/txn/1", large), APPEND), "expected": (bad, APPEND),
        "prefix": (good, Append("\ud800", b"")), "appended": (good, Append("/op/1", large)),
        "index": (good, Append("/op/1", b"", indexes={"segment": ()})),
    }[wrong]  # fmt: skip
    with pytest.raises(InvalidArgumentError):
        await store.put_with_sequence(put, appended)
    assert await store.list_keys("", "z") == []


async def test_under_a_session_that_ended_nothing_is_written(store: MetadataStore):
    session = await store.session()
    stat, _ = await store.put_with_sequence(Put("/txn/1", b"a", session=session), APPEND)
    assert stat.session == session.id
    await session.close()
    before = await everything(store)
    with pytest.raises(AlreadyClosedError):
        await store.put_with_sequence(Put("/txn/1", b"b", session=session), APPEND)
    assert await everything(store) == before
    assert await store.get("/txn/1") is None


async def test_a_closed_store_says_so(store: MetadataStore):
    await store.close()
    with pytest.raises(AlreadyClosedError):
        await store.put_with_sequence(Put("/txn/1", b""), APPEND)


async def test_both_survive_a_restart(tmp_path: Path, clock: Any):
    path = tmp_path / "m.db"
    store = await SqliteMetadataStore.open(path, clock=clock)
    stat, record = await store.put_with_sequence(
        Put("/txn/1", b"done", ABSENT, indexes={"final": "9"}),
        Append("/op/1", b"write", indexes={"segment": ("7", "8")}),
    )
    await store.close()
    store = await SqliteMetadataStore.open(path, clock=clock)
    assert await store.list("/op/", "/op0") == [record]
    found = await store.get("/txn/1")
    assert found is not None
    assert (found.value, found.stat) == (b"done", stat)
    assert await store.list_index("segment", "", "z") == [("7", record), ("8", record)]
    assert await store.list_index("final", "", "z") == [("9", found)]
    later, after = await store.put_with_sequence(Put("/txn/1", b"", stat.version), APPEND)
    assert stat.version < after.stat.version < later.version
    assert record.key < after.key
    await store.close()
