"""Conformance: records, compare-and-set, ranges, sequence keys, sessions, limits. Every store passes it."""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import AlreadyClosedError, InvalidArgumentError
from engine.limits import METADATA_KEY_SIZE_MAX, METADATA_VALUE_SIZE_MAX
from engine.metadata.store import ABSENT, ConflictError, EventKind, MetadataStore, Stat


async def test_a_put_is_read_back_with_its_facts(store, clock):
    stat = await store.put("/a", b"1")
    assert stat == Stat(store.version, 1_000, 1_000, None)
    record = await store.get("/a")
    assert (record.key, record.value, record.stat) == ("/a", b"1", stat)


async def test_absent_is_none(store):
    assert await store.get("/nothing") is None


async def test_a_rewrite_keeps_the_creation_time_and_raises_the_version(store, clock):
    first = await store.put("/a", b"1")
    clock.now_ms = 2_000
    second = await store.put("/a", b"2")
    assert second.version > first.version
    assert (second.created_ms, second.modified_ms) == (1_000, 2_000)


async def test_versions_rise_over_delete_and_put(store):
    first = await store.put("/a", b"1")
    assert await store.delete("/a")
    second = await store.put("/a", b"2", ABSENT)
    assert second.version > first.version


async def test_absent_demands_absence(store):
    await store.put("/a", b"1", ABSENT)
    with pytest.raises(ConflictError):
        await store.put("/a", b"2", ABSENT)
    assert (await store.get("/a")).value == b"1"


async def test_a_version_demands_itself(store):
    first = await store.put("/a", b"1")
    second = await store.put("/a", b"2", first.version)
    with pytest.raises(ConflictError):
        await store.put("/a", b"3", first.version)
    with pytest.raises(ConflictError):
        await store.delete("/a", first.version)
    assert await store.delete("/a", second.version)
    with pytest.raises(ConflictError):
        await store.put("/a", b"4", second.version)


async def test_m1_of_many_compare_and_sets_at_once_one_wins(store):
    first = await store.put("/a", b"")
    puts = [store.put("/a", str(i).encode(), first.version) for i in range(50)]
    results = await asyncio.gather(*puts, return_exceptions=True)
    won = [i for i, result in enumerate(results) if isinstance(result, Stat)]
    assert len(won) == 1
    assert sum(isinstance(result, ConflictError) for result in results) == 49
    assert (await store.get("/a")).value == str(won[0]).encode()


async def test_m1_concurrent_increments_are_all_counted(store):
    await store.put("/n", b"0")

    async def increment() -> None:
        while True:
            record = await store.get("/n")
            try:
                await store.put("/n", str(int(record.value) + 1).encode(), record.stat.version)
            except ConflictError:
                await asyncio.sleep(0)
            else:
                return

    await asyncio.gather(*(increment() for _ in range(30)))
    assert (await store.get("/n")).value == b"30"


async def test_delete_tells_whether_there_was_one(store):
    await store.put("/a", b"")
    assert await store.delete("/a") is True
    assert await store.delete("/a") is False
    assert await store.get("/a") is None


async def test_delete_demands(store):
    await store.put("/a", b"")
    with pytest.raises(ConflictError):
        await store.delete("/a", ABSENT)
    assert await store.delete("/b", ABSENT) is False


async def test_ranges_are_half_open_and_ordered_by_code_point(store):
    keys = ["/a", "/a/b", "/a/\u00e9", "/a/\uffee", "/a/\U0001f600", "/b", "/a0"]
    for key in keys:
        await store.put(key, key.encode())
    assert await store.list_keys("/a/", "/a0") == ["/a/b", "/a/\u00e9", "/a/\uffee", "/a/\U0001f600"]
    assert [r.value.decode() for r in await store.list("/", "0")] == sorted(keys)
    assert await store.list_keys("/", "0", limit=2) == ["/a", "/a/b"]
    assert await store.list_keys("/", "0", limit=0) == []
    assert await store.list_keys("/b", "/a") == []


async def test_a_range_over_thousands_of_keys(store):
    for first in range(0, 3_000, 250):  # each within the time limit of a store's call, on a loaded machine too
        await asyncio.gather(*(store.put(f"/n/{i:05d}", b"") for i in range(first, first + 250)))
    assert await store.list_keys("/n/01000", "/n/02000") == [f"/n/{i:05d}" for i in range(1000, 2000)]
    assert await store.delete_range("/n/00500", "/n/02500") == 2_000
    assert await store.list_keys("/n/", "/n0") == [f"/n/{i:05d}" for i in [*range(500), *range(2500, 3000)]]


