"""`Rounds`: a check that is repeated while the limits ask for it, and at once when they have changed."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from engine.errors import AlreadyClosedError

if TYPE_CHECKING:
    from engine.broker.limits.limits import BrokerLimits

log = logging.getLogger(__name__)

ROUND_S = 0.5


class Rounds(ABC):
    """Loop thread only."""

    over: ClassVar[str]  # what a round is about, for the log
    names: ClassVar[Iterable[str]]  # of the limits; while no resource says one of them, there are no rounds

    def __init__(self, limits: BrokerLimits) -> None:
        self._limits = limits
        self._changed = asyncio.Event()

    @abstractmethod
    async def check(self) -> None:
        """One round."""

    @abstractmethod
    async def meet(self, group: str) -> None:
        """Go by what the other brokers show of a group that is new here, where there are others."""

    def wake(self) -> None:
        """The limits have changed: begin a round."""
        self._changed.set()

    async def run(self) -> None:
        """Runs until cancelled. A failed round is logged, and the next one runs."""
        while True:
            self._changed.clear()
            try:
                await self.check()
            except AlreadyClosedError:
                return
            except Exception:
                log.exception("a round over %s has failed", self.over)
            try:
                async with asyncio.timeout(ROUND_S if self._limits.says(self.names) else None):
                    await self._changed.wait()
            except TimeoutError:
                pass
