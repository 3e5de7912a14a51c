"""`OpenTransactions`: how old those are that have not ended, and which of them are over time.

A header tells its deadline by the wall clock of the broker that wrote it. A broker that sweeps a partition takes from
it only what it says of itself, the timeout, and measures by its own monotonic clock from the moment it first saw the
header: whichever way a wall clock is set meanwhile, or was set before a restart, a transaction is aborted after its
timeout, and a look, at the latest; and no sooner than that where the broker was running when it was begun.
"""

from __future__ import annotations

import asyncio

from engine.clock import STEP_MS_MIN, Ages, Clock, ForwardSteps
from engine.control.transactions.headers import HeaderRecords, TransactionView, view_of
from engine.metadata import keys
from engine.model.transactions import partition_of


class _Partition:
    """What the last look at a partition has found."""

    __slots__ = ("ages", "views")

    def __init__(self, clock: Clock, steps: ForwardSteps) -> None:
        self.ages = Ages[str](clock, steps)
        self.views: dict[str, TransactionView] = {}  # by the keys of their records: no id has to be read again


class OpenTransactions:
    """Memory: a header for each open transaction of the partitions that are looked at."""

    def __init__(self, headers: HeaderRecords, clock: Clock, steps: ForwardSteps) -> None:
        self._headers = headers
        self._clock = clock
        self._steps = steps
        self._unseen = Ages[str](clock, steps)
        self._partitions: dict[int, _Partition] = {}

    async def overdue(self, number: int) -> list[TransactionView]:
        """Look at a partition: those that have been open for as long as their timeouts."""
        partition = self._partitions.setdefault(number, _Partition(self._clock, self._steps))
        began, before, views = self._clock.monotonic(), partition.views, dict[str, TransactionView]()
        async for page in self._headers.open_pages(number):
            for record in page:
                seen = before.get(record.key)
                same = seen is not None and seen.version == record.stat.version
                views[record.key] = seen if same and seen is not None else view_of(record)
            if page:
                await asyncio.sleep(0)  # there may be many, and the store may answer without giving a turn away
        partition.views = views
        ages = partition.ages.look({key: view.header.since_ms for key, view in views.items()}, began)
        return [views[key] for key, age in ages.items() if age * 1000 >= views[key].header.span_ms]

    def left_s(self, view: TransactionView) -> float | None:
        """Seconds until it is aborted; None: it says that it begins later than now, and was not looked at here."""
        age = self._age(view)
        return None if age is None else max(0.0, view.header.span_ms / 1000 - age)

    def open_s(self, view: TransactionView) -> float:
        """For how many seconds it has been open, 0 where that cannot be told."""
        header = view.header
        return (self._age(view) or 0.0) + max(0, header.since_ms - header.created_ms) / 1000

    def born_ms(self, view: TransactionView) -> int:
        """When it was begun, by the wall clock as it is set now: lists are ordered by it."""
        created_ms = view.header.created_ms
        born_ms = self._clock.time_ms() - round(self.open_s(view) * 1000)
        return created_ms if abs(born_ms - created_ms) < STEP_MS_MIN else born_ms

    def _age(self, view: TransactionView) -> float | None:
        partition = self._partitions.get(partition_of(view.number))
        ages = self._unseen if partition is None else partition.ages
        age = ages.age(keys.transaction(view.id), view.header.since_ms)
        return None if age is None else min(age, view.header.span_ms / 1000)  # it is open: no older than its timeout