async def test_delete_range_is_atomic_and_counts(store):
    for key in ("/a", "/b/1", "/b/2", "/c"):
        await store.put(key, b"")
    assert await store.delete_range("/b/", "/b0") == 2
    assert await store.list_keys("/", "0") == ["/a", "/c"]
    assert await store.delete_range("/b/", "/b0") == 0


async def test_delete_range_sees_writes_queued_before_it(store):
    _, deleted = await asyncio.gather(store.put("/b/1", b""), store.delete_range("/b/", "/b0"))
    assert deleted == 1
    assert await store.get("/b/1") is None


async def test_m4_sequence_keys_are_unique_and_rise(store):
    records = await asyncio.gather(*(store.put_sequence("/s", str(i).encode()) for i in range(100)))
    keys = [record.key for record in records]
    assert keys == sorted(set(keys))
    assert all(len(key) == len("/s/") + 20 for key in keys)
    assert await store.list_keys("/s/", "/s0") == keys


async def test_m4_a_deleted_sequence_key_is_not_used_again(store):
    first = await store.put_sequence("/s", b"")
    await store.delete_range("/", "0")
    second = await store.put_sequence("/s", b"")
    assert second.key > first.key


async def test_m4_a_sequence_goes_around_a_key_that_is_there(store):
    squatter = f"/s/{store.version + 2:020d}"
    await store.put(squatter, b"mine")
    record = await store.put_sequence("/s", b"")
    assert record.key > squatter
    assert (await store.get(squatter)).value == b"mine"


async def test_m3_ephemerals_vanish_with_their_session(store):
    session = await store.session()
    other = await store.session()
    stat = await store.put("/e/1", b"", session=session)
    assert stat.session == session.id != other.id
    await store.put("/e/2", b"", session=other)
    await store.put("/e/3", b"")
    await session.close()
    assert await store.list_keys("/e/", "/e0") == ["/e/2", "/e/3"]
    await session.close()


async def test_m3_an_ephemeral_put_again_without_session_stays(store):
    session = await store.session()
    await store.put("/e", b"", session=session)
    await store.put("/e", b"kept")
    await session.close()
    assert (await store.get("/e")).value == b"kept"


async def test_m3_an_ended_session_writes_nothing(store):
    session = await store.session()
    await session.close()
    with pytest.raises(AlreadyClosedError):
        await store.put("/e", b"", session=session)
    assert await store.get("/e") is None


async def test_m3_a_put_behind_the_end_of_its_session_is_refused(store):
    session = await store.session()
    results = await asyncio.gather(
        store.put("/e/1", b"", session=session),
        session.close(),
        store.put("/e/2", b"", session=session),
        return_exceptions=True,
    )
    assert isinstance(results[2], AlreadyClosedError)
    assert await store.list_keys("/e/", "/e0") == []


async def test_partition_keys_are_taken(store):
    await store.put("/a", b"", partition_key="p")
    record = await store.put_sequence("/s", b"", partition_key="p")
    assert await store.get(record.key) == record


@pytest.mark.parametrize("key", ["", None, 7, "\ud800", "k" * (METADATA_KEY_SIZE_MAX + 1)])
async def test_bad_keys_are_refused(store, key):
    with pytest.raises(InvalidArgumentError):
        await store.put(key, b"")


@pytest.mark.parametrize("value", [None, "text", 7, bytes(METADATA_VALUE_SIZE_MAX + 1)])
async def test_bad_values_are_refused(store, value):
    with pytest.raises(InvalidArgumentError):
        await store.put("/a", value)


@pytest.mark.parametrize("expected", [None, "absent", 1.5, True])
async def test_bad_expectations_are_refused(store, expected):
    with pytest.raises(InvalidArgumentError):
        await store.put("/a", b"", expected)


