"""A producer's lane into one segment: what waits to be sent there, and what is in flight.

Entries leave the queue in order, travel in SEND frames (several to a frame), and are answered in the same order.
Whatever ends the attachment (a lost connection, a segment that moved) puts the entries in flight back to the head of
the queue, and the next attachment sends them again; the broker knows them by producer name and sequence (semantics
23, 24). A lane whose segment was sealed retires: it sends nothing more, waits for what is still answered, and hands the
rest to its successors, which wait for that before they send (see succession.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from engine._native.produce.batcher import SealedEntry
from engine.client.produce.backlog import ATTEMPTS_MAX
from engine.client.produce.sender_attachment import FATAL, LaneAttachment, LaneOwner
from engine.client.topic.session import SegmentView
from engine.client.transact.coordination import is_committed
from engine.client.transact.scope import Scope
from engine.errors import (
    AlreadyClosedError,
    ConnectError,
    CorruptionError,
    EngineError,
    InvalidArgumentError,
    MessageTooLargeError,
    NotFoundError,
    NotOwnerError,
    PartlyStoredError,
    ProtocolError,
    UnknownOutcomeError,
)
from engine.model.transactions import TRANSACTION_OVER
from engine.wire import commands
from engine.wire.commands import Header

log = logging.getLogger(__name__)

# A SEND_ERROR of these is about one entry; any other ends the attachment.
_ABOUT_ONE_ENTRY = (MessageTooLargeError, CorruptionError, InvalidArgumentError)


class Lane(LaneAttachment):
    """Loop thread only."""

    def __init__(self, owner: LaneOwner, segment: SegmentView) -> None:
        super().__init__(owner, segment)
        # Reshaping. Nothing is sent while `held`.
        self.waits_for: set[Lane] = set()
        self.held = False

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
                transaction = attempt = None
                if (scope := entries[0].scope) is not None:
                    transaction, attempt = scope.id, scope.attempt
                    connection.stream.gather()  # what ends it may come right behind
                    scope.frame_sent(connection, len(entries))
                header = commands.Send(
                    producer_id=self._producer_id, entries=len(entries), transaction=transaction, attempt=attempt
                )
                connection.stream.send(header, [e.data for e in entries])
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

    def frame_received(self, header: Header, payload: memoryview) -> None:
        """Receipts, refusals, and the end of the attachment."""
        if isinstance(header, commands.Receipt):
            self._receipt(header.sequences, header.offsets)
        elif isinstance(header, commands.SendError):
            self._refused(header.sequence, EngineError.from_code(header.code, header.message))
        elif isinstance(header, commands.CloseProducer) and header.request_id is None:
            error = EngineError.from_code(header.code or ConnectError.code, header.message or "closed")
            self._ended_id = header.producer_id
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
        if isinstance(error, PartlyStoredError) and any(e.first_sequence == sequence for e in backlog.in_flight):
            self._take_apart(sequence, error)
            return
        if isinstance(error, TRANSACTION_OVER):
            self._refuse_transaction(sequence, error)
            return
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
        backlog.put_back(entries[:at])  # not answered, not refused
        self._owner.ledger.fail(entries[at:], error)
        if isinstance(error, FATAL):
            self._owner.lane_fatal(error)
        elif not self.retired:
            self.transmit()
        if self.retired:
            self._owner.lane_retiring()

    def _refuse_transaction(self, sequence: int, error: EngineError) -> None:
        """What is of this entry's transaction fails, from there on; everything else is sent again."""
        backlog, owner = self.backlog, self._owner
        scope = next((e.scope for e in backlog.in_flight if e.first_sequence == sequence), None)
        if scope is None:
            return
        self._close_attachment()
        backlog.requeue()
        entries = backlog.take_unsent()
        refused = [e for e in entries if e.scope is scope and e.first_sequence >= sequence]
        backlog.queue.extend(e for e in entries if e.scope is not scope or e.first_sequence < sequence)
        if scope.mark is None or not self._begin_judging(scope, refused, error):
            owner.ledger.fail(refused, error)
        if self.retired:
            owner.lane_retiring()
        else:
            self.transmit()

    def _begin_judging(self, scope: Scope, entries: list[SealedEntry], error: EngineError) -> bool:
        judging = self._judge(scope.id, scope.mark, entries, error)
        return self._owner.pool.tasks.spawn(judging, name=f"judge what was sent in {scope.id}") is not None

    async def _judge(self, ident: str, mark: int | None, entries: list[SealedEntry], error: EngineError) -> None:
        """It was committed behind these, or it was not; whoever was to say so is gone."""
        try:
            counts = await is_committed(self._owner.pool, ident, mark)
        except EngineError as e:
            counts, error = False, UnknownOutcomeError(f"whether the transaction {ident} is committed is unknown: {e}")
        if counts:
            self._owner.ledger.acknowledge(entries, [-1] * len(entries))
        else:
            self._owner.ledger.fail(entries, error)

    def _take_apart(self, sequence: int, error: EngineError) -> None:
        """Of one entry some messages are stored: send them one by one, before what was sent behind it."""
        backlog, owner = self.backlog, self._owner
        self._close_attachment()
        backlog.requeue()
        entries = backlog.take_unsent()
        for entry in entries:
            if entry.first_sequence == sequence and entry in owner.ledger:
                if entry.count == 1:
                    owner.ledger.fail([entry], error)
                    continue
                backlog.queue.extend(owner.take_apart(entry))
            else:
                backlog.queue.append(entry)
        if owner.failure is not None:  # by then, of what was just failed
            self.fail_queued(owner.failure)
        if self.retired:
            owner.lane_retiring()
        else:
            self.transmit()

    def _ended(self, error: EngineError) -> None:
        """The owner ended the attachment."""
        stale = error.layout_stale or isinstance(error, NotFoundError)
        self.backlog.requeue()
        if stale:
            self.backlog.count_attempt(self.segment.name)
        if not stale and not isinstance(error, ConnectError | AlreadyClosedError):
            self.fail_queued(error)
            if isinstance(error, FATAL):
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
