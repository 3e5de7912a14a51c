"""Conformance: a write that demands the states of other records in the same moment. Every store passes it."""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import InvalidArgumentError
from engine.limits import METADATA_ALSO_MAX
from engine.metadata.store import ABSENT, ANY, Append, ConflictError, Delete, MetadataStore, Put, Stat


async def test_a_write_takes_place_where_all_that_it_demands_is_so(store: MetadataStore):
    other = await store.put("/other", b"0")
    first = await store.put("/a", b"1", ABSENT, also={"/other": other.version, "/none": ABSENT, "/any": ANY})
    found = await store.get("/other")
    assert found is not None
    assert found.stat == other  # it is not written
    again = await store.put("/a", b"2", first.version, also={"/other": other.version}, indexes={"i": "k"})
    assert again.version > first.version
    assert [record.value for _, record in await store.list_index("i", "", "z")] == [b"2"]


async def test_nothing_is_written_where_another_key_is_not_so(store: MetadataStore):
    other = await store.put("/other", b"0")
    mine = await store.put("/a", b"0")
    moved = await store.put("/other", b"1")
    with pytest.raises(ConflictError, match="'/other' is at version"):
        await store.put("/a", b"1", mine.version, also={"/other": other.version})
    with pytest.raises(ConflictError, match="'/other' is at version"):
        await store.put("/new", b"1", ABSENT, also={"/other": ABSENT})
    await store.delete("/other", moved.version)
    with pytest.raises(ConflictError, match="'/other' is absent"):
        await store.put("/a", b"1", also={"/other": moved.version})
    assert [(record.key, record.value) for record in await store.list("", "z")] == [("/a", b"0")]


async def test_a_demand_of_a_key_that_was_never_read_is_checked(store: MetadataStore):
    with pytest.raises(ConflictError, match="'/never' is absent"):
        await store.put("/a", b"1", also={"/never": 7})
    assert await store.get("/a") is None


async def test_of_writes_at_once_each_sees_those_before_it(store: MetadataStore):
    other = await store.put("/other", b"0")
    outcomes = await store.write_all(
        [
            Put("/a", b"1", also={"/other": other.version}),
            Put("/other", b"1", other.version, also={"/a": ABSENT}),
            Put("/other", b"2", other.version),
            Put("/b", b"1", also={"/other": other.version}),
            Delete("/a"),
            Put("/c", b"1", also={"/a": ABSENT}),
        ]
    )
    kinds = [type(outcome) for outcome in outcomes]
    assert kinds == [Stat, ConflictError, Stat, ConflictError, bool, Stat]
    values = {record.key: record.value for record in await store.list("", "z")}
    assert values == {"/other": b"2", "/c": b"1"}


async def test_a_write_with_a_sequence_is_done_with_it_or_not_at_all(store: MetadataStore):
    other = await store.put("/other", b"0")
    appended = Append("/s", b"s")
    with pytest.raises(ConflictError, match="'/other'"):
        await store.put_with_sequence(Put("/a", b"1", also={"/other": ABSENT}), appended)
    assert [record.key for record in await store.list("", "z")] == ["/other"]
    await store.put_with_sequence(Put("/a", b"1", also={"/other": other.version}), appended)
    assert len(await store.list("", "z")) == 3


async def test_of_many_that_demand_each_others_absence_one_wins(store: MetadataStore):
    """Each of two keys may be there only without the other."""
    for n in range(10):
        one, two = f"/{n}/one", f"/{n}/two"
        outcomes = await asyncio.gather(
            *(store.put(one, b"", ABSENT, also={two: ABSENT}) for _ in range(3)),
            *(store.put(two, b"", ABSENT, also={one: ABSENT}) for _ in range(3)),
            return_exceptions=True,
        )
        assert sum(isinstance(outcome, Stat) for outcome in outcomes) == 1
        assert sum(isinstance(outcome, ConflictError) for outcome in outcomes) == 5


async def test_as_many_keys_as_the_limit_and_no_more(store: MetadataStore):
    stats = [await store.put(f"/k/{n}", b"") for n in range(METADATA_ALSO_MAX)]
    also = {f"/k/{n}": stat.version for n, stat in enumerate(stats)}
    outcomes = await store.write_all([Put(f"/a/{n}", b"", also=also) for n in range(40)])
    assert all(isinstance(outcome, Stat) for outcome in outcomes)
    with pytest.raises(InvalidArgumentError, match="at most"):
        await store.put("/a", b"", also={**also, "/more": ANY})
    with pytest.raises(InvalidArgumentError, match="expected must be"):
        await store.put("/a", b"", also={"/k/0": "1"})  # type: ignore[dict-item]
