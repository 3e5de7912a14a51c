"""Headers of transactions where each has a watch of its own, as in the store of a cluster."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from engine.broker.transactions.headers import TransactionHeaders
from engine.clock import SystemClock
from engine.control.transactions.headers import TransactionView
from engine.errors import TransactionConflictError
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.model.transactions import TransactionHeader, TransactionState, id_text
from tests.kit.peer import until

OPEN = TransactionHeader(TransactionState.OPEN, 0, 1 << 40)
COUNT = 50


class Counting(MemoryMetadataStore):
    """Counts the events that its watches deliver."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.heard: Counter[str] = Counter()

    def watch(self, prefix: str, from_version: int | None = None) -> Any:
        return Counted(super().watch(prefix, from_version), self.heard)


class Counted:
    """A watch whose events are counted."""

    def __init__(self, watch: Any, heard: Counter[str]) -> None:
        self._watch, self._heard = watch, heard
        self.close = watch.close

    async def __aiter__(self) -> Any:
        async for event in self._watch:
            self._heard[event.key] += 1
            yield event


async def begun(store: MemoryMetadataStore, number: int) -> TransactionView:
    stat = await store.put(keys.transaction(id_text(number)), OPEN.to_json())
    return TransactionView(number, OPEN, stat.version)


async def end(store: MemoryMetadataStore, number: int) -> None:
    ended = TransactionHeader(TransactionState.COMMITTED, 0, 1 << 40)
    await store.put(keys.transaction(id_text(number)), ended.to_json())


async def test_a_broker_is_told_of_the_transactions_that_it_takes_part_in_alone() -> None:
    store, told = Counting(), asyncio.Event()
    headers = TransactionHeaders(store, singly=True)
    ended: list[int] = []

    def listener(number: int, view: TransactionView | None) -> None:
        assert view is not None
        ended.append(number)
        headers.release(number, listener)
        told.set()

    views = [await begun(store, number) for number in range(COUNT)]
    headers.note(views[1])
    assert headers.follow_open(1, listener), "it was begun here"
    assert not headers.follow_open(2, listener), "it was begun elsewhere"
    await headers.authorise(2, listener)
    for number in range(COUNT):
        await end(store, number)
    await until(lambda: len(ended) == 2)
    assert sorted(ended) == [1, 2]
    assert {*store.heard} <= {keys.transaction(id_text(number)) for number in ended}
    assert len(headers) == 0
    with pytest.raises(TransactionConflictError):
        await headers.authorise(3, listener)
    await headers.close()


async def test_the_end_of_a_noted_one_is_heard_though_it_came_before_it_was_followed() -> None:
    store, told = MemoryMetadataStore(SystemClock()), asyncio.Event()
    headers = TransactionHeaders(store, singly=True)
    headers.note(await begun(store, 7))
    await end(store, 7)
    assert headers.follow_open(7, lambda number, view: told.set()), "not known here yet"
    await asyncio.wait_for(told.wait(), 30)
    await headers.close()
