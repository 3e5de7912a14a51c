"""The brokers that live, and what becomes of one that the metadata store has lost sight of."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from engine.control.base.brokers import BrokerRecord, Brokers
from engine.errors import CorruptionError, NotOwnerError
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import Record
from engine.model.load import SegmentLoadStats
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


LOAD = SegmentLoadStats(12.5, 5_000.0, 25.0, 10_000.0)


def test_what_a_broker_says_of_itself_reaches_the_others_and_outlives_its_session() -> None:
    async def body(place: Place) -> None:
        a, b = await place.broker("a"), await place.broker("b")
        told: list[set[str]] = []
        b.changed.append(lambda: told.append(set(b.takers)))
        await a.publish(segments=3, load=LOAD)
        await asyncio.sleep(0.1)
        seen = b.live["engine://a"]
        assert (seen.segments, seen.load, seen.draining) == (3, LOAD, False)
        assert not told, "nothing is placed anew for that"
        await a.publish(draining=True)
        await asyncio.sleep(0.1)
        assert told == [{"engine://b"}]
        assert b.live["engine://a"].load == LOAD
        assert (list(a.takers), list(b.takers)) == (["engine://b"], ["engine://b"])
        place.lines["a"].partition()
        await asyncio.sleep(TIMEOUT_S + 1)
        with pytest.raises(NotOwnerError):
            await a.publish(draining=False)
        place.lines["a"].heal()
        await asyncio.sleep(2 * TIMEOUT_S)
        assert b.live["engine://a"].load == LOAD
        assert list(b.takers) == ["engine://a", "engine://b"], "as it was last asked to say"
        await a.close()
        await b.close()

    run(body)


def test_where_all_drain_all_take_segments() -> None:
    async def body(place: Place) -> None:
        a, b = await place.broker("a"), await place.broker("b")
        await a.publish(draining=True)
        await b.publish(draining=True)
        await asyncio.sleep(0.1)
        assert list(a.takers) == list(b.takers) == ["engine://a", "engine://b"]
        await a.close()
        await b.close()

    run(body)


def test_a_write_whose_outcome_is_unknown_is_repeated() -> None:
    async def body(place: Place) -> None:
        a = await place.broker("a")
        place.lines["a"].unknown_rate = 0.5
        for count in range(1, 20):
            await a.publish(segments=count)
        place.lines["a"].unknown_rate = 0.0
        record = await place.root.get(keys.broker("engine://a"))
        assert record is not None
        assert BrokerRecord.of(record).segments == 19
        await a.close()

    run(body)


def test_a_record_of_an_older_build_says_nothing_of_load() -> None:
    async def body(place: Place) -> None:
        stat = await place.root.put("/brokers/x", b'{"url": "engine://x", "adminUrl": null}')
        record = await place.root.get("/brokers/x")
        assert record is not None
        assert record.stat.version == stat.version
        found = BrokerRecord.of(record)
        assert (found.draining, found.segments, found.load) == (False, 0, SegmentLoadStats())
        assert found.to_json() == b'{"url": "engine://x", "adminUrl": null}'

    run(body)


@pytest.mark.parametrize("damage", [b"", b"[]", b"{}", b'{"url": "x", "levels": 1}', b'{"url": "x", "load": []}'])
def test_a_damaged_record_is_of_no_broker_until_it_is_written_again(damage: bytes) -> None:
    async def body(place: Place) -> None:
        a, b = [await place.broker(name) for name in "ab"]
        key = keys.broker(b.url)
        record = await place.root.get(key)
        assert record is not None
        with pytest.raises(CorruptionError, match=f"^{key}: "):
            BrokerRecord.of(Record(key, damage, record.stat))
        stat = await place.root.put(key, damage, record.stat.version)
        await asyncio.sleep(0.1)
        assert urls(a) == ["engine://a"]
        c = await place.broker("c")
        assert urls(c) == ["engine://a", "engine://c"]
        await place.root.put(key, record.value, stat.version)
        await asyncio.sleep(0.1)
        assert urls(a) == urls(c) == ["engine://a", "engine://b", "engine://c"]

    run(body)


def test_a_broker_without_a_session_takes_nothing() -> None:
    async def body(place: Place) -> None:
        a, b = [await place.broker(name) for name in "ab"]
        await asyncio.sleep(0.1)
        session = a.session_id
        assert list(a.takers) == ["engine://a", "engine://b"]
        place.lines["a"].partition()
        await asyncio.sleep(2 * TIMEOUT_S)
        assert list(a.takers) == ["engine://b"]
        assert not a.lives(a.url, session)
        assert list(b.takers) == ["engine://b"]
        place.lines["a"].heal()
        await asyncio.sleep(2 * TIMEOUT_S)
        assert list(a.takers) == list(b.takers) == ["engine://a", "engine://b"]

    run(body)
