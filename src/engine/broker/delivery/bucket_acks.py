"""Acknowledgements by position in each bucket of a segment: what they say, and which messages that is.

Where the messages of a bucket lie among those of the others is known of what a shared segment's ledger holds. For
anything else, such as an id that was kept from an earlier attachment, the headers of the entries are read.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Any

from engine._native.serve.dispatch import BucketLedger
from engine.errors import InvalidArgumentError, NotOwnerError
from engine.storage.file.logfile import Block
from engine.wire import commands

if TYPE_CHECKING:
    from engine.broker.delivery.consumer import Consumer
    from engine.broker.delivery.subscription import HostedSubscription
    from engine.broker.segment.hosted import HostedSegment

Position = tuple[int, int]  # (bucket, the first offset not acknowledged)
BucketRun = tuple[int, int, int]  # (bucket, start, stop)


def positions_of(header: commands.Ack, hosted: HostedSegment) -> list[Position]:
    """What a cumulative ACK says of each bucket: `buckets`, or `position` for all. Raises InvalidArgumentError."""
    said, position, count = header.buckets, header.position, len(hosted.spec.bucket_ends)
    if header.ack_type != "cumulative" or (said is None) == (position is None):
        raise InvalidArgumentError("a stream consumer acknowledges cumulatively, by `position` or by `buckets`")
    if position is not None:
        check_position(position, hosted.segment.durable_offset)
        return [(bucket, int(position)) for bucket in range(count)]
    return check_buckets(said, hosted)


def check_buckets(said: Any, hosted: HostedSegment) -> list[Position]:
    """Pairs [bucket, position] as a client said them. Raises InvalidArgumentError."""
    count, end = len(hosted.spec.bucket_ends), hosted.segment.durable_offset
    for pair in said:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(type(n) is int for n in pair):
            raise InvalidArgumentError(f"{pair!r:.80} in `buckets` is malformed; [bucket, position] is right")
        if not 0 <= pair[0] < count:
            raise InvalidArgumentError(f"bucket {pair[0]}; {hosted.name} has the buckets 0 to {count - 1}")
        check_position(pair[1], end)
    return [(bucket, position) for bucket, position in said]


def check_position(position: Any, end: int) -> None:
    """Raise InvalidArgumentError unless it is an offset of a segment, or its end."""
    if not 0 <= position <= end:
        raise InvalidArgumentError(f"acknowledged up to {position}; the segment ends at {end}")


async def find(hosted: HostedSegment, positions: Iterable[Position], start: int) -> list[BucketRun]:
    """What the segment has from `start` on in each bucket below its position. Reads entries as far as that takes."""
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
        await asyncio.sleep(0)  # others' turn: this may be long
    return found


async def open_buckets(subscription: HostedSubscription, positions: list[Position]) -> list[int]:
    """Those of the buckets in which something below the position is not acknowledged, durably."""
    cursor = subscription.cursor
    found = await find(subscription.hosted, positions, subscription.start)
    open_ones = {bucket for bucket, start, stop in found if cursor.unacked(start, stop)}
    await cursor.settled()
    return sorted(open_ones)


def acknowledge_alone(
    consumer: Consumer, subscription: HostedSubscription, positions: list[Position]
) -> Awaitable[None]:
    """By the one consumer of all buckets. Done when durable. Raises NotOwnerError when it has detached meanwhile."""
    named = dict(positions)
    floor = min(named.values()) if len(named) == len(subscription.hosted.spec.bucket_ends) else 0
    start = max(subscription.start, floor)
    if max(named.values(), default=0) <= start:
        return subscription.ack_cumulative(floor)
    return _acknowledge_found(consumer, subscription, positions, floor, start)


async def _acknowledge_found(
    consumer: Consumer, subscription: HostedSubscription, positions: list[Position], floor: int, start: int
) -> None:
    found = await find(subscription.hosted, positions, start)
    check_attached(consumer)
    await subscription.ack_runs(floor, [(start, stop) for _, start, stop in found])


def check_attached(consumer: Consumer) -> None:
    """Raise NotOwnerError: what a consumer acknowledges that is not attached any more is refused (semantics 12)."""
    if consumer.closed:
        raise NotOwnerError(f"the consumer {consumer.name!r} is not attached any more; attach and acknowledge again")
