"""Acknowledgements by a position in each bucket of a segment, and the offsets that they mean.

The ledger of a shared segment knows which offsets are of which bucket, as far as it has routed them. For others, such
as those of a message id from an earlier attachment, the headers of the entries are read.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Any

from engine._native.format.offsets import bucket_positions, check_position
from engine._native.serve.blocks import Block
from engine._native.serve.dispatch import BucketLedger
from engine.errors import InvalidArgumentError, NotOwnerError
from engine.wire import commands

if TYPE_CHECKING:
    from engine.broker.delivery.consumer import Consumer
    from engine.broker.delivery.subscription import HostedSubscription
    from engine.broker.segment.hosted import HostedSegment

Position = tuple[int, int]  # (bucket, the first offset not acknowledged)
BucketRun = tuple[int, int, int]  # (bucket, start, stop)


def positions_of(header: commands.Ack, hosted: HostedSegment) -> list[Position]:
    """The positions of a cumulative ACK: `buckets`, or `position` for all of them. Raises InvalidArgumentError."""
    said, position, count = header.buckets, header.position, len(hosted.spec.bucket_ends)
    if header.ack_type != "cumulative" or (said is None) == (position is None):
        raise InvalidArgumentError(
            "a stream consumer's ack_type must be cumulative, with either `position` or `buckets`"
        )
    if position is not None:
        check_position(position, hosted.segment.durable_offset)
        return [(bucket, int(position)) for bucket in range(count)]
    assert said is not None
    return bucket_positions(said, count, hosted.segment.durable_offset, hosted.name)


def check_buckets(said: Any, hosted: HostedSegment) -> list[Position]:
    """Pairs [bucket, position] from a client, checked. Raises InvalidArgumentError."""
    return bucket_positions(said, len(hosted.spec.bucket_ends), hosted.segment.durable_offset, hosted.name)


async def find(hosted: HostedSegment, positions: Iterable[Position], start: int) -> list[BucketRun]:
    """The runs from `start` on in each bucket below its position. Reads the entries of that range."""
    limits = array("Q", bytes(8 * len(hosted.spec.bucket_ends)))
    for bucket, position in positions:
        limits[bucket] = max(limits[bucket], position)
    ledger = BucketLedger(array("H", hosted.spec.bucket_ends), start)
    found: list[BucketRun] = []
    end, offset = max(limits), start
    while offset < end and (read := hosted.segment.read(offset)) is not None:
        block = read if isinstance(read, Block) else await read
        found += ledger.unacknowledged(block.data, limits, offset)
        offset = block.next_offset
        await asyncio.sleep(0)  # let other work run: there may be many blocks
    return found


async def open_buckets(subscription: HostedSubscription, positions: list[Position]) -> list[int]:
    """The buckets in which messages below the position are not acknowledged, durably."""
    cursor = subscription.cursor
    found = await find(subscription.hosted, positions, subscription.start)
    open_ones = {bucket for bucket, start, stop in found if cursor.unacked(start, stop)}
    await cursor.settled()
    return sorted(open_ones)


def acknowledge_alone(
    consumer: Consumer, subscription: HostedSubscription, positions: list[Position], *, lazy: bool = False
) -> Awaitable[None]:
    """Acknowledge for the one consumer of all buckets. Done when durable. Raises NotOwnerError when it has detached."""
    named = dict(positions)
    floor = min(named.values()) if len(named) == len(subscription.hosted.spec.bucket_ends) else 0
    start = max(subscription.start, floor)
    if max(named.values(), default=0) <= start:
        return subscription.ack_cumulative(floor, lazy=lazy)
    return _acknowledge_found(consumer, subscription, positions, floor, start)


async def _acknowledge_found(
    consumer: Consumer, subscription: HostedSubscription, positions: list[Position], floor: int, start: int
) -> None:
    found = await find(subscription.hosted, positions, start)
    check_attached(consumer)
    await subscription.ack_runs(floor, [(start, stop) for _, start, stop in found])


def check_attached(consumer: Consumer) -> None:
    """Raise NotOwnerError when the consumer has detached: its acknowledgements are refused (semantics 12)."""
    if consumer.closed:
        raise NotOwnerError(f"the consumer {consumer.name!r} is not attached any more; attach and acknowledge again")
