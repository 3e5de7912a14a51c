"""The brokers that live, and what becomes of one that the metadata store has lost sight of."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from engine.control.base.brokers import Brokers
from engine.errors import NotOwnerError
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.testing.clock import LoopClock
from engine.testing.loop import run_virtual
from engine.testing.metadata import FaultyMetadataStore

TIMEOUT_S = 5.0


class Place:
    """A store, and brokers on it."""

    def __init__(self) -> None:
        self.clock = LoopClock(asyncio.get_running_loop())
        self.root = MemoryMetadataStore(self.clock, leases=True)
        self.lines: dict[str, FaultyMetadataStore] = {}

    async def broker(self, name: str) -> Brokers:
        line = self.lines[name] = FaultyMetadataStore(self.root.client(), random.Random(name))
        broker = Brokers(
            line, clock=self.clock, url=f"engine://{name}", admin_url=f"http://{name}", session_timeout=TIMEOUT_S
        )
        await broker.start()
        return broker


def run(body: Callable[[Place], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await body(Place())

    run_virtual(main())


def urls(broker: Brokers) -> list[str]:
    return sorted(broker.live)


def test_brokers_see_each_other_come_and_go() -> None:
    async def body(place: Place) -> None:
        a = await place.broker("a")
        assert a.alone
        changes: list[list[str]] = []
        a.changed.append(lambda: changes.append(urls(a)))
        b = await place.broker("b")
        await asyncio.sleep(0.1)
        assert urls(a) == urls(b) == ["engine://a", "engine://b"]
        assert not a.alone
        assert a.live["engine://b"].admin_url == "http://b"
        await b.close()
        await asyncio.sleep(0.1)
        assert urls(a) == ["engine://a"]
        assert changes == [["engine://a", "engine://b"], ["engine://a"]]
        await a.close()
        assert not await place.root.list_keys(keys.BROKERS, keys.prefix_end(keys.BROKERS))

    run(body)


def test_a_live_broker_keeps_its_session() -> None:
    async def body(place: Place) -> None:
        a = await place.broker("a")
        session = await a.session()
        await asyncio.sleep(20 * TIMEOUT_S)
        assert await a.session() is session
        await a.close()

    run(body)


def test_a_broker_out_of_reach_loses_everything_and_registers_again() -> None:
    async def body(place: Place) -> None:
        a, b = await place.broker("a"), await place.broker("b")
        first, lost = await a.session(), []
        a.lost.append(lambda: lost.append(place.clock.monotonic()))
        deadline = first.deadline
        place.lines["a"].partition()
        await asyncio.sleep(TIMEOUT_S + 0.1)
        assert lost
        assert lost[0] <= deadline + 0.01
        with pytest.raises(NotOwnerError):
            await a.session()
        await asyncio.sleep(1)
        assert urls(b) == ["engine://b"]
        place.lines["a"].heal()
        await asyncio.sleep(2 * TIMEOUT_S)
        assert (await a.session()).id != first.id
        assert urls(b) == ["engine://a", "engine://b"]
        assert not b.lives("engine://a", first.id)
        assert b.lives("engine://a", (await a.session()).id)
        assert len(lost) == 1
        await a.close()
        await b.close()

    run(body)


def test_a_second_life_waits_until_the_first_is_over() -> None:
    async def body(place: Place) -> None:
        a = await place.broker("a")
        starting = asyncio.create_task(place.broker("a"))
        await asyncio.sleep(3 * TIMEOUT_S)
        assert not starting.done(), "the first one lives"
        await a.close()
        again = await starting
        assert urls(again) == ["engine://a"]
        await again.close()

    run(body)
