"""The level of a cluster: which builds join, and when it is raised."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from engine.control.base.brokers import BrokerRecord, Brokers
from engine.control.base.levels import LOOK_AGAIN_S, Level, Levels
from engine.errors import CorruptionError, NotOwnerError, UnsupportedError
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import ABSENT
from engine.testing.clock import LoopClock
from engine.testing.loop import run_virtual
from engine.testing.metadata import FaultyMetadataStore

TIMEOUT_S = 5.0


class Place:
    """A store, and brokers of several builds on it."""

    def __init__(self) -> None:
        self.clock = LoopClock(asyncio.get_running_loop())
        self.root = MemoryMetadataStore(self.clock, leases=True)
        self.lines: dict[str, FaultyMetadataStore] = {}

    async def broker(self, name: str, lowest: int, highest: int) -> tuple[Brokers, Levels]:
        line = self.lines[name] = FaultyMetadataStore(self.root.client(), random.Random(name))
        brokers = Brokers(line, clock=self.clock, url=f"engine://{name}", session_timeout=TIMEOUT_S)
        levels = Levels(line, brokers, version=f"{highest}.0", supported=(lowest, highest))
        await brokers.start()
        return brokers, levels

    async def level(self) -> Level:
        found = await self.root.get(keys.LEVEL)
        assert found is not None
        return Level.of(found)

    async def live(self) -> list[str]:
        found = await self.root.list(keys.BROKERS, keys.prefix_end(keys.BROKERS))
        return [BrokerRecord.of(record).url for record in found]


def run(body: Callable[[Place], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await body(Place())

    run_virtual(main())


def test_the_first_broker_sets_the_level_and_a_record_says_each_build() -> None:
    async def body(place: Place) -> None:
        await place.broker("a", 1, 2)
        assert await place.level() == Level(2)
        found = await place.root.get(keys.broker("engine://a"))
        assert found is not None
        record = BrokerRecord.of(found)
        assert (record.version, record.levels) == ("2.0", (1, 2))

    run(body)


def test_a_rolling_upgrade_raises_the_level_when_the_last_broker_is_upgraded() -> None:
    async def body(place: Place) -> None:
        old, _ = await place.broker("a", 1, 1)
        assert await place.level() == Level(1)
        new, levels = await place.broker("b", 1, 2)
        await levels.look()
        assert await place.level() == Level(1), "a works at no higher one"
        await old.close()
        _, others = await place.broker("a", 1, 2)
        await asyncio.gather(levels.look(), others.look())
        await levels.look()
        assert await place.level() == Level(2)
        await new.close()

    run(body)


def test_the_level_is_raised_by_itself_when_brokers_change() -> None:
    async def body(place: Place) -> None:
        old, _ = await place.broker("a", 1, 1)
        _, levels = await place.broker("b", 1, 3)
        task = asyncio.ensure_future(levels.run(lambda: True))
        await asyncio.sleep(LOOK_AGAIN_S * 3)
        assert await place.level() == Level(1)
        await old.close()
        await asyncio.sleep(LOOK_AGAIN_S / 2)
        assert await place.level() == Level(3), "it did not wait for its time"
        task.cancel()

    run(body)


@pytest.mark.parametrize(("levels", "wanted"), [((1, 1), "a newer release"), ((3, 4), "an older release")])
def test_a_build_that_does_not_work_at_the_level_does_not_join(levels: tuple[int, int], wanted: str) -> None:
    async def body(place: Place) -> None:
        await place.broker("a", 2, 2)
        text = rf"works at the levels {levels[0]} to {levels[1]}, and the cluster is at level 2: start {wanted}"
        with pytest.raises(UnsupportedError, match=text):
            await place.broker("b", *levels)
        assert await place.live() == ["engine://a"], "its registration is withdrawn"

    run(body)


def test_a_build_that_does_not_work_at_the_announced_level_does_not_join() -> None:
    async def body(place: Place) -> None:
        await place.root.put(keys.LEVEL, Level(1, 2).to_json(), ABSENT)
        with pytest.raises(UnsupportedError, match="is about to be raised to level 2"):
            await place.broker("a", 1, 1)
        await place.broker("b", 1, 2)

    run(body)


def test_one_that_joined_before_it_could_see_the_announcement_keeps_the_level_down() -> None:
    async def body(place: Place) -> None:
        old, _ = await place.broker("a", 1, 1)
        _, levels = await place.broker("b", 1, 2)
        found = await place.root.get(keys.LEVEL)
        assert found is not None
        await place.root.put(keys.LEVEL, Level(1, 2).to_json(), found.stat.version)  # by a broker that then died
        await levels.look()
        assert await place.level() == Level(1), "withdrawn"
        await old.close()
        await levels.look()
        assert await place.level() == Level(2)

    run(body)


def test_a_broker_whose_session_was_lost_comes_back_only_at_a_level_at_which_it_works() -> None:
    async def body(place: Place) -> None:
        old, _ = await place.broker("a", 1, 1)
        found = await place.root.get(keys.LEVEL)
        assert found is not None
        place.lines["a"].partition()
        await asyncio.sleep(TIMEOUT_S * 4)
        await place.root.put(keys.LEVEL, Level(2).to_json(), found.stat.version)
        place.lines["a"].heal()
        await asyncio.sleep(TIMEOUT_S * 4)
        with pytest.raises(NotOwnerError):
            await old.session()
        assert await place.live() == []

    run(body)


def test_a_build_before_levels_is_of_level_1() -> None:
    async def body(place: Place) -> None:
        session = await place.root.client().session(60.0)
        await place.root.put(keys.broker("engine://old"), b'{"url": "engine://old", "adminUrl": null}', session=session)
        await place.broker("a", 1, 2)
        assert await place.level() == Level(1)

    run(body)


def test_only_the_broker_that_leads_looks() -> None:
    async def body(place: Place) -> None:
        old, _ = await place.broker("a", 1, 1)
        _, levels = await place.broker("b", 1, 2)
        leading: list[bool] = []
        task = asyncio.ensure_future(levels.run(lambda: bool(leading)))
        await old.close()
        await asyncio.sleep(LOOK_AGAIN_S * 3)
        assert await place.level() == Level(1)
        leading.append(True)
        await asyncio.sleep(LOOK_AGAIN_S * 2)
        assert await place.level() == Level(2)
        task.cancel()

    run(body)


@pytest.mark.parametrize("damage", [b"", b"[]", b"{}", b'{"level": "1"}', b'{"level": 1, "next": true}'])
def test_a_damaged_level_is_reported_with_its_key_and_looked_at_again(damage: bytes) -> None:
    async def body(place: Place) -> None:
        _, levels = await place.broker("a", 1, 2)
        found = await place.root.get(keys.LEVEL)
        assert found is not None
        stat = await place.root.put(keys.LEVEL, damage, found.stat.version)
        with pytest.raises(CorruptionError, match=f"^{keys.LEVEL}: "):
            await levels.look()
        task = asyncio.ensure_future(levels.run(lambda: True))
        await asyncio.sleep(LOOK_AGAIN_S * 2)
        await place.root.put(keys.LEVEL, Level(1).to_json(), stat.version)
        await asyncio.sleep(LOOK_AGAIN_S * 2)
        assert await place.level() == Level(2)
        task.cancel()

    run(body)
