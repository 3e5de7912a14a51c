"""`TransactionSweep`: aborts timed-out transactions, and deletes ended ones after their retention (PIP-473).

Any broker begins and ends any transaction, since its whole state is in the metadata store. Only the sweep is divided:
partitions of transaction ids are placed over the live brokers. Where two brokers briefly sweep the same partition,
compare-and-set lets one of them succeed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import TYPE_CHECKING

from engine.control.base.brokers import Brokers
from engine.control.policy.placement import place
from engine.errors import AlreadyClosedError, EngineError
from engine.model.transactions import PARTITIONS

if TYPE_CHECKING:
    from engine.control.transactions.coordinator import TransactionCoordinator

log = logging.getLogger(__name__)

COLLECT_EVERY = 10  # times the interval of the sweep for timed-out transactions


class TransactionSweep:
    """`interval`: seconds between two sweeps for timed-out transactions."""

    def __init__(self, make: Callable[[], TransactionCoordinator], brokers: Brokers, interval: float) -> None:
        """`make`: called once, when the coordinator is first used."""
        self._make = make
        self._brokers = brokers
        self._interval = interval

    @cached_property
    def coordinator(self) -> TransactionCoordinator:
        """Begins and ends transactions."""
        return self._make()

    @property
    def partitions(self) -> list[int]:
        """The partitions that this broker sweeps, by the brokers known to be live."""
        url = self._brokers.url
        live = {*self._brokers.live, url}
        return [number for number in range(PARTITIONS) if place(f"transactions-{number}", live) == url]

    async def run(self) -> None:
        """Runs until cancelled. A failed sweep is logged and the next one runs."""
        await asyncio.gather(
            self._repeat(self.abort_expired, self._interval),
            self._repeat(self.collect, COLLECT_EVERY * self._interval),  # may wait for owners of segments
        )

    async def _repeat(self, sweep: Callable[[], Awaitable[object]], interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            await self._safely(sweep)

    async def _safely(self, sweep: Callable[[], Awaitable[object]]) -> None:
        try:
            await sweep()
        except AlreadyClosedError as e:
            log.debug("transactions: %s", e)
        except EngineError as e:
            log.warning("a sweep of the transactions failed: %s", e)
        except Exception:
            log.exception("a sweep of the transactions failed")

    async def abort_expired(self) -> int:
        """Abort the timed-out ones in this broker's partitions; returns how many."""
        return await self.coordinator.abort_expired(self.partitions)

    async def collect(self) -> int:
        """Delete expired ended ones in this broker's partitions; returns how many."""
        return await self.coordinator.collect(self.partitions)
