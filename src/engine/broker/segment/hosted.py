"""An open segment on this broker, and who is attached to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from engine.aio.bag import Bag
from engine.aio.turns import Turns
from engine.broker.delivery.consumer import Consumer
from engine.broker.delivery.subscription import HostedSubscription
from engine.broker.pools.rates import Rate
from engine.broker.segment.access import SHARED, Access
from engine.broker.segment.producer import Producer
from engine.broker.segment.reader import SegmentReader
from engine.errors import EngineError, NotOwnerError, SegmentSealedError

if TYPE_CHECKING:
    from pyroaring import BitMap64

    from engine.broker.pools.file_reads import FileReads
    from engine.broker.transactions.buffer import TransactionBuffer
    from engine.control.base.ports import SegmentSpec
    from engine.model.names import SegmentName
    from engine.storage.segment import Segment

log = logging.getLogger(__name__)


class HostedSegment:
    """One open segment. Loop thread only."""

    __slots__ = ("_turns", "access", "closed", "held", "idle_since", "incoming", "name", "near_messages", "readers",
                 "reads", "refused_entries", "segment", "sent_bytes", "sent_messages", "skipped_messages", "spec",
                 "subscriptions", "term", "transactions")  # fmt: skip

    def __init__(self, spec: SegmentSpec, segment: Segment, term: int, served_since: float | None = None) -> None:
        """`served_since`: the loop's time since when those who were attached before come back; None: nobody was."""
        self.spec = spec
        self.name: SegmentName = spec.name
        self.segment = segment
        self.term = term
        self.transactions: TransactionBuffer | None = None  # None: nothing in it is in a transaction
        self.incoming = Rate(asyncio.get_running_loop().time)
        self.sent_messages = 0  # to all consumers and readers, since it was opened
        self.sent_bytes = 0
        self.refused_entries = 0  # for what is in them
        self.skipped_messages = 0  # acknowledged unread, by operators
        self.near_messages = 0  # that clients were told to read from the files
        self.subscriptions: dict[str, HostedSubscription] = {}
        self.readers: Bag[SegmentReader] = Bag()
        self.reads: FileReads | None = None  # counts what is being read
        self.closed = False  # unloaded; nobody may attach any more
        self.idle_since: float | None = None  # the loop's time since when nobody was seen here
        self._turns = Turns()
        self.access = Access(self, served_since)
        self.held: list[str] = []  # the producers that had it exclusively when it was sealed
        segment.on_gap = self._pass_gaps

    # -- producers -------------------------------------------------------------------------------------------------

    @property
    def producers(self) -> dict[str, Producer]:
        """Those that are attached, by name."""
        return self.access.producers

    async def begin_transactions(self, make: Callable[[], Coroutine[Any, Any, TransactionBuffer]]) -> TransactionBuffer:
        """`transactions`, made if there are none yet. Raises what `make` raises."""
        found = self.transactions
        return await self._turns.take(lambda: self._begin_transactions(make)) if found is None else found

    async def _begin_transactions(
        self, make: Callable[[], Coroutine[Any, Any, TransactionBuffer]]
    ) -> TransactionBuffer:
        found = self.transactions or await make()
        self.transactions = found
        return found

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
        if self.transactions is not None:  # whoever goes on elsewhere may rely on what is found to be here already
            await self.transactions.recorded()
        self.held += [p.name for p in self.producers.values() if p.access != SHARED]
        self._tell_end()
        return end

    def _tell_end(self) -> None:
        """Producers are told, and consumers that have everything."""
        self.close_producers(SegmentSealedError(f"{self.name} is sealed at {self.segment.next_offset}"))
        self.tell_readers()

    # -- readers ---------------------------------------------------------------------------------------------------

    @property
    def readable(self) -> int:
        """The offset below which everything may be read: it is durable, and no transaction is open below it."""
        limit = None if self.transactions is None else self.transactions.limit
        return self.segment.durable_offset if limit is None else min(limit, self.segment.durable_offset)

    @property
    def messages(self) -> int:
        """How many there are for somebody who has acknowledged none."""
        first, end = self.segment.first_offset, self.segment.durable_offset
        hidden = self.hidden(first, end)
        return end - first - (0 if hidden is None else len(hidden))

    def hidden(self, start: int, stop: int) -> BitMap64 | None:
        """The offsets in [start, stop) that no reader gets: in gaps, or in no transaction that counts. None: none."""
        gaps = self.segment.gaps.within(start, stop)
        hidden = None if self.transactions is None else self.transactions.hidden(start, stop)
        return hidden if gaps is None else gaps if hidden is None else gaps | hidden

    def _pass_gaps(self) -> None:
        """The segment has one more gap, which is in no subscription's backlog. Readers attach again and hear of it."""
        for subscription in self.subscriptions.values():
            subscription.cursor.pass_gaps(self.segment.gaps)
        self.close_consumers(NotOwnerError(f"{self.name} has lost what was not synced; attach again"))

    def tell_readers(self) -> None:
        """There may be more to read, or the end."""
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
        if self.transactions is not None and self.transactions.busy:
            return True
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
        if self.transactions is not None:
            self.transactions.sample()
        for subscription in self.subscriptions.values():
            subscription.sample()
