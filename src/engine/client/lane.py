"""A producer's lane into one segment: what waits to be sent there, what is in flight, and the attachment to its owner.

Entries leave the queue in order, travel in SEND frames (several to a frame), and are answered in the same order.
Whatever ends the attachment (a lost connection, a segment that moved) puts the entries in flight back to the head of
the queue, and the next attachment sends them again; the broker knows them by producer name and sequence (SEMANTICS
23, 24). A lane whose segment was sealed retires: it sends nothing more, waits for what is still answered, and hands the
rest to its successors, which wait for that before they send (see succession.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Protocol

from engine._native.batcher import SealedEntry
from engine.aio.backoff import Backoff
from engine.client.backlog import ATTEMPTS_MAX, Backlog, LedgerHolder
from engine.client.connection import Connection, ignore_outcome
from engine.client.pool import Pool
from engine.client.topic import SegmentView, TopicLayout, TopicSession
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
    SegmentSealedError,
    TimeoutError,
)
from engine.wire.commands import Command

log = logging.getLogger(__name__)

# Between attempts at a sealed segment whose successors are not known yet: the layout's arrival ends the wait.
SEALED_S_FIRST = 0.1
SEALED_S_MAX = 5.0

# A SEND_ERROR of these is about one entry; any other ends the attachment.
_ABOUT_ONE_ENTRY = (MessageTooLargeError, CorruptionError, InvalidArgumentError)
_FATAL = (FencedError, ProducerBusyError)  # as an answer to PRODUCER these end the producer


class LaneOwner(LedgerHolder, Protocol):
    """What a lane wants from its producer."""

    name: str
    access_mode: str
    pool: Pool
    session: TopicSession
    started: bool  # before that it attaches its lanes itself
    failure: EngineError | None  # why nothing goes out any more; what was on its way has failed with it

    def receipts_came(self) -> None:
        """The ledger has just been told of receipts."""

    def lane_retiring(self) -> None:
        """Something happened to a lane that is retired: it may have heard all that it will hear."""

    def lane_fatal(self, error: EngineError) -> None:
        """The producer as a whole cannot go on."""


class Lane:
    """Loop thread only."""

    def __init__(self, owner: LaneOwner, segment: SegmentView) -> None:
        self.segment = segment
        self.last_sequence = -1  # durable in the segment, as the owner said at the last attachment
        self.backlog = Backlog(owner)
        # Reshaping. Nothing is sent while `held`.
        self.waits_for: set[Lane] = set()
        self.retired = False
        self.held = False
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

    # -- sending ---------------------------------------------------------------------------------------------

    def transmit(self) -> None:
        """Send what is queued, as far as the connection takes it; attach first where there is no attachment."""
        connection = self._connection
        if connection is None:
            if self._needed:
                self._start_attaching()
            return
        if self.held:
            return
        backlog = self.backlog
        while backlog.queue and connection.writable:
            entries = backlog.next_frame()
            if entries:
                header = {"producer_id": self._producer_id, "entries": len(entries)}
                connection.stream.send(Command.SEND, header, [e.data for e in entries])
                backlog.in_flight.extend(entries)

    # -- reshaping -------------------------------------------------------------------------------------------

    def succeed(self, predecessors: Iterable[Lane]) -> None:
        """Hold what comes until these have handed on what they have; attach meanwhile where it will be of use."""
        self.waits_for = set(predecessors)
        self.held = bool(self.waits_for)
        self.eager = any(lane.used or lane.backlog for lane in self.waits_for)
        self._claims_left = ATTEMPTS_MAX

    def retire(self) -> None:
        """The segment takes no more messages: send none."""
        self.retired = self.held = True

    @property
    def has_heard_all(self) -> bool:
        """Whether a retired lane may hand on what it has: nothing comes before that, nothing is still answered."""
        return not self.waits_for and self.backlog.is_answered()

    def surrender(self) -> list[SealedEntry]:
        """End the attachment; everything that was not answered, in order."""
        self.backlog.in_flight.clear()  # out of time, all of it
        self._close_attachment()
        return self.backlog.take_unsent()

    def let_go(self, predecessor: Lane) -> None:
        """A predecessor has handed on everything; after the last one what it left goes out."""
        self.waits_for.discard(predecessor)
        if not self.waits_for and not self.retired:
            self.backlog.join()
            self.held = False
            self.transmit()

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
        self.backlog.requeue()
        self._go_on()

    def _receipt(self, sequences: list[int], offsets: list[int]) -> None:
        if self._owner.failure is not None:
            return
        in_flight = self.backlog.in_flight
        entries: list[SealedEntry] = []
        for sequence in sequences:
            if not in_flight or in_flight[0].first_sequence != sequence:
                self._out_of_step(sequence)
                offsets = offsets[: len(entries)]
                break
            entries.append(in_flight.popleft())
        self._owner.ledger.acknowledge(entries, offsets)
        self._owner.receipts_came()
        if self.retired:
            self._owner.lane_retiring()

    def _out_of_step(self, sequence: int) -> None:
        """A receipt for what is not next in flight: the connection is of no use any more."""
        in_flight = self.backlog.in_flight
        waiting = in_flight[0].first_sequence if in_flight else None
        log.error("%s: receipt for sequence %s, expected %s", self.segment.name, sequence, waiting)
        if self._connection is not None:
            self._connection.fail(ProtocolError(f"receipt for sequence {sequence}, expected {waiting}"))

    def _refused(self, sequence: int, error: EngineError) -> None:
        """One entry was refused; unless the error is about it alone, so was everything after it."""
        backlog = self.backlog
        if isinstance(error, _ABOUT_ONE_ENTRY):
            refused = [e for e in backlog.in_flight if e.first_sequence == sequence]
            for entry in refused:
                backlog.in_flight.remove(entry)
            self._owner.ledger.fail(refused, error)
            if self.retired:
                self._owner.lane_retiring()
            return
        if not backlog.in_flight:
            return
        self._close_attachment()
        if error.layout_stale or isinstance(error, NotFoundError):
            self._ended(error)
            return
        entries = list(backlog.in_flight)
        backlog.in_flight.clear()
        at = next((i for i, e in enumerate(entries) if e.first_sequence == sequence), 0)
        backlog.queue.extendleft(reversed(entries[:at]))  # not answered, not refused: sent again
        self._owner.ledger.fail(entries[at:], error)
        if isinstance(error, _FATAL):
            self._owner.lane_fatal(error)
        elif not self.retired:
            self.transmit()
        if self.retired:
            self._owner.lane_retiring()

    def _ended(self, error: EngineError) -> None:
        """The owner ended the attachment."""
        stale = error.layout_stale or isinstance(error, NotFoundError)
        self.backlog.requeue()
        if stale:
            self.backlog.count_attempt(self.segment.name)
        if not stale and not isinstance(error, ConnectError | AlreadyClosedError):
            self.fail_queued(error)
            if isinstance(error, _FATAL):
                self._owner.lane_fatal(error)
            if self.retired:
                self._owner.lane_retiring()
            return
        self._go_on(error if stale else None)

    def _go_on(self, stale: EngineError | None = None) -> None:
        """The attachment is gone: make another one where there is need."""
        if self.retired:
            self._owner.lane_retiring()
        elif self._needed:
            self._start_attaching(stale)

    def readdress(self, segment: SegmentView) -> None:
        """The segment's newest view. Where its owner is another one by now, what is in flight is sent again there."""
        moved = self._connection is not None and segment.url not in (None, self.segment.url)
        self.segment = segment
        if moved:
            self._close_attachment()
            self.connection_lost(NotOwnerError(f"{segment.name} moved"))

    def fail_queued(self, error: Exception) -> None:
        """Fail everything in this lane."""
        self._owner.ledger.fail(self.backlog.take(), error)

    @property
    def _needed(self) -> bool:
        """Whether there must be an attachment: to send something, or to hold a claim to exclusive access."""
        if self._closed or self.retired or not self._owner.started:
            return False
        return bool(self.backlog) or self.eager or self._owner.access_mode != "shared"

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
        sealed = Backoff(self._owner.pool.options.rng, initial=SEALED_S_FIRST, maximum=SEALED_S_MAX)
        refusals = 0
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
        if isinstance(error, _FATAL):
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
        header = {
            "producer_id": producer_id,
            "topic": self.segment.name,
            "producer_name": owner.name,
            "access_mode": self._access,
        }
        timeout = None if self._access == "wait_for_exclusive" else owner.pool.options.operation_timeout
        self._ended_id = 0  # ids repeat from connection to connection
        connection.attach(producer_id, self)
        try:
            answer = await connection.request(Command.PRODUCER, header, timeout)
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
        self.last_sequence = answer["last_sequence"]
        self.transmit()

    @property
    def _access(self) -> str:
        """A claim to a successor's segment is renewed, not made: it neither waits nor drives anybody out."""
        mode = self._owner.access_mode
        return "exclusive" if self._claims_left and mode != "shared" else mode

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
