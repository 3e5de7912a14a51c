"""Producers attached to a segment: their frames are appended, and acknowledged in order when they are durable.

    send() ──> append to the log at once                                     ──> in_flight ───> receipt or refusal
         └──> or, in a transaction not known to be open: held, then append ───┘   in order of sending

A frame whose transaction has to be looked up waits in `held`, and so do all frames behind it, so that the log has them
in the order in which they were sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from engine._native.format.heads import all_encrypted, apparent_heads
from engine._native.serve.flights import Flight, Sender
from engine._native.serve.undecided import Run, runs_of
from engine.errors import (
    CorruptionError,
    EncryptionRequiredError,
    EngineError,
    InvalidArgumentError,
    MessageTooLargeError,
    PartlyStoredError,
)
from engine.limits import ENTRY_SIZE_MAX
from engine.model.transactions import TRANSACTION_OVER, attempt_number, parse_id
from engine.wire import commands

if TYPE_CHECKING:
    from engine._native.serve.groups import Appended
    from engine.broker.limits.limits import BrokerLimits
    from engine.broker.segment.hosted import HostedSegment
    from engine.broker.segment.limited import LimitedProducer
    from engine.broker.segment.ports import Peer
    from engine.broker.transactions.sends import TransactionSends
    from engine.model.access import AccessMode
    from engine.storage.segment import Membership

log = logging.getLogger(__name__)

# Errors about one entry alone: later entries are not affected.
ENTRY_ERRORS = (CorruptionError, EncryptionRequiredError, InvalidArgumentError, MessageTooLargeError)
_UNENCRYPTED = "a message to this topic must be encrypted end to end, by encryption_keys of its producer, and is not"


def _is_about_one(error: EngineError) -> bool:
    """The rest of a partly stored entry must be stored before later entries."""
    return isinstance(error, ENTRY_ERRORS) and not isinstance(error, PartlyStoredError)


class Awaited(NamedTuple):
    """An append that began in another way than by Segment.append_for()."""

    appended: asyncio.Future[list[Appended]]
    payload: memoryview
    since: float


def _is_refused_with_all_behind(append: Flight | asyncio.Future[list[Appended]]) -> bool:
    """Whether an append has failed at once, with an error that is not about one entry alone."""
    if not append.done() or append.cancelled() or (error := append.exception()) is None:
        return False
    return not (isinstance(error, EngineError) and _is_about_one(error))


class Part(NamedTuple):
    """Entries of a frame that follow each other. `refusal`: why they are not taken."""

    payload: memoryview
    refusal: MessageTooLargeError | None


class _Held(NamedTuple):
    """A frame that is not appended yet. `appended`: stands for the future of its append."""

    payload: memoryview
    transaction: Membership | None
    sends: TransactionSends | None
    appended: asyncio.Future[list[Appended]]

    def becomes(self, append: asyncio.Future[list[Appended]]) -> None:
        """It is being appended: `appended` gets the append's result."""

        def ended(append: asyncio.Future[list[Appended]]) -> None:
            if self.appended.done():
                if not append.cancelled():
                    append.exception()
            elif append.cancelled():
                self.appended.cancel()
            elif (error := append.exception()) is not None:
                self.appended.set_exception(error)
            else:
                self.appended.set_result(append.result())

        append.add_done_callback(ended)

    def missed(self, append: asyncio.Future[list[Appended]]) -> None:
        """It was refused before its append."""
        if self.sends is not None:
            self.sends.answered(append)


