"""Grants that a build from before the index of grants by role has written are put into it, page by page."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine.broker.rights.indexing import PAGE, index_grants
from engine.broker.rights.records import INDEX_GRANTS
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import OutcomeUnknownError
from engine.testing.clock import FakeClock
from tests.broker.test_followed_grants import write, write_as_before


@pytest.fixture
async def store() -> AsyncIterator[MemoryMetadataStore]:
    found = MemoryMetadataStore(FakeClock())
    yield found
    await found.close()


async def test_all_pages_are_put_again_and_what_has_the_index_is_left_alone(store: MemoryMetadataStore) -> None:
    count = 2 * PAGE + 7
    for number in range(count):
        await write_as_before(store, f"t{number}", f"role-{number % 30}", "consume")
    await store.put("/grants/t0/new", b'{"rights": ["fly"], "subscriptionPrefix": "x", "more": 1}')
    await store.put("/grants/t0/damaged", b"{")
    await store.put("/grants/t0/no-object", b"[]")
    await store.put("/grants/malformed", b"{}")
    await write(store, "t1", "indexed", "produce")
    before = {record.key: record for record in await store.newest.list("/", "0")}
    assert await index_grants(store) == count + 1
    found = await store.newest.list_index(INDEX_GRANTS, "", keys.LAST)
    assert len(found) == count + 2
    after = {record.key: record for record in await store.newest.list("/", "0")}
    assert after.keys() == before.keys()
    kept = {key for key in after if after[key] == before[key]}
    assert kept == {keys.grant("t1", "indexed"), "/grants/t0/damaged", "/grants/t0/no-object", "/grants/malformed"}
    assert json.loads(after["/grants/t0/new"].value) == {
        "rights": ["fly"], "subscriptionPrefix": "x", "more": 1, "role": "new",
    }  # fmt: skip
    assert await index_grants(store) == 0
    assert {record.key: record for record in await store.newest.list("/", "0")} == after


@pytest.mark.parametrize("done", [True, False])
async def test_what_is_changed_while_it_is_put_again_is_looked_at_once_more(
    store: MemoryMetadataStore, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    """Also where the outcome of the first call is unknown, and it was done or not."""
    for role in ("ann", "bob", "cid"):
        await write_as_before(store, "t", role, "consume")
    real, calls = store.write_all, 0

    async def write_all(writes: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            await write_as_before(store, "t", "ann", "produce")
            await write(store, "t", "bob", "produce")
            await store.delete(keys.grant("t", "cid"))
            if done:
                await real(writes)
            raise OutcomeUnknownError("the connection is lost")
        return await real(writes)

    monkeypatch.setattr(store, "write_all", write_all)
    await index_grants(store)
    found = await store.newest.list_index(INDEX_GRANTS, "", keys.LAST)
    assert [(key, json.loads(record.value)) for key, record in found] == [
        ("ann/t", {"rights": ["produce"], "role": "ann"}),
        ("bob/t", {"rights": ["produce"], "role": "bob"}),
    ]
    assert await store.newest.get(keys.grant("t", "cid")) is None
