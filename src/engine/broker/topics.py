"""An open segment on this broker, and who is attached to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from engine.aio.bag import Bag
from engine.aio.turns import Turns
from engine.broker.access import SHARED, Access
from engine.broker.consumers import Consumer, SegmentReader
from engine.broker.producers import Producer
from engine.broker.rates import Rate
from engine.broker.subscriptions import HostedSubscription
from engine.errors import EngineError, NotOwnerError, SegmentSealedError

if TYPE_CHECKING:
    from engine.control.ports import SegmentSpec
    from engine.model.names import SegmentName
    from engine.storage.segment import Segment

log = logging.getLogger(__name__)


class HostedSegment:
    """One open segment. Loop thread only."""

    __slots__ = ("_turns", "access", "closed", "held", "idle_since", "incoming", "name", "readers", "segment",
                 "sent_bytes", "sent_messages", "spec", "subscriptions", "term")  # fmt: skip

    def __init__(self, spec: SegmentSpec, segment: Segment, term: int, served_since: float | None = None) -> None:
        """`served_since`: the loop's time since when those who were attached before come back; None: nobody was."""
        self.spec = spec
        self.name: SegmentName = spec.name
        self.segment = segment
        self.term = term
        self.incoming = Rate(asyncio.get_running_loop().time)
        self.sent_messages = 0  # to all consumers and readers, since it was opened
        self.sent_bytes = 0
        self.subscriptions: dict[str, HostedSubscription] = {}
        self.readers: Bag[SegmentReader] = Bag()
        self.closed = False  # unloaded; nobody may attach any more
        self.idle_since: float | None = None  # the loop's time since when nobody was seen here
        self._turns = Turns()
        self.access = Access(self, served_since)
        self.held: list[str] = []  # the producers that had it exclusively when it was sealed

    # -- producers -------------------------------------------------------------------------------------------------

    @property
    def producers(self) -> dict[str, Producer]:
        """Those that are attached, by name."""
        return self.access.producers

    def check_active(self) -> None:
        """Raise SegmentSealedError when nothing can be appended any more."""
        if self.segment.sealed:
            raise SegmentSealedError(f"{self.name} is sealed at {self.segment.next_offset}")

    async def seal(self) -> int:
        """Take no more appends, for ever; the end. Everybody concerned is told, also when the caller has gone.

        Raises what Segment.seal raises.
        """
        return await self._turns.take(self._seal)

    async def _seal(self) -> int:
        end = await self.segment.seal(self.term)
        self.held += [p.name for p in self.producers.values() if p.access != SHARED]
        self._tell_end()
        return end

    def _tell_end(self) -> None:
        """Producers are told, and consumers that have everything."""
        self.close_producers(SegmentSealedError(f"{self.name} is sealed at {self.segment.next_offset}"))
        for subscription in self.subscriptions.values():
            subscription.look()
        for reader in list(self.readers):
            if not reader.busy:
                reader.step(None)

    # -- both ------------------------------------------------------------------------------------------------------

    @property
    def consumers(self) -> Iterator[Consumer]:
        """Everybody attached through a subscription."""
        for subscription in self.subscriptions.values():
            yield from subscription.consumers

    @property
    def in_use(self) -> bool:
        """Whether anybody is attached, or something is on its way or remembered that a file does not hold."""
        segment = self.segment
        if self.access.in_use or self.readers or segment.next_offset != segment.durable_offset or segment.sealing:
            return True
        return any(subscription.in_use for subscription in self.subscriptions.values())

    def check_open(self) -> None:
        """Raise NotOwnerError when it was unloaded since it was looked up: look again."""
        if self.closed:
            raise NotOwnerError(f"{self.name} was idle and has just been closed; attach again")

    def reading_failed(self, reader: SegmentReader, error: BaseException) -> None:
        """A read from disk failed: those who wait for it are told, nobody is given less than was stored (D6)."""
        if not isinstance(error, EngineError):
            log.error("reading %s failed", self.name, exc_info=error)
            error = EngineError(f"the broker failed: {type(error).__name__}: {error}")
        reader.owner_close(error)

    def close(self, error: EngineError) -> None:
        """Everybody attached is told."""
        self.close_producers(error)
        self.close_consumers(error)

    def close_consumers(self, error: EngineError) -> None:
        """Consumers and readers are told to go elsewhere."""
        for reader in list(self.readers):
            reader.owner_close(error)

    def close_producers(self, error: EngineError) -> None:
        """Producers are told to go elsewhere."""
        self.access.close(error)

    def sample(self) -> None:
        """Bring the rates up to date."""
        self.incoming.sample()
        for subscription in self.subscriptions.values():
            subscription.sample()
