"""`OpenTransactions`: the ages of open transactions, and which of them are overdue.

A header holds its deadline by the wall clock of the broker that wrote it. A broker that sweeps a partition uses only
the timeout in it, and measures by its own monotonic clock from the moment at which it first saw the header. So however
a wall clock is set, before or after a restart, a transaction is aborted at the latest after its timeout and one sweep,
and, where the broker was running when it began, no sooner than its timeout.
"""

from __future__ import annotations

import asyncio

from engine.clock import STEP_MS_MIN, Ages, Clock, ForwardSteps
from engine.control.transactions.headers import HeaderRecords, TransactionView, view_of
from engine.metadata import keys
from engine.model.transactions import partition_of


class _Partition:
    """The result of the last sweep of a partition."""

    __slots__ = ("ages", "views")

    def __init__(self, clock: Clock, steps: ForwardSteps) -> None:
        self.ages = Ages[str](clock, steps)
        self.views: dict[str, TransactionView] = {}  # by record key, so that ids need not be parsed again


class OpenTransactions:
    """Holds in memory the header of each open transaction of the partitions that are swept here."""

    def __init__(self, headers: HeaderRecords, clock: Clock, steps: ForwardSteps) -> None:
        self._headers = headers
        self._clock = clock
        self._steps = steps
        self._unseen = Ages[str](clock, steps)
        self._partitions: dict[int, _Partition] = {}

    async def overdue(self, number: int) -> list[TransactionView]:
        """Sweep a partition: its transactions that have been open for their timeouts."""
        partition = self._partitions.get(number)
        if partition is None:
            partition = self._partitions[number] = _Partition(self._clock, self._steps)
        began, before = self._clock.monotonic(), partition.views
        views: dict[str, TransactionView] = {}
        async for page in self._headers.open_pages(number):
            for record in page:
                seen = before.get(record.key)
                same = seen is not None and seen.version == record.stat.version
                views[record.key] = seen if same and seen is not None else view_of(record)
            if page:
                await asyncio.sleep(0)  # there may be many, and the store may answer without yielding
        partition.views = views
        ages = partition.ages.update({key: view.header.since_ms for key, view in views.items()}, began)
        return [views[key] for key, age in ages.items() if age * 1000 >= views[key].header.span_ms]

    def emptied(self, number: int) -> None:
        """A sweep of a partition found it without open transactions."""
        partition = self._partitions.get(number)
        if partition is None or partition.views:
            self._partitions[number] = _Partition(self._clock, self._steps)

    def left_s(self, view: TransactionView) -> float | None:
        """Seconds until it is aborted; None: its beginning lies in the future, and it was not swept here."""
        age = self._age(view)
        return None if age is None else max(0.0, view.header.span_ms / 1000 - age)

    def open_s(self, view: TransactionView) -> float:
        """Seconds since it was begun, 0 where unknown."""
        header = view.header
        return (self._age(view) or 0.0) + max(0, header.since_ms - header.created_ms) / 1000

    def born_ms(self, view: TransactionView) -> int:
        """The time of its beginning by the present wall clock: lists are sorted by it."""
        created_ms = view.header.created_ms
        born_ms = self._clock.time_ms() - round(self.open_s(view) * 1000)
        return created_ms if abs(born_ms - created_ms) < STEP_MS_MIN else born_ms

    def _age(self, view: TransactionView) -> float | None:
        partition = self._partitions.get(partition_of(view.number))
        ages = self._unseen if partition is None else partition.ages
        age = ages.age(keys.transaction(view.id), view.header.since_ms)
        return None if age is None else min(age, view.header.span_ms / 1000)  # an open one is no older than its timeout
