"""A producer's lane into one segment: what waits to be sent there, what is in flight, and the attachment to its owner.

Entries leave the queue in order, travel in SEND frames (several to a frame), and are answered in the same order.
Whatever ends the attachment (a lost connection, a segment that moved) puts the entries in flight back to the head of
the queue, and the next attachment sends them again; the broker knows them by producer name and sequence (SEMANTICS
23, 24).
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Any, Protocol

from engine._native.batcher import SealedEntry
from engine.client.connection import Connection
from engine.client.ledger import Ledger
from engine.client.pool import Pool
from engine.client.topic import SegmentView, TopicSession
from engine.errors import (
    AlreadyClosedError,
    ConnectError,
    CorruptionError,
    EngineError,
    FencedError,
    InvalidArgumentError,
    MessageTooLargeError,
    NotFoundError,
    NotOwnerError,
    ProducerBusyError,
    ProtocolError,
    TimeoutError,
)
from engine.limits import MIB
from engine.wire.commands import Command

log = logging.getLogger(__name__)

SEND_FRAME_BYTES = 1 * MIB
ATTEMPTS_MAX = 10  # of one entry against a stale layout
LAYOUT_WAIT_S = 1.0

# A SEND_ERROR of these is about one entry; any other ends the attachment.
_ABOUT_ONE_ENTRY = (MessageTooLargeError, CorruptionError, InvalidArgumentError)
# An answer of these to PRODUCER ends the producer.
_FATAL = (FencedError, ProducerBusyError)


class LaneOwner(Protocol):
    """What a lane wants from its producer."""

    name: str
    access_mode: str
    pool: Pool
    session: TopicSession
    ledger: Ledger

    def receipts_came(self) -> None:
        """The ledger has just been told of receipts."""

    def lane_sealed(self, lane: Lane) -> None:
        """The lane's segment is sealed for good: its queue must go elsewhere."""

    def lane_fatal(self, error: EngineError) -> None:
        """The producer as a whole cannot go on."""