class Producer(Sender):
    """One attachment of a producer. Loop thread only.

    Entries are acknowledged, or refused, in the order in which they were sent: `in_flight` is answered from its head
    only. A refusal that concerns more than one entry ends the attachment: no later entry may overtake the refused
    ones, so the client attaches again and sends again. Where a transaction has ended, what is being appended behind the
    refused frame is answered first: its record may have been in time.
    """

    __slots__ = ("_admitting", "access", "claim", "properties")
    connection: Peer
    hosted: HostedSegment
    in_flight: deque[Flight | Awaited]
    held: deque[_Held] | None  # a frame whose transaction is being looked up, and those behind it, in order
    limited: LimitedProducer | None
    ending: EngineError | None

    def __init__(
        self,
        connection: Peer,
        ident: int,
        hosted: HostedSegment,
        name: str,
        access: AccessMode,
        claim: tuple[int, int, int] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(connection, ident, hosted, name)
        self.access = access
        self.claim = claim  # to the whole topic
        self.properties = dict(properties or {})  # set by its user
        self._admitting: asyncio.Task[None] | None = None

    def send_otherwise(self, payload: memoryview, transaction: str | None, attempt: str | None) -> None:
        """After a refusal frames are dropped: the client sends them again."""
        if self.refusing:
            self.connection.sends.dropped(transaction)
            return
        try:
            membership = None if transaction is None else (parse_id(transaction), attempt_number(attempt))
        except EngineError as e:
            self._refuse_frame(payload, e)
            return
        if self.limited is None and not self.hosted.encrypted_only:
            self._send(payload, membership)
        else:
            self._send_checked(payload, membership)

    def ended_at_once(self, append: Flight) -> None:
        self.refusing = self.refusing or _is_refused_with_all_behind(append)

    def _send_checked(self, payload: memoryview, transaction: Membership | None) -> None:
        if self.hosted.encrypted_only and not all_encrypted(payload):
            self._dropped(transaction)  # it cannot be committed as if it had been stored
            self._refuse_frame(payload, EncryptionRequiredError(_UNENCRYPTED))
        elif self.limited is not None and (parts := self.limited.sent(payload)) is not None:
            self._send_parts(parts, payload, transaction)
        else:
            self._send(payload, transaction)

    def _dropped(self, transaction: Membership | None) -> None:
        """A frame is not stored: its transaction cannot be committed right behind it."""
        if transaction is not None:
            self.connection.sends.of(transaction[0]).fail()

    def send_several(self, payload: memoryview) -> None:
        """Append the entries of one frame, each in the transaction that its header names.

        They share an append to the log where nothing is in the way: their transactions are known to be open, the log
        takes all of it, and no limit is to be counted for each. Elsewhere each run of entries in one transaction is
        like a frame of its own.
        """
        if self.refusing:
            self.connection.sends.dropped(None, payload)
            return
        try:
            runs = runs_of(payload)
        except EngineError as e:
            self._refuse_frame(payload, e)
            return
        plain = self.held is None and self.limited is None and not self.hosted.encrypted_only
        if plain and self._append_jointly(payload, runs):
            return
        for run in runs:
            entries = payload[run.start : run.stop]
            if self.refusing:
                self.connection.sends.of(run.number).fail()
            elif self.limited is None and not self.hosted.encrypted_only:
                self._send(entries, (run.number, run.attempt))
            else:
                self._send_checked(entries, (run.number, run.attempt))

    def _append_jointly(self, payload: memoryview, runs: list[Run]) -> bool:
        buffer, connection = self.hosted.transactions, self.connection
        if buffer is None or not buffer.admits_all([run.number for run in runs], connection.role):
            return False
        environment = self.hosted.environment
        now, landed = environment.latency.now(), environment.landings.add
        flights = [Flight(self, payload[run.start : run.stop], now, landed) for run in runs]
        sends_of = connection.sends.of
        sends = [sends_of(run.number) for run in runs]
        if not buffer.append_jointly(payload, runs, flights, sends, self.name):
            return False
        environment.publish.take(len(payload), connection.pressure)
        self.in_flight.extend(flights)
        return True

    def _send(self, payload: memoryview, transaction: Membership | None) -> None:
        if transaction is None and self.held is None:
            flight = self.append_plain(payload)
            if flight.done():
                self.ended_at_once(flight)
            return
        environment = self.hosted.environment
        environment.publish.take(len(payload), self.connection.pressure)
        now = environment.latency.now()
        append = self._append_in_turn(payload, transaction, now)
        self.refusing = self.refusing or _is_refused_with_all_behind(append)
        if isinstance(append, Flight):
            self.in_flight.append(append)
        else:
            self.in_flight.append(Awaited(append, payload, now))
            append.add_done_callback(self._ended)

    # -- limits ----------------------------------------------------------------------------------------------------

    def limit(self, limits: BrokerLimits) -> None:
        """Go by these limits from now on."""
        if self.closed:
            return
        if self.limited is None:
            from engine.broker.segment.limited import LimitedProducer

            self.limited = LimitedProducer(self, limits)
        else:
            self.limited.change(limits)

    def _send_parts(self, parts: list[Part], payload: memoryview, transaction: Membership | None) -> None:
        """Append the entries of a frame that are not too large. In a transaction none is: it cannot be committed."""
        if transaction is not None:
            self._dropped(transaction)
            parts = [Part(payload, next(part.refusal for part in parts if part.refusal is not None))]
        for part in parts:
            if part.refusal is None:
                self._send(part.payload, None)
                if self.refusing:
                    break  # what is behind it is dropped, as in send()
            else:
                self._refuse_frame(part.payload, part.refusal)

    def _refuse_frame(self, payload: memoryview, error: EngineError) -> None:
        """In its turn, and none of those behind it."""
        environment = self.hosted.environment
        environment.publish.take(len(payload), self.connection.pressure)
        refused: asyncio.Future[list[Appended]] = asyncio.get_running_loop().create_future()
        refused.set_exception(error)
        self.in_flight.append(Awaited(refused, payload, environment.latency.now()))
        refused.add_done_callback(self._ended)

    # -- in a transaction ------------------------------------------------------------------------------------------

    def _append_in_turn(
        self, payload: memoryview, membership: Membership | None, now: float
    ) -> Flight | asyncio.Future[list[Appended]]:
        """Append at once if no frame is held and the transaction is known to be open; else hold the frame."""
        buffer = self.hosted.transactions
        sends = None if membership is None else self.connection.sends.of(membership[0])
        if sends is not None:
            sends.begin()
        role = self.connection.role
        if self.held is None and membership and buffer is not None and buffer.admits(membership[0], role):
            flight = Flight(self, payload, now, self.hosted.environment.landings.add)
            buffer.append_for(flight, payload, *membership, sends, self.name)
            return flight
        loop = asyncio.get_running_loop()
        if self.held is None:
            self.held = deque()
            self._admitting = loop.create_task(self._admit_held())
        held = _Held(payload, membership, sends, loop.create_future())
        self.held.append(held)
        return held.appended

    async def _admit_held(self) -> None:
        """Append the held frames in order, each when its transaction admits it. After a refusal the rest is dropped."""
        held = self.held
        while held and not self.refusing:
            try:
                append = await self._admit(held[0])
            except Exception as e:
                append = asyncio.get_running_loop().create_future()
                append.set_exception(e)
                held[0].missed(append)
            self.refusing = self.refusing or _is_refused_with_all_behind(append)
            held.popleft().becomes(append)
        self._drop_held()

    async def _admit(self, held: _Held) -> asyncio.Future[list[Appended]]:
        if held.transaction is None:
            return self.hosted.segment.append(held.payload, self.name, term=self.hosted.term)
        buffer = await self.hosted.begin_transactions()
        await buffer.admit(held.transaction[0], self.connection.role)
        return buffer.append(held.payload, *held.transaction, held.sends, self.name)

    def _drop_held(self) -> None:
        """They are not appended: their transactions cannot be committed as if they were."""
        held, self.held = self.held, None
        for frame in held or ():
            frame.appended.cancel()
            frame.missed(frame.appended)

    def _leave(self) -> None:
        self.closed = True
        if self.limited is not None:
            self.limited.close()
        if self._admitting is not None:
            self._admitting.cancel()
        self._drop_held()
        self.hosted.access.detach(self)

    # -- answers ---------------------------------------------------------------------------------------------------

    def _ended(self, _: asyncio.Future[list[Appended]]) -> None:
        self.answer()

    def answer_head(self, head: Flight | Awaited, since: list[float]) -> bool:
        """Answer one append that has failed, or that was awaited; False if it has not ended."""
        append = head if isinstance(head, Flight) else head.appended
        if not append.done():
            return False
        self.in_flight.popleft()
        self.hosted.environment.publish.free(len(head.payload))
        if append.cancelled():
            return True
        if (error := append.exception()) is not None:
            self._refuse(head.payload, error)
        else:
            self._appended(append.result(), len(head.payload))
            since.append(head.since)
        return True

    def _appended(self, places: list[Appended], size: int) -> None:
        messages = 0
        for place in places:
            self.sequences.append(place.first_sequence)
            self.offsets.append(place.first_offset)
            messages += place.count
        self.count(messages, size)

    def send_receipt(self, sequences: list[int], offsets: list[int]) -> None:
        """Of entries that are durable, in their order."""
        receipt = commands.SendReceipt(
            producer_id=self.ident,
            sequences=sequences,
            offsets=offsets,
            durability=self.hosted.segment.durability,
        )
        self.connection.receipt(receipt)

    def _send_all_receipts(self) -> None:
        """Also those that are not paid for: what is said next comes behind them."""
        self.send_receipts()
        if self.limited is not None:
            sequences, offsets = self.limited.take_withheld()
            if sequences:
                self.send_receipt(sequences, offsets)

    def _refuse(self, payload: memoryview, error: BaseException) -> None:
        if self.closed:
            return
        self._send_all_receipts()
        if not isinstance(error, EngineError):
            log.error("append to %s failed", self.hosted.name, exc_info=error)
            error = EngineError(f"the broker failed: {type(error).__name__}: {error}")
        if isinstance(error, CorruptionError) and (size := _largest(payload)) > ENTRY_SIZE_MAX:
            error = MessageTooLargeError(f"an entry must have at most {ENTRY_SIZE_MAX} bytes, got {size}")
        if isinstance(error, CorruptionError | MessageTooLargeError):
            self.hosted.refused_entries += 1
        sequences = first_sequences(payload)
        if isinstance(error, PartlyStoredError) and error.sequence is not None:
            sequences = [error.sequence]
        over = isinstance(error, TRANSACTION_OVER)
        for sequence in sequences if over or _is_about_one(error) else sequences[:1]:
            self.connection.send(
                commands.SendError(producer_id=self.ident, sequence=sequence, code=error.code, message=str(error))
            )
        if over:
            self.refusing, self.ending = True, error
        elif not _is_about_one(error):
            self.close(error)

    def close(self, error: EngineError | None = None) -> None:
        """End the attachment; an error is sent to the client. Appends in flight still reach the disk."""
        if self.closed:
            return
        self._send_all_receipts()
        self._leave()
        self.connection.forget(self, refused=error is not None)
        if error is not None:
            closing = commands.CloseProducer(producer_id=self.ident, code=error.code, message=str(error))
            self.connection.send(closing)

    def connection_lost(self) -> None:
        """The connection is closed: end the attachment."""
        self._leave()

    def facts(self) -> dict[str, Any]:
        """Its entry in the segment's statistics."""
        return {"producerName": self.name, "accessMode": str(self.access), "properties": self.properties}

    def success(self, request_id: int) -> commands.ProducerSuccess:
        """The answer to the request that has attached it."""
        segment = self.hosted.segment
        return commands.ProducerSuccess(
            request_id=request_id,
            producer_id=self.ident,
            producer_name=self.name,
            last_sequence=segment.last_sequence(self.name),
            floor=segment.floor(self.name),
            durability=segment.durability,
            claim=None if self.claim is None else list(self.claim),
            end=segment.next_offset,
        )


def _largest(payload: memoryview) -> int:
    """The size that the largest entry in `payload` claims, as far as it looks like entries."""
    return max((head.stop - head.start for head in apparent_heads(payload)), default=0)


def first_sequences(payload: memoryview) -> list[int]:
    """The first sequence of each entry in `payload`, as far as it looks like entries; at least one item."""
    return [head.first_sequence for head in apparent_heads(payload)] or [0]
