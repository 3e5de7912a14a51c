"""What follows the process that serves: it outlives whatever fails, and those that wait are told what that was."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from engine.broker.server import Broker
from engine.client import AsyncClient
from engine.embedded import shared
from engine.embedded.doors import Doors
from engine.embedded.shared import SharedEngine
from engine.embedded.terms import Terms
from engine.errors import StorageError
from engine.metadata.store import OutcomeUnknownError
from tests.kit.peer import until
from tests.shared.members import shared_engine

BOUND_S = 60
ERRORS = [OutcomeUnknownError("a sync failed"), OSError(errno.EMFILE, os.strerror(errno.EMFILE)), KeyError("k")]

Make = Callable[[], SharedEngine]


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Make]:
    """Makes engines of one directory, which know nothing of each other, as those of two processes."""
    engines: list[SharedEngine] = []

    def make() -> SharedEngine:
        engines.append(shared_engine(tmp_path))
        return engines[-1]

    yield make
    for engine in engines:
        await engine.close()


async def opened(engine: SharedEngine, doors: Doors = Doors()) -> SharedEngine:  # noqa: B008 - it is frozen
    await asyncio.wait_for(engine.open(Terms({}), doors), BOUND_S)
    return engine


class Start:
    """Broker.start(), which raises `error`, if there is one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: Exception | None = None
        start = Broker.start

        async def fail_or_start(broker: Broker) -> None:
            if self.error is not None:
                raise self.error
            await start(broker)

        monkeypatch.setattr(Broker, "start", fail_or_start)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_takeover_that_fails_is_told_and_repeated(
    made: Make, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    monkeypatch.setattr(shared, "AGAIN_S", 0.01)
    first, second = await opened(made()), await opened(made())
    assert await second.reached() is None
    start = Start(monkeypatch)
    start.error = error
    await first.close()
    with pytest.raises(StorageError, match=f"cannot be opened: {type(error).__name__}") as told:
        await asyncio.wait_for(second.reached(), BOUND_S)
    assert told.value.__cause__ is error
    start.error = None
    await until(lambda: second.broker is not None)
    assert await second.reached() is second.broker


@pytest.mark.parametrize("error", ERRORS[:2], ids=lambda error: type(error).__name__)
async def test_a_first_opening_that_fails_is_a_typed_error(
    made: Make, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    start = Start(monkeypatch)
    start.error = error
    engine = made()
    with pytest.raises(StorageError, match=f"cannot be opened: {type(error).__name__}"):
        await opened(engine)
    start.error = None
    await opened(engine)
    assert engine.broker is not None


@pytest.mark.parametrize("other", [False, True])
async def test_an_engine_whose_metadata_store_has_stopped_gives_the_directory_up(
    made: Make, monkeypatch: pytest.MonkeyPatch, *, other: bool
):
    monkeypatch.setattr(shared, "TROUBLE_S", 0.01)
    first = await opened(made())
    second = await opened(made()) if other else first
    broker = first.broker
    assert broker is not None
    store = broker._own_metadata
    assert store is not None
    store._failure = "a sync failed"
    await until(lambda: first.broker is not broker)
    await until(lambda: first.broker is not None or second.broker is not None)
    async with asyncio.timeout(BOUND_S):
        served = [await engine.reached() for engine in (first, second)]
    assert any(served)
    assert broker not in served
    assert broker.closing


class Closing:
    """Broker.close(), which waits for `go` before it breaks connections."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        close = Broker.close

        async def wait_and_close(broker: Broker) -> None:
            self.begun.set()
            await self.go.wait()
            await close(broker)

        monkeypatch.setattr(Broker, "close", wait_and_close)


@pytest.mark.parametrize("further", [True, False], ids=["further handle", "first handle"])
async def test_a_handle_that_is_opened_while_the_serving_process_ends(
    made: Make, monkeypatch: pytest.MonkeyPatch, *, further: bool
):
    first, second = await opened(made()), made()
    if further:
        await opened(second)
    asked = asyncio.Event()
    answer = first._answer

    async def answered(method: str, args: Mapping[str, Any]) -> Any:
        asked.set()
        return await answer(method, args)

    assert first.broker is not None
    object.__setattr__(first.broker.joinable, "answer", answered)
    closing = Closing(monkeypatch)
    ending = asyncio.ensure_future(first.close())
    await closing.begun.wait()  # it does not serve any more, and its socket answers
    opening = asyncio.ensure_future(opened(second))
    await asyncio.wait_for(asked.wait(), BOUND_S)
    closing.go.set()
    await opening
    await ending
    assert second.broker is not None


async def test_a_further_handle_whose_connection_is_lost_while_it_joins(made: Make, monkeypatch: pytest.MonkeyPatch):
    first, second = await opened(made()), await opened(made())
    closing = asyncio.Event()
    never = asyncio.Event()

    async def silent(method: str, args: Mapping[str, Any]) -> None:
        closing.set()
        await never.wait()

    assert first.broker is not None
    object.__setattr__(first.broker.joinable, "answer", silent)
    opening = asyncio.ensure_future(opened(second))
    await asyncio.wait_for(closing.wait(), BOUND_S)
    await first.close()
    await opening
    assert second.broker is not None


class Held:
    """A socket that this process keeps on an address of the process that served, as if that was still ending."""

    def __init__(self, serving: SharedEngine, port: int) -> None:
        assert serving.broker is not None
        listening = [socket.socket(fileno=os.dup(number)) for number in serving.broker.descriptors()]
        tcp = [one for one in listening if one.family is socket.AF_INET]
        self._held = [one for one in tcp if one.getsockname()[1] == port]
        for one in listening:
            if one not in self._held:
                one.close()
        assert self._held

    def release(self) -> None:
        for one in self._held:
            one.close()


@pytest.mark.parametrize("itself", [True, False], ids=["the one that asked takes over", "another one takes over"])
async def test_an_address_that_is_in_use_at_a_takeover_is_bound_as_soon_as_it_can_be(
    made: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, *, itself: bool
):
    first, other = await opened(made()), made()
    asks = await opened(made(), Doors(("127.0.0.1", 0), ("127.0.0.1", 0)))
    url, admin_url = asks.service_url, asks.admin_url
    assert admin_url is not None
    held = Held(first, int(url.rsplit(":", 1)[1]))
    if not itself:
        look, serves = asks._look, asyncio.Event()

        async def look_later() -> None:
            await serves.wait()
            await look()

        monkeypatch.setattr(asks, "_look", look_later)
        await opened(other)
    await first.close()
    if not itself:
        await until(lambda: other.broker is not None)
        serves.set()
    await until(lambda: "it is tried again until it can be bound" in caplog.text)
    assert (await asks.reached() is not None) == itself
    await until(lambda: asks.admin_url == admin_url)  # the other address is served
    assert asks.service_url.startswith("engine+unix:")
    held.release()
    await until(lambda: asks.service_url == url)
    async with AsyncClient(url) as client:
        assert await client.list_topics() == []