class Lane:
    """Loop thread only."""

    def __init__(self, owner: LaneOwner, segment: SegmentView) -> None:
        self.segment = segment
        self.last_sequence = -1  # durable in the segment, as the owner said at the last attachment
        self.queue: deque[SealedEntry] = deque()
        self.in_flight: deque[SealedEntry] = deque()
        self._owner = owner
        self._connection: Connection | None = None
        self._producer_id = 0
        self._ended_id = 0  # of the attachment that the broker ended last
        self._attaching = False
        self._closed = False

    # -- sending ---------------------------------------------------------------------------------------------

    def transmit(self) -> None:
        """Send what is queued, as far as the connection takes it; attach first where there is no attachment."""
        connection = self._connection
        if connection is None:
            if self.queue:
                self._start_attaching()
            return
        queue = self.queue
        while queue and connection.writable:
            entries = self._next_frame()
            if entries:
                header = {"producer_id": self._producer_id, "entries": len(entries)}
                connection.stream.send(Command.SEND, header, [e.data for e in entries])
                self.in_flight.extend(entries)

    def _next_frame(self) -> list[SealedEntry]:
        """The head of the queue, at most a frame full, without what has run out of time."""
        queue, ledger = self.queue, self._owner.ledger
        entries: list[SealedEntry] = []
        size = 0
        while queue and (not entries or size + len(queue[0].data) <= SEND_FRAME_BYTES):
            entry = queue.popleft()
            if entry in ledger:
                entries.append(entry)
                size += len(entry.data)
        return entries

    # -- Attached --------------------------------------------------------------------------------------------

    def frame_received(self, command: Command, header: dict[str, Any], payload: memoryview) -> None:
        """Receipts, refusals, and the end of the attachment."""
        if command is Command.SEND_RECEIPT:
            self._receipt(header["sequences"], header["offsets"])
        elif command is Command.SEND_ERROR:
            self._refused(header["sequence"], EngineError.from_code(header["code"], header["message"]))
        elif command is Command.CLOSE_PRODUCER and header.get("request_id") is None:
            error = EngineError.from_code(header.get("code") or ConnectError.code, header.get("message") or "closed")
            self._ended_id = header["producer_id"]
            self._detach()
            self._ended(error)

    def resume_writing(self) -> None:
        """Go on sending."""
        self.transmit()

    def connection_lost(self, error: EngineError) -> None:
        """Everything in flight is sent again over the next connection."""
        self._connection = None
        self._requeue()
        if self._needed:
            self._start_attaching()

    def _receipt(self, sequences: list[int], offsets: list[int]) -> None:
        in_flight = self.in_flight
        entries: list[SealedEntry] = []
        for sequence in sequences:
            if not in_flight or in_flight[0].first_sequence != sequence:
                self._out_of_step(sequence)
                offsets = offsets[: len(entries)]
                break
            entries.append(in_flight.popleft())
        self._owner.ledger.acknowledge(entries, offsets)
        self._owner.receipts_came()

    def _out_of_step(self, sequence: int) -> None:
        """A receipt for what is not next in flight: the connection is of no use any more."""
        waiting = self.in_flight[0].first_sequence if self.in_flight else None
        log.error("%s: receipt for sequence %s, expected %s", self.segment.name, sequence, waiting)
        if self._connection is not None:
            self._connection.fail(ProtocolError(f"receipt for sequence {sequence}, expected {waiting}"))

    def _refused(self, sequence: int, error: EngineError) -> None:
        """One entry was refused; unless the error is about it alone, so was everything after it."""
        if isinstance(error, _ABOUT_ONE_ENTRY):
            refused = [e for e in self.in_flight if e.first_sequence == sequence]
            for entry in refused:
                self.in_flight.remove(entry)
            self._owner.ledger.fail(refused, error)
            return
        if not self.in_flight:
            return
        self._close_attachment()
        if error.layout_stale or isinstance(error, NotFoundError):
            self._ended(error)
            return
        entries = list(self.in_flight)
        self.in_flight.clear()
        at = next((i for i, e in enumerate(entries) if e.first_sequence == sequence), 0)
        self.queue.extendleft(reversed(entries[:at]))  # not answered, not refused: sent again
        self._owner.ledger.fail(entries[at:], error)
        if isinstance(error, _FATAL):
            self._owner.lane_fatal(error)
        else:
            self.transmit()

    def _ended(self, error: EngineError) -> None:
        """The owner ended the attachment."""
        stale = error.layout_stale or isinstance(error, NotFoundError)
        self._requeue(count_attempt=stale)
        if not stale and not isinstance(error, ConnectError | AlreadyClosedError):
            self.fail_queued(error)
            if isinstance(error, _FATAL):
                self._owner.lane_fatal(error)
            return
        if self._needed:
            self._start_attaching(stale=stale)

    def _requeue(self, *, count_attempt: bool = False) -> None:
        """Put what is in flight back to the head of the queue; fail what was refused too often."""
        if self.in_flight:
            self.queue.extendleft(reversed(self.in_flight))
            self._owner.ledger.entries_resent += len(self.in_flight)
            self.in_flight.clear()
        if count_attempt:
            self._count_attempt()

    def _count_attempt(self) -> None:
        worn = []
        for entry in self.queue:
            entry.attempts += 1
            if entry.attempts >= ATTEMPTS_MAX:
                worn.append(entry)
        if worn:
            self.queue = deque(e for e in self.queue if e.attempts < ATTEMPTS_MAX)
            text = f"{self.segment.name}: not written in {ATTEMPTS_MAX} attempts, the topic's layout kept changing"
            self._owner.ledger.fail(worn, TimeoutError(text))

    def fail_queued(self, error: Exception) -> None:
        """Fail everything in this lane."""
        entries = [*self.in_flight, *self.queue]
        self.in_flight.clear()
        self.queue.clear()
        self._owner.ledger.fail(entries, error)

    @property
    def _needed(self) -> bool:
        """Whether there must be an attachment: to send something, or to hold a claim to exclusive access."""
        return not self._closed and (bool(self.queue) or self._owner.access_mode != "shared")

    # -- attaching -------------------------------------------------------------------------------------------

    def _start_attaching(self, *, stale: bool = False) -> None:
        if not self._attaching and not self._closed:
            self._attaching = True
            self._owner.pool.tasks.spawn(self._attach_in_background(stale), name=f"attach {self.segment.name}")

    async def _attach_in_background(self, stale: bool) -> None:
        """Attach, as often as it takes, while there is something to send; errors that do not pass fail the queue."""
        backoff = self._owner.pool.retry_delays()
        try:
            while self._needed:
                if stale and not await self._wait_layout(backoff.next()):
                    return
                try:
                    await self.attach()
                    return
                except EngineError as e:
                    stale = not isinstance(e, ConnectError | TimeoutError)
                    if not self._survives(e):
                        return
        finally:
            self._attaching = False

    def _survives(self, error: EngineError) -> bool:
        """Whether to attach again after this; if not, its consequences."""
        if error.layout_stale or isinstance(error, NotFoundError):
            self._count_attempt()
            return True
        if isinstance(error, ConnectError | TimeoutError):
            self._drop_expired()
            return True
        self.fail_queued(error)
        if isinstance(error, _FATAL):
            self._owner.lane_fatal(error)
        return False

    def _drop_expired(self) -> None:
        ledger = self._owner.ledger
        self.queue = deque(e for e in self.queue if e in ledger)

    async def _wait_layout(self, delay: float) -> bool:
        """Wait for a newer layout or `delay` seconds; False when the segment no longer takes messages or the topic is
        gone.
        """
        session = self._owner.session
        try:
            await session.wait_newer(session.layout.epoch, min(delay, LAYOUT_WAIT_S))
        except EngineError as e:
            self.fail_queued(e)
            return False
        segment = session.layout.segments.get(self.segment.segment_id)
        if segment is None or not segment.active:
            self._owner.lane_sealed(self)
            return False
        self.segment = segment
        return True

    async def attach(self) -> None:
        """One attempt: PRODUCER at the segment's owner, then send what is queued. Raises what the broker answers."""
        owner = self._owner
        connection = await owner.pool.get(self.segment.url)
        producer_id = connection.next_id()
        header = {
            "producer_id": producer_id,
            "topic": self.segment.name,
            "producer_name": owner.name,
            "access_mode": owner.access_mode,
        }
        timeout = None if owner.access_mode == "wait_for_exclusive" else owner.pool.options.operation_timeout
        self._ended_id = 0  # ids repeat from connection to connection
        connection.attach(producer_id, self)
        try:
            answer = await connection.request(Command.PRODUCER, header, timeout)
        except BaseException as e:
            connection.detach(producer_id)
            if not isinstance(e, EngineError) or isinstance(e, TimeoutError):
                self._say_close(connection, producer_id)
            raise
        if self._closed:
            self._say_close(connection, producer_id)
            return
        if connection.lost is not None:  # right behind the answer; connection_lost() left it to this attempt
            raise connection.lost
        if self._ended_id == producer_id:
            connection.detach(producer_id)
            raise NotOwnerError(f"{self.segment.name}: the attachment ended as it began")
        self._connection, self._producer_id = connection, producer_id
        self.last_sequence = answer["last_sequence"]
        self.transmit()

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
            connection.start_request(Command.CLOSE_PRODUCER, {"producer_id": producer_id}).add_done_callback(
                ignore_outcome
            )

    async def close(self) -> None:
        """End the attachment and wait for the broker to confirm it. Idempotent."""
        self._closed = True
        connection = self._connection
        self._detach()
        if connection is not None and connection.lost is None:
            header = {"producer_id": self._producer_id}
            try:
                await connection.request(Command.CLOSE_PRODUCER, header, self._owner.pool.options.operation_timeout)
            except EngineError as e:
                log.debug("%s: closing the producer: %s", self.segment.name, e)


def ignore_outcome(future: Any) -> None:
    """Retrieve the outcome of something nobody waits for."""
    if not future.cancelled():
        future.exception()
