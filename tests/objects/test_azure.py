"""The object store and the log of a session over Azure's protocol. Azurite is slow: less is stored than on S3."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from engine.errors import AuthorizationError, UnknownOutcomeError
from engine.metadata.memory import MemoryMetadataStore
from engine.storage.objects.format import FENCE, LogName
from engine.storage.objects.remote import RemoteObjectStore
from engine.testing.clock import FakeClock
from tests.kit.azure_server import CONTAINER, AzureServer
from tests.objects import test_store, test_wal

pytestmark = pytest.mark.fuzz


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    started = AzureServer(tmp_path_factory.mktemp("azure"))
    yield started
    started.kill()


@pytest.fixture
async def store(azure: AzureServer, request: pytest.FixtureRequest) -> AsyncIterator[RemoteObjectStore]:
    """The server as a store, below a prefix of the test's own."""
    prefix = "".join(c if c.isalnum() else "-" for c in request.node.name)
    opened = RemoteObjectStore.open(f"az://{CONTAINER}/{prefix}", azure.environment, rng=random.Random(1))
    yield opened
    await opened.close()


@pytest.mark.parametrize(
    "rule",
    [
        test_store.test_what_is_stored_is_read_whole_in_ranges_and_from_the_end,
        test_store.test_of_many_conditional_puts_of_a_name_one_is_accepted,
        test_store.test_a_large_object_is_uploaded_in_parts,
        test_store.test_the_probe_accepts_the_server_and_leaves_nothing,
        test_wal.test_trimmed_objects_are_deleted,
    ],
)
async def test_fuzz_what_s3_does_azure_does(
    store: RemoteObjectStore, rule: Callable[[RemoteObjectStore], Awaitable[None]]
) -> None:
    await rule(store)


async def test_fuzz_lists_are_in_order_and_begin_behind_a_name(store: RemoteObjectStore) -> None:
    names = [f"log/{n:04d}" for n in range(30)]
    await asyncio.gather(*(store.put_if_absent(name, [b"x"]) for name in names))
    await store.put_if_absent("logs", [b"another folder"])
    assert [info.name async for info in store.list("log")] == names
    assert [info.name async for info in store.list("log", after="log/0026")] == names[27:]
    await store.delete([*names[:20], "log/never-there"])
    assert [info.name async for info in store.list("log")] == names[20:]


async def test_fuzz_more_names_than_a_request_takes_are_deleted(store: RemoteObjectStore) -> None:
    """Azure takes 256 in one request."""
    names = [f"log/{n:04d}" for n in range(300)]
    at_once = asyncio.Semaphore(8)

    async def put(name: str) -> None:
        async with at_once:
            await store.put_if_absent(name, [b"x"])

    await asyncio.gather(*(put(name) for name in names))
    assert [info.name async for info in store.list("log")] == names
    await store.delete(names[:-1])
    assert [info.name async for info in store.list("log")] == names[-1:]


async def test_fuzz_r4_r7_a_session_that_was_fenced_acknowledges_nothing_more(store: RemoteObjectStore) -> None:
    metadata = MemoryMetadataStore(FakeClock())
    wal, other = await test_wal.opened(store, metadata, "a"), await test_wal.opened(store, metadata, "b")
    for offset in range(5):
        await wal.append(test_wal.group(offset))
    assert await other.fence("a") == 5
    with pytest.raises(UnknownOutcomeError, match="was fenced at or below 5"):
        await wal.append(test_wal.group(5))
    assert bytes(await store.get(LogName("c", "a").object(5))) == FENCE
    found = await test_wal.read(other, "a", 0, 5)
    assert found == {offset: b"".join(test_wal.group(offset).buffers) for offset in range(5)}
    for each in (wal, other):
        await each.writer.close()


async def test_fuzz_wrong_credentials_are_a_typed_error(azure: AzureServer) -> None:
    environment = azure.environment | {"AZURE_STORAGE_ACCOUNT_KEY": "YW5vdGhlcg=="}
    store = RemoteObjectStore.open(f"az://{CONTAINER}/x", environment, rng=random.Random(1))
    with pytest.raises(AuthorizationError, match="refused the request: 403"):
        await store.get("a")
