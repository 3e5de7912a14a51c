"""Acknowledgements in transactions, and others that conflict with them.

A message that an open transaction has acknowledged can be acknowledged neither in another transaction nor outside of
one. A request that conflicts with a transaction that has ended waits until its end is applied, and checks again.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, NamedTuple

from pyroaring import BitMap64

from engine._native.format.offsets import check_position, offset_set, range_set
from engine.broker.delivery.bucket_acks import BucketRun, Position, check_attached, find, positions_of
from engine.errors import FencedError, InvalidArgumentError, TransactionConflictError
from engine.model.transactions import attempt_number, id_text, parse_id
from engine.wire import commands

if TYPE_CHECKING:
    from engine.broker.delivery.consumer import LoneReader
    from engine.broker.delivery.pending_acks import PendingAcks
    from engine.broker.delivery.pending_claims import Claims
    from engine.broker.delivery.queue import QueueConsumer, QueueDispatcher
    from engine.broker.delivery.shared import SharedConsumer, SharedDispatcher
    from engine.broker.delivery.subscription import HostedSubscription


class Inside(NamedTuple):
    """The transaction and the attempt of a request, and the role that makes it: "" for any."""

    number: int
    attempt: int
    role: str = ""


class BucketAcks(NamedTuple):
    """Messages of one bucket."""

    bucket: int
    offsets: BitMap64


def transaction_of(header: commands.Ack, role: str) -> Inside | None:
    """The transaction of an ACK, for a role; None: it is in none. Raises InvalidArgumentError."""
    ident, attempt = header.transaction, header.attempt
    if ident is None:
        if attempt is not None:
            raise InvalidArgumentError("an attempt requires a transaction")
        return None
    return Inside(parse_id(ident), attempt_number(attempt), role)


class _Request:
    """One acknowledgement, while it is checked for conflicts."""

    def __init__(self, pending: PendingAcks, inside: Inside | None, claims: Claims | None) -> None:
        self.pending = pending
        self._inside = inside
        self._claims = claims

    @property
    def own(self) -> BitMap64:
        """The messages that its transaction holds already."""
        return BitMap64() if self._claims is None else self._claims.offsets

    async def contended(self, offsets: BitMap64) -> BitMap64 | None:
        """The offsets that other open transactions hold. None: there are none, and the state has not changed since.

        An empty set: the conflict is over, check again. Waits for records that its own transaction is writing, so that
        its answer does not come before theirs.
        """
        if self._claims is not None and self._claims.writing and self._claims.offsets & offsets:
            await self._claims.written.wait()
            return BitMap64()
        others = self.pending.offsets & offsets
        others -= self.own
        return await self.pending.contended(others, self._claims) if others else None

    async def record(self, offsets: BitMap64, buckets: Iterable[BucketAcks] | None = None) -> None:
        """Acknowledge offsets in the transaction. Durable when it returns."""
        assert self._inside is not None
        assert self._claims is not None
        if offsets:
            number, attempt, _ = self._inside
            await self.pending.record(number, self._claims, attempt, offsets, buckets)


@contextlib.asynccontextmanager
async def _request(subscription: HostedSubscription, inside: Inside | None) -> AsyncIterator[_Request]:
    pending = subscription.pending
    if inside is None:
        yield _Request(pending, None, None)
        return
    async with pending.request(inside.number, inside.role) as claims:
        yield _Request(pending, inside, claims)


def _conflict(subscription: HostedSubscription, offsets: BitMap64, why: str) -> TransactionConflictError:
    count = "1 message" if len(offsets) == 1 else f"{len(offsets)} messages"
    holder = subscription.pending.holder_of(offsets.min())
    by = f" ({id_text(holder)})" if why == HELD and holder is not None else ""
    return TransactionConflictError(f"{subscription}: {count} from offset {offsets.min()} on, {why}{by}")


HELD = "acknowledged in another transaction, which is open"
DONE = "acknowledged already"


# -- queues ------------------------------------------------------------------------------------------------------------


async def acknowledge_some(
    dispatcher: QueueDispatcher, consumer: QueueConsumer, offsets: BitMap64, inside: Inside | None
) -> None:
    """Acknowledge individually. Messages that other transactions hold are refused; the rest is acknowledged.

    Raises TransactionConflictError, TransactionNotFoundError, NotOwnerError.
    """
    subscription, refused = dispatcher.subscription, BitMap64()
    async with _request(subscription, inside) as request:
        check_attached(consumer)
        while (held := await request.contended(offsets - refused)) is not None:
            check_attached(consumer)
            refused |= held
        mine = offsets - refused
        if inside is None:
            await dispatcher.acknowledge(consumer, mine)
        else:
            mine -= request.own
            done = mine - subscription.unacked(mine.min(), mine.max() + 1) if mine else mine
            mine -= done
            dispatcher.set_aside(consumer, mine)
            await request.record(mine)
            if done and not refused:
                raise _conflict(subscription, done, DONE)
    if refused:
        raise _conflict(subscription, refused, HELD)


# -- one stream consumer -----------------------------------------------------------------------------------------------


async def acknowledge_alone(
    consumer: LoneReader, subscription: HostedSubscription, header: commands.Ack, inside: Inside | None
) -> None:
    """Acknowledge up to a position, or up to one in each bucket: all of it, or nothing in case of a conflict.

    Raises TransactionConflictError, TransactionNotFoundError, NotOwnerError.
    """
    said = await _said(subscription, header)
    async with _request(subscription, inside) as request:
        check_attached(consumer)
        while (held := await request.contended(said)) is not None:
            check_attached(consumer)
            if held:
                raise _conflict(subscription, held, HELD)
            said &= subscription.unacked(0, said.max() + 1) if said else said
        if inside is None:
            await subscription.ack_set(said)
        else:
            await request.record(said - request.own)


async def _said(subscription: HostedSubscription, header: commands.Ack) -> BitMap64:
    """The offsets of a cumulative ACK that are not acknowledged."""
    hosted, position = subscription.hosted, header.position
    if position is not None and header.buckets is None:
        if header.ack_type != "cumulative":
            raise InvalidArgumentError("an exclusive consumer's ack_type must be cumulative, with `position`")
        check_position(position, hosted.segment.durable_offset)
        return subscription.unacked(0, position)
    named = BitMap64()
    for _, start, stop in await find(hosted, positions_of(header, hosted), subscription.start):
        named.add_range(start, stop)
    return named & subscription.unacked(0, named.max() + 1) if named else named


# -- shared ------------------------------------------------------------------------------------------------------------


async def acknowledge_buckets(
    dispatcher: SharedDispatcher, consumer: SharedConsumer, positions: list[Position], inside: Inside | None
) -> None:
    """Acknowledge up to a position in each bucket, or nothing in case of a conflict.

    Raises FencedError for buckets that are not its own, and acknowledges the others; TransactionConflictError,
    TransactionNotFoundError, NotOwnerError.
    """
    subscription, routed = dispatcher.subscription, dispatcher.ledger.next_offset
    unread = [] if all(p <= routed for _, p in positions) else await find(dispatcher.hosted, positions, routed)
    async with _request(subscription, inside) as request:
        check_attached(consumer)
        while (held := await _held(request, dispatcher, positions)) is not None:
            check_attached(consumer)
            if held:
                raise _conflict(subscription, held, HELD)
        subscription.cursor.check_usable()
        mine, theirs = _claim(dispatcher, consumer, positions, unread)
        offsets = BitMap64().union(*(acks.offsets for acks in mine))
        if inside is not None:
            dispatcher.waiting.acknowledged(consumer.number, mine)
        dispatcher.pump()
        if inside is None:
            await subscription.ack_set(offsets)
        else:
            await request.record(offsets, mine)
    if theirs:
        raise FencedError(
            f"{consumer.name!r} acknowledged in buckets of {subscription} that it does not own: {sorted(theirs)}"
        )


def _claim(
    dispatcher: SharedDispatcher, consumer: SharedConsumer, positions: list[Position], unread: list[BucketRun]
) -> tuple[list[BucketAcks], set[int]]:
    """The messages that a consumer acknowledges, each once, and the buckets that are not its own. Nothing is saved.

    Everything below the ledger's floor is acknowledged after this; of that, messages neither saved nor held before are
    acknowledged by this request.
    """
    ledger, subscription = dispatcher.ledger, dispatcher.subscription
    mine, theirs, seen = [], set(), BitMap64(subscription.pending.offsets)
    for bucket, position in positions:
        floor, ranges, refused = ledger.acknowledge(consumer.number, [(bucket, min(position, ledger.next_offset))])
        offsets = (subscription.unacked(0, floor) | offset_set(ranges, ledger.next_offset)) - seen
        mine.append(BucketAcks(bucket, offsets))
        theirs.update(refused)
        seen |= offsets
    for bucket, start, stop in unread:
        if ledger.active(bucket) == consumer.number:
            mine.append(BucketAcks(bucket, subscription.unacked(start, stop) - seen))
        elif subscription.free(start, stop):
            theirs.add(bucket)
    return mine, theirs


async def _held(request: _Request, dispatcher: SharedDispatcher, positions: list[Position]) -> BitMap64 | None:
    """As _Request.contended(), for the messages of each bucket below its position."""
    pending = request.pending
    if not pending:
        return None
    if pending.buckets is None:
        await _find_buckets(pending)
        return BitMap64()
    named = BitMap64()
    for bucket, position in positions:
        if position:
            named |= pending.buckets[bucket] & range_set(0, position - 1)
    return await request.contended(named)


async def learn_buckets(pending: PendingAcks) -> None:
    """Find the buckets of held messages, if there are any."""
    while pending and pending.buckets is None:
        await _find_buckets(pending)


async def _find_buckets(pending: PendingAcks) -> None:
    """Find the buckets of held messages, unless these change meanwhile. Other kinds of consumers do not record them."""
    hosted, changes = pending.subscription.hosted, pending.changes
    end, buckets = pending.offsets.max() + 1, [BitMap64() for _ in hosted.spec.bucket_ends]
    everything = [(bucket, end) for bucket in range(len(buckets))]
    for bucket, start, stop in await find(hosted, everything, pending.offsets.min()):
        buckets[bucket] |= pending.offsets & range_set(start, stop - 1)
    if pending.changes == changes:
        pending.buckets = buckets
