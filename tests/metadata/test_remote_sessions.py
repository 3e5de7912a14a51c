"""Sessions of a store in another process whose end fails, or is late."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.errors import AlreadyClosedError, DiskFullError, TimeoutError
from tests.kit.peer import until
from tests.metadata.served import Gated, Served, gated


@pytest.fixture
async def unix(tmp_path: Path) -> AsyncIterator[Served]:
    async with Served(Gated(), "unix", tmp_path) as made:
        yield made


async def test_a_session_that_could_not_be_deleted_has_ended_and_is_deleted_later(unix: Served) -> None:
    client, store = await unix.client(), gated(unix)
    session = await client.session(30.0)
    await client.put("/a", b"", session=session)
    store.failure = DiskFullError("the disk must have space, got none")
    with pytest.raises(DiskFullError):
        await unix.service.sessions.end(session.id)
    with pytest.raises(AlreadyClosedError):
        await session.refresh()
    with pytest.raises(AlreadyClosedError):
        await client.put("/b", b"", session=session)
    failed = store.calls
    await until(lambda: store.calls > failed)  # it is tried again, and fails again
    assert await store.list_keys("/", "0") == ["/a"]
    store.failure = None
    await until(lambda: session.id not in store._table.sessions)
    assert await store.list_keys("/", "0") == []
    assert not unix.service.sessions._ending
    assert not unix.service.sessions._timers


async def test_an_expired_session_that_could_not_be_deleted_is_deleted_later(unix: Served) -> None:
    client, store = await unix.client(), gated(unix)
    session = await client.session(0.1)
    await client.put("/a", b"", session=session)
    store.failure = DiskFullError("the disk must have space, got none")
    before = store.calls
    await until(lambda: store.calls > before)
    store.failure = None
    await until(lambda: session.id not in store._table.sessions)
    assert await store.list_keys("/", "0") == []


async def test_an_overdue_end_of_a_session_that_was_sent_does_not_say_that_nothing_was_done(tmp_path: Path) -> None:
    async with Served(Gated(), "unix", tmp_path, timeout=0.2) as served:
        client, store = await served.client(), gated(served)
        session, other = await client.session(), await client.session()
        await client.put("/a", b"", session=session)
        store.gate.clear()
        try:
            with pytest.raises(TimeoutError, match=r"did not answer within 0.2 s; it was sent, and may have been done"):
                await session.close()
        finally:
            store.gate.set()
        assert await client.get("/a") is None
        await served.stop()
        await until(lambda: not client.connected)
        with pytest.raises(TimeoutError, match="nothing was done"):
            await other.close()
