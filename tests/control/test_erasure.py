"""What a leader deletes below a topic's record is its own topic's, whenever it gets to it (L1)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from engine.control.base.topic_records import ScalableTopicResources
from engine.control.shape.erasure import erase_children, erase_subscription
from engine.errors import FencedError
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.model.names import TopicName
from engine.testing.clock import FakeClock
from tests.kit.control_fakes import virtual

TOPIC = TopicName.parse("orders")
BELOW = [keys.subscription(TOPIC, "s"), f"{keys.subscription(TOPIC, 's')}/cursors/0", f"{keys.topic(TOPIC)}/segments/0"]


class Stopped(MemoryMetadataStore):
    """`meanwhile` runs, once, right behind the first call of the method called `behind`."""

    behind = ""
    meanwhile: Callable[[], Awaitable[None]] | None = None

    async def _stop(self, method: str) -> None:
        if method == self.behind and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()

    async def list(self, *args: Any) -> Any:
        found = await super().list(*args)
        await self._stop("list")
        return found

    async def get(self, key: str) -> Any:
        found = await super().get(key)
        await self._stop("get" if key == keys.controller(TOPIC) else "get another")
        return found


async def topic(resources: ScalableTopicResources, value: bytes) -> int:
    """A topic with all that is below it; its leader's term."""
    for key in BELOW:
        await resources.metadata.put(key, value)
    return await resources.elect(TOPIC, "engine://leader", await resources.metadata.session())


async def values(store: MemoryMetadataStore) -> list[bytes]:
    found = [await store.get(key) for key in BELOW]
    return [record.value for record in found if record is not None]


@virtual
async def test_everything_below_goes_but_the_leaders_record() -> None:
    store = Stopped(FakeClock())
    resources = ScalableTopicResources(store)
    term = await topic(resources, b"old")
    await store.put(keys.topic(TOPIC), b"its own")
    await erase_children(resources, TOPIC, term)
    assert await values(store) == []
    assert await store.get(keys.topic(TOPIC)) is not None
    assert await store.get(keys.controller(TOPIC)) is not None
    await erase_children(resources, TOPIC, term)
    await store.close()


@pytest.mark.parametrize("behind", ["list", "get"])
@virtual
async def test_l1_a_leader_that_was_stopped_erases_nothing_of_the_next_topic(behind: str) -> None:
    store = Stopped(FakeClock())
    resources = ScalableTopicResources(store)
    term = await topic(resources, b"old")

    async def another_topic() -> None:
        await resources.resign(TOPIC, term)
        await store.delete_range(f"{keys.topic(TOPIC)}/", keys.prefix_end(f"{keys.topic(TOPIC)}/"))
        await topic(resources, b"new")

    store.behind, store.meanwhile = behind, another_topic
    with pytest.raises(FencedError):
        await erase_children(resources, TOPIC, term)
    assert await values(store) == [b"new"] * len(BELOW)
    await store.close()


@virtual
async def test_what_is_written_meanwhile_by_others_of_the_topic_goes_too() -> None:
    store = Stopped(FakeClock())
    resources = ScalableTopicResources(store)
    term = await topic(resources, b"old")

    async def acknowledged() -> None:
        await store.put(BELOW[1], b"saved late")

    store.behind, store.meanwhile = "get", acknowledged
    await erase_children(resources, TOPIC, term)
    assert await values(store) == []
    await store.close()


@virtual
async def test_a_subscription_goes_with_what_it_has_and_no_other() -> None:
    store = Stopped(FakeClock())
    resources = ScalableTopicResources(store)
    term = await topic(resources, b"old")
    await store.put(keys.subscription(TOPIC, "s-2"), b"another")
    await erase_subscription(resources, TOPIC, "s", term)
    assert await values(store) == [b"old"], "the segment's owner"
    assert await store.get(keys.subscription(TOPIC, "s-2")) is not None
    with pytest.raises(FencedError):
        await erase_subscription(resources, TOPIC, "s-2", term - 1)
    assert await store.get(keys.subscription(TOPIC, "s-2")) is not None
    await store.close()
