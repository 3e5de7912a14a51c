"""The object store and the log of a session over Google's protocol, against a stand-in (tests/kit/gcs_server.py)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from engine.errors import UnknownOutcomeError, UnsupportedError
from engine.metadata.memory import MemoryMetadataStore
from engine.storage.objects import requests
from engine.storage.objects.probe import probe
from engine.storage.objects.remote import RemoteObjectStore
from engine.testing.clock import FakeClock
from tests.kit.gcs_server import BUCKET, GcsServer
from tests.objects import test_store, test_wal


@pytest.fixture
async def google() -> AsyncIterator[GcsServer]:
    async with GcsServer() as started:
        yield started


@pytest.fixture
async def store(google: GcsServer) -> AsyncIterator[RemoteObjectStore]:
    opened = RemoteObjectStore.open(f"gs://{BUCKET}/some/prefix", google.environment, rng=random.Random(1))
    yield opened
    await opened.close()


@pytest.mark.parametrize(
    "rule",
    [
        test_store.test_what_is_stored_is_read_whole_in_ranges_and_from_the_end,
        test_store.test_of_many_conditional_puts_of_a_name_one_is_accepted,
        test_store.test_lists_are_in_order_and_begin_behind_a_name,
        test_store.test_a_large_object_is_uploaded_in_parts,
        test_store.test_the_probe_accepts_the_server_and_leaves_nothing,
        test_wal.test_trimmed_objects_are_deleted,
        test_wal.test_r4_a_fence_against_puts_in_flight,
    ],
)
async def test_what_s3_does_google_does(
    store: RemoteObjectStore, rule: Callable[[RemoteObjectStore], Awaitable[None]]
) -> None:
    await rule(store)


async def test_a_put_is_conditional_by_the_generation_that_there_is_none(
    store: RemoteObjectStore, google: GcsServer
) -> None:
    await store.put_if_absent("a", [b"x"])
    ((method, name, headers),) = google.asked
    assert (method, name) == ("PUT", "some/prefix/a")
    assert headers["x-goog-if-generation-match"] == "0"


async def test_a_store_that_ignores_the_condition_is_refused(
    store: RemoteObjectStore, google: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As emulators do, which is why none of them stands here."""
    real = GcsServer._put
    monkeypatch.setattr(GcsServer, "_put", lambda self, name, body, generation: real(self, name, body, None))
    with pytest.raises(UnsupportedError, match="accepts two conditional PUTs"):
        await probe(store, random.Random(2))
    assert google.objects == {}


async def test_each_object_is_deleted_by_a_request_that_is_paced_and_counted(
    store: RemoteObjectStore, google: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Google's XML API deletes one object a request."""
    turns = []
    real = requests._Rate.turn

    async def turn(rate: requests._Rate) -> None:
        turns.append(rate)
        await real(rate)

    names = [f"log/{number}" for number in range(30)]
    for name in names[1:]:
        await store.put_if_absent(name, [b"x"])
    google.asked.clear()
    monkeypatch.setattr(requests._Rate, "turn", turn)
    await store.delete(names)
    assert google.objects == {}
    assert [method for method, _, _ in google.asked] == ["DELETE"] * len(names)
    assert len(turns) == store.statistics().requests["delete"] == len(names)


async def test_a_store_that_is_asked_too_often_is_asked_less_and_it_is_counted(
    store: RemoteObjectStore, google: GcsServer
) -> None:
    before = store.statistics().per_s
    google.slow = 1
    with pytest.raises(UnknownOutcomeError, match="503"):
        await store.put_if_absent("a", [b"x"])
    google.slow = 2
    assert [info async for info in store.list("log")] == [], "what may be repeated is"
    assert store.statistics().slow_downs == 3
    assert store.statistics().per_s < before
    metadata = MemoryMetadataStore(FakeClock())
    wal = await test_wal.opened(store, metadata, "a")
    google.slow = 2
    appends = [asyncio.ensure_future(wal.append(test_wal.group(offset))) for offset in range(3)]
    assert await asyncio.gather(*appends) == [0, 0, 0]
    assert store.statistics().slow_downs > 3
    await wal.writer.close()
