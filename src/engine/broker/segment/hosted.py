"""`HostedSegment`: a segment that is open on this broker, with its producers, subscriptions and readers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from engine.aio.bag import Bag
from engine.aio.turns import Turns
from engine.broker.pools.rates import Rate
from engine.broker.segment.access import Access, topic_producer
from engine.broker.segment.producer import Producer
from engine.broker.segment.reader import SegmentReader
from engine.errors import EngineError, NotOwnerError, SegmentSealedError
from engine.model.access import AccessMode

if TYPE_CHECKING:
    from pyroaring import BitMap64

    from engine.broker.segment.environment import Environment
    from engine.broker.segment.ports import Gate, SubscribedConsumer, Subscriber
    from engine.broker.transactions.buffer import TransactionBuffer
    from engine.control.base.ports import SegmentSpec
    from engine.model.names import SegmentName
    from engine.storage.segment import Segment

log = logging.getLogger(__name__)

MakeBuffer = Callable[["HostedSegment"], Coroutine[Any, Any, "TransactionBuffer"]]


class HostedSegment:
    """One open segment. Loop thread only."""

    __slots__ = ("_make_buffer", "_turns", "access", "closed", "encrypted_only", "environment", "expired_messages",
                 "held", "idle_since", "incoming", "name", "near_messages", "object_messages", "opened_s", "readers",
                 "refused_entries", "segment", "sent_bytes", "sent_messages", "skipped_messages", "spec",
                 "subscriptions", "term", "transactions", "with_schema")  # fmt: skip

    def __init__(
        self,
        spec: SegmentSpec,
        segment: Segment,
        term: int,
        environment: Environment,
        make_buffer: MakeBuffer,
        served_since: float | None = None,
    ) -> None:
        """`make_buffer`: makes `transactions` for the first transactional entry. `served_since`: the loop's time since
        when clients that were attached at an earlier owner may come back; None: there were none.
        """
        self.spec = spec
        self.name: SegmentName = spec.name
        self.segment = segment
        self.term = term
        self.environment = environment
        self.transactions: TransactionBuffer | None = None  # None: no message in it is in a transaction
        # Counted since it was opened.
        self.incoming = Rate(asyncio.get_running_loop().time)
        self.sent_messages = 0  # to all consumers and readers
        self.sent_bytes = 0
        self.refused_entries = 0  # malformed or too large
        self.skipped_messages = 0  # acknowledged unread, by operators
        self.expired_messages = 0  # not acknowledged within their time to live
        self.near_messages = 0  # read by clients from the files
        self.object_messages = 0  # and from objects
        self.subscriptions: dict[str, Subscriber] = {}
        self.readers: Bag[SegmentReader] = Bag()
        self.encrypted_only = False  # whether entries that are not encrypted are refused; kept current by others
        self.with_schema = False  # whether a producer of Apache Pulsar's clients has declared one here
        self.closed = False  # unloaded; new attachments are refused
        self.opened_s = asyncio.get_running_loop().time()
        self.idle_since: float | None = None  # the loop's time when it was first seen unused
        self._make_buffer = make_buffer
        self._turns = Turns()
        self.access = Access(self, served_since)
        self.held: list[str] = []  # the exclusive producers at the time it was sealed
        segment.on_gap = self._pass_gaps

    # -- producers -------------------------------------------------------------------------------------------------

    @property
    def producers(self) -> dict[str, Producer]:
        """The attached producers by name."""
        return self.access.producers

    async def begin_transactions(self) -> TransactionBuffer:
        """`transactions`, made if there are none yet. Raises NotOwnerError, and what the metadata store raises."""
        found = self.transactions
        return await self._turns.take(self._begin_transactions) if found is None else found

    async def _begin_transactions(self) -> TransactionBuffer:
        found = self.transactions or await self._make_buffer(self)
        self.transactions = found
        return found

    def obey(self, policies: Mapping[str, Any]) -> None:
        """Do with what producers send as the policies of the topic say, as far as they say something."""
        self.encrypted_only = bool(policies.get("encryption_required"))
        flush_ms = policies.get("flush_interval_ms")
        self.segment.flush_within(None if flush_ms is None else flush_ms / 1000)

    def check_active(self) -> None:
        """Raise SegmentSealedError when the segment takes no more appends."""
        if self.segment.sealed:
            raise SegmentSealedError(f"{self.name} is sealed at {self.segment.next_offset}")

    async def seal(self) -> int:
        """Take no more appends, for ever; the end offset. Runs to its end even if the caller is cancelled.

        Producers are closed, and consumers that have received everything are sent the end. Raises what Segment.seal
        raises.
        """
        return await self._turns.take(self._seal)

    async def _seal(self) -> int:
        end = await self.segment.seal(self.term)
        if self.transactions is not None:  # a child segment may be written by clients that rely on these answers
            await self.transactions.recorded()
        held = (p.name for p in self.producers.values() if p.access is not AccessMode.SHARED)
        self.held += filter(None, (topic_producer(name, self.name.segment_id) for name in held))
        self.close_producers(SegmentSealedError(f"{self.name} is sealed at {self.segment.next_offset}"))
        self.notify_readers()
        return end

    # -- readers ---------------------------------------------------------------------------------------------------

    @property
    def readable(self) -> int:
        """The last stable offset: everything below it is durable, and no transaction is open below it."""
        limit = None if self.transactions is None else self.transactions.limit
        return self.segment.durable_offset if limit is None else min(limit, self.segment.durable_offset)

    @property
    def messages(self) -> int:
        """The backlog of a subscription that has acknowledged none."""
        first, end = self.segment.first_offset, self.segment.durable_offset
        hidden = self.hidden(first, end)
        return end - first - (0 if hidden is None else len(hidden))

    def hidden(self, start: int, stop: int) -> BitMap64 | None:
        """The offsets in [start, stop) that no reader gets: gaps, and those of aborted transactions. None: none."""
        gate: Gate | None = self.transactions
        gaps, hidden = self.segment.gaps.within(start, stop), None if gate is None else gate.hidden(start, stop)
        return hidden if gaps is None else gaps if hidden is None else gaps | hidden

    def _pass_gaps(self) -> None:
        """The segment has a new gap, which counts in no backlog. Consumers attach again, and are sent the gaps then."""
        for subscription in self.subscriptions.values():
            subscription.cursor.pass_gaps(self.segment.gaps)
        self.close_consumers(NotOwnerError(f"{self.name} has lost what was not synced; attach again"))

    def notify_readers(self) -> None:
        """There may be more to read, or the end to report."""
        for subscription in self.subscriptions.values():
            subscription.check_drained()
        for reader in list(self.readers):
            if not reader.busy:
                reader.step(None)

    # -- both ------------------------------------------------------------------------------------------------------

    @property
    def consumers(self) -> Iterator[SubscribedConsumer]:
        """The consumers of all subscriptions."""
        for subscription in self.subscriptions.values():
            yield from subscription.consumers

    @property
    def in_use(self) -> bool:
        """Whether clients are attached, or work is in flight, or memory holds what no file does."""
        segment = self.segment
        if self.transactions is not None and self.transactions.busy:
            return True
        if self.access.in_use or self.readers or segment.next_offset != segment.durable_offset or segment.sealing:
            return True
        return any(subscription.in_use for subscription in self.subscriptions.values())

    def check_open(self) -> None:
        """Raise NotOwnerError when it was unloaded since the caller found it."""
        if self.closed:
            raise NotOwnerError(f"{self.name} has just been closed here; attach again")

    def reading_failed(self, reader: SegmentReader, error: BaseException) -> None:
        """A read from disk failed. The consumer is closed with the error: it never gets less than was stored (D6)."""
        if not isinstance(error, EngineError):
            log.error("reading %s failed", self.name, exc_info=error)
            error = EngineError(f"the broker failed: {type(error).__name__}: {error}")
        reader.owner_close(error)

    def close(self, error: EngineError) -> None:
        """Close producers, consumers and readers with an error."""
        self.close_producers(error)
        self.close_consumers(error)

    def close_consumers(self, error: EngineError) -> None:
        """Close consumers and readers with an error."""
        for reader in list(self.readers):
            reader.owner_close(error)

    def close_producers(self, error: EngineError) -> None:
        """Close producers with an error."""
        self.access.close(error)

    def sample(self) -> None:
        """Bring the rates up to date."""
        self.incoming.sample()
        if self.transactions is not None:
            self.transactions.sample()
        for subscription in self.subscriptions.values():
            subscription.sample()
