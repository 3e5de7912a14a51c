"""A lane's attachment to the owner of its segment: made as often as it takes, and ended."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Protocol

from engine._native.produce.batcher import SealedEntry
from engine.aio.backoff import RetryDelay
from engine.client.net.connection import Connection, ignore_outcome
from engine.client.net.pool import Pool
from engine.client.produce.backlog import Backlog, LedgerHolder
from engine.client.topic.session import SegmentView, TopicLayout, TopicSession
from engine.errors import (
    ConnectError,
    EngineError,
    FencedError,
    NotFoundError,
    NotOwnerError,
    ProducerBusyError,
    SegmentSealedError,
    TimeoutError,
)
from engine.wire import commands
from engine.wire.commands import Header

log = logging.getLogger(__name__)

# Between attempts at a sealed segment whose successors are not known yet: the layout's arrival ends the wait.
SEALED_S_FIRST = 0.1
SEALED_S_MAX = 5.0

FATAL = (FencedError, ProducerBusyError)  # as an answer to PRODUCER these end the producer


class LaneOwner(LedgerHolder, Protocol):
    """What a lane wants from its producer."""

    name: str
    access_mode: str
    properties: Mapping[str, str]
    pool: Pool
    session: TopicSession
    claim: list[int] | None  # to the topic, from the owner of its first segment
    acknowledged_below: int  # every message with a lower sequence is stored
    started: bool  # before that it attaches its lanes itself
    failure: EngineError | None  # why nothing goes out any more; what was on its way has failed with it

    def receipts_came(self) -> None:
        """The ledger has just been told of receipts."""

    def waited_ms(self) -> int:
        """How long it has tried to get in."""

    def lane_retiring(self) -> None:
        """Something happened to a lane that is retired: it may have heard all that it will hear."""

    def lane_fatal(self, error: EngineError) -> None:
        """The producer as a whole cannot go on."""

    def take_apart(self, entry: SealedEntry) -> list[SealedEntry]:
        """Its messages as entries of their own, which are on their way in its stead."""


class LaneAttachment(ABC):
    """What of a lane has to do with being attached. Loop thread only."""

    def __init__(self, owner: LaneOwner, segment: SegmentView) -> None:
        self.segment = segment
        self.last_sequence = -1  # durable in the segment, as the owner said at the last attachment
        self.backlog = Backlog(owner)
        self.retired = False
        self.eager = False  # attach now, somebody will want to send
        self.used = False  # was attached once
        self._claims_left = 0  # how often a claim that meets another's is made again
        self._owner = owner
        self._seen: TopicLayout | None = None  # the layout that the last attempt to attach went by
        self._connection: Connection | None = None
        self._producer_id = 0
        self._ended_id = 0  # of the attachment that the broker ended last
        self._attaching = self._closed = False
        self._stale: EngineError | None = None  # why the layout that it goes by is perhaps an old one

    # -- what a lane does with it ----------------------------------------------------------------------------

    @abstractmethod
    def transmit(self) -> None:
        """Send what is queued, as far as the connection takes it; attach first where there is no attachment."""

    @abstractmethod
    def fail_queued(self, error: Exception) -> None:
        """Fail everything in this lane."""

    @property
    @abstractmethod
    def _needed(self) -> bool:
        """Whether there must be an attachment."""

    @abstractmethod
    def frame_received(self, header: Header, payload: memoryview) -> None:
        """What the segment's owner says."""

    @abstractmethod
    def resume_writing(self) -> None:
        """Go on sending."""

    @abstractmethod
    def connection_lost(self, error: EngineError) -> None:
        """The attachment has ended with its connection."""

    # -- attaching -------------------------------------------------------------------------------------------

    @property
    def attached(self) -> bool:
        """Whether the owner of the segment knows this producer."""
        return self._connection is not None

    def _start_attaching(self, stale: EngineError | None = None) -> None:
        self._stale = stale or self._stale
        if not self._attaching and not self._closed:
            self._attaching = True
            self._owner.pool.tasks.spawn(self._attach_in_background(), name=f"attach {self.segment.name}")

    async def _attach_in_background(self) -> None:
        """Attach, as often as it takes, while there is something to send; errors that do not pass fail the queue."""
        backoff = self._owner.pool.retry_delays()
        sealed = RetryDelay(self._owner.pool.options.rng, initial=SEALED_S_FIRST, maximum=SEALED_S_MAX)
        refusals = losses = 0
        try:
            while self._needed and not self.attached:
                stale, self._stale = self._stale, None
                if stale is not None:
                    refusals += 1
                    self._owner.session.refused(refusals)
                    pauses = sealed if isinstance(stale, SegmentSealedError) else backoff
                    if not await self._wait_layout(pauses.next()):
                        return
                try:
                    await self.attach()  # it may be gone again by now
                except EngineError as e:
                    if not self._survives(e):
                        return
                    self._stale = None if isinstance(e, ConnectError | TimeoutError) else e
                    losses += isinstance(e, ConnectError)
                    if losses > 1:  # one that is lost is made again at once; one that is lost time and again is not
                        await asyncio.sleep(backoff.next())
        finally:
            self._attaching = False

    def _survives(self, error: EngineError) -> bool:
        """Whether to attach again after this; if not, its consequences."""
        if error.layout_stale or isinstance(error, NotFoundError):
            self.backlog.count_attempt(self.segment.name)
            return True
        if isinstance(error, ConnectError | TimeoutError):
            self.backlog.drop_expired()
            return True
        if isinstance(error, ProducerBusyError) and self._claims_left:
            self._claims_left -= 1  # a newcomer, who fails at the next segment and goes
            return True
        self.fail_queued(error)
        if isinstance(error, FATAL):
            self._owner.lane_fatal(error)
        return False

    async def _wait_layout(self, delay: float) -> bool:
        """Wait for another layout than the one last gone by, or `delay` seconds; False when the segment has retired or
        the topic is gone.
        """
        session = self._owner.session
        try:
            await session.wait_changed(self._seen or session.layout, delay)
        except EngineError as e:
            self.fail_queued(e)
            return False
        return not self.retired

    async def attach(self) -> None:
        """One attempt: PRODUCER at the segment's owner, then send what is queued. Raises what the broker answers."""
        session = self._owner.session
        self._seen = session.layout
        await session.at(lambda layout: layout.url_of(self.segment.segment_id), self._attach)

    async def _attach(self, url: str | None) -> None:
        owner = self._owner
        connection = await owner.pool.get(url)
        producer_id = connection.next_id()
        request = commands.Producer(
            producer_id=producer_id,
            topic=self.segment.name,
            producer_name=owner.name,
            access_mode=self._access,
            claim=None if self._is_first else owner.claim,
            renewal=owner.started,
            waited_ms=owner.waited_ms(),
            properties=dict(owner.properties),
        )
        timeout = None if self._access == "wait_for_exclusive" else owner.pool.options.operation_timeout
        self._ended_id = 0  # ids repeat from connection to connection
        connection.attach(producer_id, self)
        try:
            answer = await connection.request(request, timeout)
        except BaseException as e:
            connection.detach(producer_id)
            if not isinstance(e, EngineError) or isinstance(e, TimeoutError):
                self._say_close(connection, producer_id)
            raise
        if self._closed or self.retired:
            connection.detach(producer_id)
            self._say_close(connection, producer_id)
            return
        if connection.lost is not None:  # right behind the answer; connection_lost() left it to this attempt
            raise connection.lost
        if self._ended_id == producer_id:
            connection.detach(producer_id)
            raise NotOwnerError(f"{self.segment.name}: the attachment ended as it began")
        self._connection, self._producer_id = connection, producer_id
        self.used, self.eager, self._claims_left = True, False, 0
        self.last_sequence = answer.last_sequence
        if request.claim is None:
            owner.claim = answer.claim
        owner.acknowledged_below = max(owner.acknowledged_below, answer.floor or 0)
        self.transmit()

    @property
    def _access(self) -> str:
        """Once it was let in, access is renewed, not asked for: that neither waits nor drives anybody out."""
        mode = self._owner.access_mode
        return "exclusive" if self._owner.started and mode != "shared" else mode

    @property
    def _is_first(self) -> bool:
        """Whether its segment is the topic's first, where exclusive access is decided."""
        return self.segment.hash_range.start == 0

    def _detach(self) -> None:
        """Forget the attachment; frames that are still under way for it are dropped."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.detach(self._producer_id)

    def _close_attachment(self) -> None:
        connection = self._connection
        self._detach()
        if connection is not None:
            self._say_close(connection, self._producer_id)

    @staticmethod
    def _say_close(connection: Connection, producer_id: int) -> None:
        if connection.lost is None:
            closing = connection.start_request(commands.CloseProducer(producer_id=producer_id))
            closing.add_done_callback(ignore_outcome)

    async def close(self) -> None:
        """End the attachment and wait for the broker to confirm it. Idempotent."""
        self._closed = True
        connection = self._connection
        self._detach()
        if connection is not None and connection.lost is None:
            closing = commands.CloseProducer(producer_id=self._producer_id)
            try:
                await connection.request(closing, self._owner.pool.options.operation_timeout)
            except EngineError as e:
                log.debug("%s: closing the producer: %s", self.segment.name, e)