async def test_the_largest_value_fits(store):
    value = bytes(range(256)) * (METADATA_VALUE_SIZE_MAX // 256)
    await store.put("/a", value)
    assert (await store.get("/a")).value == value


async def test_a_value_is_copied(store):
    value = bytearray(b"before")
    put = asyncio.ensure_future(store.put("/a", value))
    await put
    value[:] = b"behind"
    assert (await store.get("/a")).value == b"before"


async def test_a_cancelled_write_leaves_the_store_sound(store):
    puts = [asyncio.ensure_future(store.put(f"/c/{i}", b"")) for i in range(20)]
    await asyncio.sleep(0)
    for put in puts[::2]:
        put.cancel()
    await asyncio.gather(*puts, return_exceptions=True)
    await store.put("/c/last", b"")
    present = await store.list_keys("/c/", "/c0")
    assert {f"/c/{i}" for i in range(1, 20, 2)} <= set(present)


async def test_after_close_everything_says_so(store: MetadataStore):
    session = await store.session()
    await store.close()
    await store.close()
    calls = [
        store.get("/a"),
        store.put("/a", b""),
        store.delete("/a"),
        store.list("/", "0"),
        store.list_keys("/", "0"),
        store.list_index("i", "", "z"),
        store.delete_range("/", "0"),
        store.put_sequence("/s", b""),
        store.write_all([]),
        store.session(),
    ]
    for call in calls:
        with pytest.raises(AlreadyClosedError):
            await call
    with pytest.raises(AlreadyClosedError):
        store.watch("/")
    with pytest.raises(AlreadyClosedError):
        store.watch_index("i", "a", "z")
    await session.close()


async def test_secondary_index_is_in_step_with_its_records(store):
    await store.put("/t/1", b"", indexes={"size": "b", "color": "red"})
    await store.put("/t/2", b"", indexes={"size": "a"})
    await store.put("/t/3", b"", indexes={"size": "b"})
    found = await store.list_index("size", "a", "c")
    assert [(index_key, record.key) for index_key, record in found] == [("a", "/t/2"), ("b", "/t/1"), ("b", "/t/3")]
    assert len(await store.list_index("size", "a", "b")) == 1
    assert len(await store.list_index("size", "a", "c", limit=2)) == 2
    await store.put("/t/1", b"", indexes={"size": "c"})
    assert [r.key for _, r in await store.list_index("size", "b", "d")] == ["/t/3", "/t/1"]
    assert await store.list_index("color", "", "z") == []
    await store.delete("/t/3")
    assert [r.key for _, r in await store.list_index("size", "b", "d")] == ["/t/1"]
    assert await store.list_index("unknown", "", "z") == []


async def test_a_put_without_indexes_takes_the_record_out_of_all(store):
    await store.put("/t/1", b"", indexes={"size": "b", "color": "red"})
    watch = store.watch_index("size", "a", "c")
    assert [(await anext(watch)).kind for _ in range(2)] == [EventKind.PUT, EventKind.SNAPSHOT_END]
    await store.put("/t/1", b"1")
    event = await anext(watch)
    assert (event.kind, event.key) == (EventKind.DELETE, "/t/1")
    for index in ("size", "color"):
        assert await store.list_index(index, "", "z") == []
    assert (await store.get("/t/1")).value == b"1"


async def test_a_conflict_leaves_the_index_alone(store):
    await store.put("/t/1", b"", indexes={"size": "b"})
    with pytest.raises(ConflictError):
        await store.put("/t/1", b"", ABSENT, indexes={"size": "z"})
    assert [k for k, _ in await store.list_index("size", "", "zz")] == ["b"]


async def test_a_record_can_have_several_keys_in_an_index(store):
    record = await store.put_sequence("/op", b"", indexes={"segment": ("7", "9", "7"), "size": "b"})
    watch = store.watch_index("segment", "9", "a")
    assert [(await anext(watch)).kind for _ in range(2)] == [EventKind.PUT, EventKind.SNAPSHOT_END]
    assert await store.list_index("segment", "7", "a") == [("7", record), ("9", record)]
    assert await store.list_index("segment", "9", "a") == [("9", record)]
    await store.put(record.key, b"", indexes={"segment": ("7",)})
    assert [k for k, _ in await store.list_index("segment", "", "a")] == ["7"]
    assert (await anext(watch)).kind is EventKind.DELETE
    await store.delete(record.key)
    assert await store.list_index("segment", "", "a") == []
    with pytest.raises(InvalidArgumentError, match="at least one"):
        await store.put("/t", b"", indexes={"segment": ()})
    for wrong in ((1,), ("7", []), ("7", "")):
        for _ in range(2):  # the second is not taken for one that was checked
            with pytest.raises(InvalidArgumentError):
                await store.put("/t", b"", indexes={"segment": wrong})


async def test_sequence_records_can_be_indexed(store):
    record = await store.put_sequence("/op", b"", indexes={"segment": "7"})
    assert await store.list_index("segment", "7", "8") == [("7", record)]
