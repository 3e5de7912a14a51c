"""A producer's sender into one segment: what waits to be sent there, and what was sent and not answered.

Order per key. All messages of a key go to one segment, and a segment has one sender. Entries leave its queue in order,
travel in SEND frames (several to a frame), and are answered in the same order: a receipt that does not name the oldest
entry sent is a protocol error, and drops the connection.

Resending. Whatever ends the attachment (a lost connection, a segment that moved) puts what was sent and not answered
back to the head of the queue, still in order. The next attachment sends it again. The broker recognises each entry by
producer name and sequence, and answers one that it has stored without storing it again (semantics 23, 24). An entry
that the broker refuses on its own account fails alone; any other refusal also refuses what was sent behind that entry,
since it must not be stored ahead of it.

Succession over a seal (see succession.py for the whole):

    SENDING    takes entries and sends them
    HELD       takes entries, and sends none before its predecessors have handed on what they have: it is older
    RETIRED    its segment is sealed: sends nothing more, waits for the answers that may still come, then hands the
               rest to its successors
    CLOSED     the producer has ended

Attaching is independent of that: a sender attaches when there is something to send (or when exclusive access must be
claimed), as often as it takes. Only errors that do not pass fail what is queued.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from operator import attrgetter
from typing import Protocol

from msgspec.structs import replace

from engine._native.produce.outgoing import Outgoing
from engine._native.produce.sealed import SealedEntry
from engine.aio.backoff import RetryDelay
from engine.client.net.connection import Connection
from engine.client.net.link import PRODUCER, Link
from engine.client.net.pool import Pool
from engine.client.produce.backlog import ATTEMPTS_MAX, Backlog, Credit
from engine.client.produce.in_flight import InFlight
from engine.client.topic.layout import SegmentView, TopicLayout
from engine.client.topic.session import TopicSession
from engine.client.transact.coordination import is_committed
from engine.client.transact.scope import Scope
from engine.errors import (
    AlreadyClosedError,
    ConnectError,
    CorruptionError,
    EngineError,
    FencedError,
    InvalidArgumentError,
    MessageTooLargeError,
    NotFoundError,
    PartlyStoredError,
    ProducerBusyError,
    ProtocolError,
    SegmentSealedError,
    TimeoutError,
    UnknownOutcomeError,
)
from engine.model.access import AccessMode
from engine.model.transactions import TRANSACTION_OVER
from engine.wire import commands
from engine.wire.commands import Header

log = logging.getLogger(__name__)

# Between attempts at a sealed segment whose successors are not known yet: the layout's arrival ends the wait.
SEALED_S_FIRST = 0.1
SEALED_S_MAX = 5.0

FATAL = (FencedError, ProducerBusyError)  # as an answer to PRODUCER these end the producer

# A SEND_ERROR of these is about one entry; any other ends the attachment.
_ABOUT_ONE_ENTRY = (MessageTooLargeError, CorruptionError, InvalidArgumentError)


class SenderState(enum.Enum):
    """See the head of this file."""

    SENDING = "sending"
    HELD = "held"
    RETIRED = "retired"
    CLOSED = "closed"


_MOVES = {
    SenderState.SENDING: {SenderState.HELD, SenderState.RETIRED, SenderState.CLOSED},
    SenderState.HELD: {SenderState.SENDING, SenderState.RETIRED, SenderState.CLOSED},
    SenderState.RETIRED: {SenderState.CLOSED},
    SenderState.CLOSED: {SenderState.CLOSED},
}


class SenderOwner(Protocol):
    """What a sender wants from its producer. `in_flight` is there before anything is sent."""

    name: str
    access_mode: str
    properties: Mapping[str, str]
    name_proof: bytes | None
    pool: Pool
    session: TopicSession
    in_flight: InFlight
    claim: list[int] | None  # to the topic, from the owner of its first segment
    acknowledged_below: int  # every message with a lower sequence is stored
    started: bool  # before that it attaches its senders itself
    failure: EngineError | None  # why nothing is sent any more; what was in flight has failed with it

    def receipts_came(self) -> None:
        """Receipts were passed to `in_flight`."""

    def waited_ms(self) -> int:
        """How long it has waited for access."""

    def settle_retired(self) -> None:
        """A retired sender got an answer, or can get none any more."""

    def fail(self, error: EngineError) -> None:
        """The producer as a whole cannot go on."""

    def take_apart(self, entry: SealedEntry) -> list[SealedEntry]:
        """Its messages as entries of their own, which are in flight in its place."""


class Sender(Outgoing):
    """Loop thread only. `last_sequence`: durable in the segment, as its owner said at the last attachment."""

    backlog: Backlog
    owner: SenderOwner
    link: Link | None  # while it is open
    credit: Credit | None  # of the attachment; None: there is no limit

    def __init__(self, owner: SenderOwner, segment: SegmentView) -> None:
        super().__init__(owner, Backlog(owner), commands.Send, commands.Receipt, commands.JOINT_SENDS)
        self.segment = segment
        self.state = SenderState.SENDING
        self.last_sequence = -1
        self.waits_for: set[Sender] = set()  # predecessors that have not handed on what they have
        self.eager = False  # attach before there is something to send
        self.used = False  # was attached once
        self._claims_left = 0  # attempts to repeat a claim that met another producer's
        self._over: set[Scope] = set()  # transactions that have ended; the attachment ends with them
        self._opening: Link | None = None
        self._attaching = False  # in the background
        self._seen: TopicLayout | None = None  # the layout that the last attempt to attach went by
        self._stale: EngineError | None = None  # why that layout may be out of date

    def _move_to(self, state: SenderState) -> None:
        assert state in _MOVES[self.state], f"a sender cannot move from {self.state} to {state}"
        self.state, self.sends = state, state is SenderState.SENDING

    @property
    def attached(self) -> bool:
        """Whether the owner of the segment knows this producer."""
        return self.link is not None

    @property
    def retired(self) -> bool:
        """Whether its segment is sealed: it sends nothing more."""
        return self.state is SenderState.RETIRED

    # -- sending ---------------------------------------------------------------------------------------------

    def unattached(self) -> None:
        """See Outgoing."""
        if self._needed:
            self._start_attaching()

    def in_transactions(
        self, connection: Connection, header: commands.Send, entries: list[SealedEntry]
    ) -> commands.Send:
        """See Outgoing. They are told that the frame is sent."""
        connection.stream.gather()  # the commits may follow at once
        runs = [(scope, len(list(run))) for scope, run in groupby(entries, attrgetter("scope"))]
        for scope, count in runs:
            scope.frame_sent(connection, count)
        if len(runs) > 1:
            return replace(header, several=True)
        return replace(header, transaction=runs[0][0].id, attempt=runs[0][0].attempt)

    def slowed(self) -> Collection[SealedEntry]:
        """What waits until the broker gives credit."""
        return self.backlog.queue if self.credit is not None and not self.credit.left else ()

    def _drop_credit(self) -> None:
        """The attachment has ended, and its credit with it: what has waited for it waits for an attachment now."""
        if slowed := self.slowed():
            self.owner.in_flight.renew(slowed)
        self.credit = None

    def fail_queued(self, error: Exception) -> None:
        """Fail everything in this sender."""
        self.owner.in_flight.fail(self.backlog.take(), error)

    @property
    def _needed(self) -> bool:
        """Whether there must be an attachment: to send something, or to hold a claim to exclusive access."""
        if self.state in (SenderState.RETIRED, SenderState.CLOSED) or not self.owner.started:
            return False
        return bool(self.backlog) or self.eager or self.owner.access_mode != "shared"

    # -- succession ------------------------------------------------------------------------------------------

    def succeed(self, predecessors: Iterable[Sender]) -> None:
        """Hold what comes until these have handed on what they have; attach meanwhile where it will be of use."""
        self.waits_for = set(predecessors)
        if self.waits_for:
            self._move_to(SenderState.HELD)
        self.eager = any(sender.used or sender.backlog for sender in self.waits_for)
        self._claims_left = ATTEMPTS_MAX

    def retire(self) -> None:
        """The segment takes no more messages. An attachment stays for the answers; an attempt at one is of no use."""
        self._move_to(SenderState.RETIRED)
        if self._opening is not None:
            self._opening.close()

    @property
    def is_settled(self) -> bool:
        """Whether a retired sender may hand on what it has: no predecessor adds to it, no answer can come."""
        return not self.waits_for and self.backlog.is_answered()

    def surrender(self) -> list[SealedEntry]:
        """End the attachment; everything that was not answered, in order."""
        self.backlog.sent.clear()  # out of time, all of it
        self._close_link()
        return self.backlog.take_unsent()

    def release(self, predecessor: Sender) -> None:
        """A predecessor has handed on everything; after the last one, what it left is sent."""
        self.waits_for.discard(predecessor)
        if not self.waits_for and self.state is SenderState.HELD:
            self.backlog.join()
            self._move_to(SenderState.SENDING)
            self.transmit()

    def readdress(self, segment: SegmentView) -> None:
        """The segment's newest view. Where it has another owner now, what was sent is sent again there."""
        moved = self.link is not None and segment.url not in (None, self.segment.url)
        self.segment = segment
        if moved:
            self._close_link()
            self.backlog.requeue()
            self._go_on()

    # -- what the segment's owner answers --------------------------------------------------------------------

    def other_received(self, header: Header) -> None:
        """Refusals and credit."""
        if isinstance(header, commands.SendError):
            self._refused(header.sequence, EngineError.from_code(header.code, header.message))
        elif isinstance(header, commands.PublishCredit):
            self._credited(header.messages, header.bytes)

    def answered(self) -> None:
        """See Outgoing."""
        if self.retired:
            self.owner.settle_retired()

    def _credited(self, messages: int | None, size: int | None) -> None:
        if self.credit is None:
            self.credit = Credit()
        self.credit.grant(messages, size)
        if self.credit.unlimited:
            self.credit = None
        self.transmit()

    def resume_writing(self) -> None:
        """See LinkSession."""
        self.transmit()

    def link_ended(self, error: EngineError) -> None:
        """Everything sent is sent again over the next link, unless the error is one that lasts."""
        self.link = None
        self._drop_credit()
        stale = error.layout_stale or isinstance(error, NotFoundError)
        self.backlog.requeue()
        if isinstance(error, TRANSACTION_OVER):
            self._transactions_over(error)
            return
        if stale:
            self.backlog.count_attempt(self.segment.name)
        if not stale and not isinstance(error, ConnectError | AlreadyClosedError):
            self.fail_queued(error)
            if isinstance(error, FATAL):
                self.owner.fail(error)
            if self.retired:
                self.owner.settle_retired()
            return
        self._go_on(error if stale else None)

    def out_of_step(self, sequence: int) -> None:
        """A receipt for an entry that is not the oldest one sent: the connection cannot be trusted any more."""
        sent = self.backlog.sent
        waiting = sent[0].first_sequence if sent else None
        log.error("%s: receipt for sequence %s, expected %s", self.segment.name, sequence, waiting)
        if self.link is not None:
            self.link.connection.fail(ProtocolError(f"receipt for sequence {sequence}, expected {waiting}"))

    def _refused(self, sequence: int, error: EngineError) -> None:
        """One entry was refused; unless the error is about it alone, so was everything after it."""
        backlog = self.backlog
        if isinstance(error, PartlyStoredError) and any(e.first_sequence == sequence for e in backlog.sent):
            self._take_apart(sequence, error)
            return
        if isinstance(error, TRANSACTION_OVER):
            self._refuse_transaction(sequence, error)
            return
        if isinstance(error, _ABOUT_ONE_ENTRY):
            refused = [e for e in backlog.sent if e.first_sequence == sequence]
            for entry in refused:
                backlog.sent.remove(entry)
                self.answered_bytes += entry.pending
            self.owner.in_flight.fail(refused, error)
            self._transmit_or_settle()
            return
        if not backlog.sent:
            return
        self._close_link()
        if error.layout_stale or isinstance(error, NotFoundError):
            self.link_ended(error)
            return
        entries = list(backlog.sent)
        backlog.sent.clear()
        at = next((i for i, e in enumerate(entries) if e.first_sequence == sequence), 0)
        backlog.put_back(entries[:at])  # not answered, not refused
        self.owner.in_flight.fail(entries[at:], error)
        if isinstance(error, FATAL):
            self.owner.fail(error)
        elif not self.retired:
            self.transmit()
        if self.retired:
            self.owner.settle_retired()

    def _refuse_transaction(self, sequence: int, error: EngineError) -> None:
        """This entry fails. Those behind it may have been in time: they are answered before the link ends."""
        sent = self.backlog.sent
        refused = next((e for e in sent if e.first_sequence == sequence), None)
        if refused is None or refused.scope is None:
            return
        sent.remove(refused)
        self._over.add(refused.scope)
        self._fail_in(refused.scope, [refused], error)
        if self.retired:
            self.owner.settle_retired()

    def _transactions_over(self, error: EngineError) -> None:
        """The rest of what is in the transactions that have ended fails; everything else is sent again."""
        over, self._over = self._over, set()
        entries = self.backlog.take_unsent()
        self.backlog.queue.extend(e for e in entries if e.scope not in over)
        for scope in over:
            self._fail_in(scope, [e for e in entries if e.scope is scope], error)
        self._transmit_or_settle()

    def _fail_in(self, scope: Scope, entries: list[SealedEntry], error: EngineError) -> None:
        if entries and (scope.mark is None or not self._begin_judging(scope, entries, error)):
            self.owner.in_flight.fail(entries, error)

    def _begin_judging(self, scope: Scope, entries: list[SealedEntry], error: EngineError) -> bool:
        judging = self._judge(scope.id, scope.mark, entries, error)
        return self.owner.pool.tasks.spawn(judging, name=f"judge what was sent in {scope.id}") is not None

    async def _judge(self, ident: str, mark: int | None, entries: list[SealedEntry], error: EngineError) -> None:
        """The commit followed these entries, and its answer was lost: the coordinator knows whether it counts."""
        try:
            counts = await is_committed(self.owner.pool, ident, mark)
        except EngineError as e:
            counts, error = False, UnknownOutcomeError(f"whether the transaction {ident} is committed is unknown: {e}")
        if counts:
            self.owner.in_flight.acknowledge(entries, [-1] * len(entries))
        else:
            self.owner.in_flight.fail(entries, error)

    def _take_apart(self, sequence: int, error: EngineError) -> None:
        """Some messages of one entry are stored: send them one by one, before what was sent behind the entry."""
        backlog, owner = self.backlog, self.owner
        self._close_link()
        backlog.requeue()
        entries = backlog.take_unsent()
        for entry in entries:
            if entry.first_sequence == sequence and entry in owner.in_flight:
                if entry.count == 1:
                    owner.in_flight.fail([entry], error)
                    continue
                backlog.queue.extend(owner.take_apart(entry))
            else:
                backlog.queue.append(entry)
        if owner.failure is not None:  # by then, of what was just failed
            self.fail_queued(owner.failure)
        self._transmit_or_settle()

    def _transmit_or_settle(self) -> None:
        if self.retired:
            self.owner.settle_retired()
        else:
            self.transmit()

    def _go_on(self, stale: EngineError | None = None) -> None:
        """The attachment is gone: make another one where it is needed."""
        if self.retired:
            self.owner.settle_retired()
        elif self._needed:
            self._start_attaching(stale)

    # -- attaching -------------------------------------------------------------------------------------------

    def _start_attaching(self, stale: EngineError | None = None) -> None:
        self._stale = stale or self._stale
        if not self._attaching and self.state is not SenderState.CLOSED:
            self._attaching = True
            self.owner.pool.tasks.spawn(self._attach_in_background(), name=f"attach {self.segment.name}")

    async def _attach_in_background(self) -> None:
        """Attach, as often as it takes, while there is something to send; errors that do not pass fail the queue."""
        backoff = self.owner.pool.retry_delays()
        sealed = RetryDelay(self.owner.pool.options.rng, initial=SEALED_S_FIRST, maximum=SEALED_S_MAX)
        refusals = losses = 0
        try:
            while self._needed and not self.attached:
                stale, self._stale = self._stale, None
                if stale is not None:
                    refusals += 1
                    self.owner.session.refused(refusals)
                    pauses = sealed if isinstance(stale, SegmentSealedError) else backoff
                    if not await self._wait_layout(pauses.next()):
                        return
                try:
                    await self.attach()  # it may have ended again by now
                except EngineError as e:
                    if not self._survives(e):
                        return
                    self._stale = None if isinstance(e, ConnectError | TimeoutError) else e
                    if isinstance(e, ConnectError):
                        losses += 1
                    if losses > 1:  # after one loss at once; after several with growing pauses
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
            self._claims_left -= 1  # the other is a newcomer, which is refused at the next segment and gives up
            return True
        self.fail_queued(error)
        if isinstance(error, FATAL):
            self.owner.fail(error)
        return False

    async def _wait_layout(self, delay: float) -> bool:
        """Wait for another layout than the one last gone by, or `delay` seconds; False when the segment has retired or
        the topic is gone.
        """
        session = self.owner.session
        try:
            await session.wait_changed(self._seen or session.layout, delay)
        except EngineError as e:
            self.fail_queued(e)
            return False
        return not self.retired

    async def attach(self) -> None:
        """One attempt: PRODUCER at the segment's owner, then send what is queued. Raises what the broker answers."""
        session = self.owner.session
        self._seen = session.layout
        await session.at(lambda layout: layout.url_of(self.segment.segment_id), self._attach)

    async def _attach(self, url: str | None) -> None:
        if self.state in (SenderState.RETIRED, SenderState.CLOSED):  # before this attempt had a link to be closed
            return
        owner, options = self.owner, self.owner.pool.options
        timeout = None if self._access == AccessMode.WAIT_FOR_EXCLUSIVE else options.operation_timeout
        self.credit = None
        link = self._opening = Link(owner.pool, PRODUCER, self)
        claim: list[int] | None = None  # that the request carried

        def request_of(ident: int) -> commands.Producer:
            nonlocal claim
            claim = None if self._is_first else owner.claim
            return commands.Producer(
                producer_id=ident,
                topic=self.segment.name,
                producer_name=owner.name,
                access_mode=self._access,
                claim=claim,
                renewal=owner.started,
                waited_ms=owner.waited_ms(),
                properties=dict(owner.properties),
                name_proof=owner.name_proof,
            )

        try:
            answer = await link.open(url, request_of, timeout)
        finally:
            self._opening = None
        if answer is None:
            return
        self.link = link
        if not self.used and answer.end is not None:
            self.end = answer.end
        self.used, self.eager, self._claims_left = True, False, 0
        self.last_sequence = answer.last_sequence
        if claim is None:
            owner.claim = answer.claim
        owner.acknowledged_below = max(owner.acknowledged_below, answer.floor or 0)
        self.transmit()

    @property
    def _access(self) -> str:
        """Once granted, access is renewed, not asked for: that neither waits nor fences other producers."""
        mode = self.owner.access_mode
        return "exclusive" if self.owner.started and mode != "shared" else mode

    @property
    def _is_first(self) -> bool:
        """Whether its segment is the topic's first, where exclusive access is decided."""
        return self.segment.hash_range.start == 0

    def _close_link(self) -> None:
        """End the attachment, or the attempt at one, without waiting for the broker."""
        for link in (self.link, self._opening):
            if link is not None:
                link.close()
        self.link = None
        self._drop_credit()

    async def close(self) -> None:
        """End the attachment and wait for the broker to confirm it. Idempotent."""
        self._move_to(SenderState.CLOSED)
        link, self.link = self.link or self._opening, None
        if link is not None:
            await link.close_and_wait()
