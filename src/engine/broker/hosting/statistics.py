"""The statistics of an open segment, its subscriptions and their consumers."""

from __future__ import annotations

from engine.broker.delivery.consumer import Consumer
from engine.broker.delivery.opened import subscriptions_of
from engine.broker.delivery.shared import SharedConsumer, Sharing
from engine.broker.delivery.subscription import HostedSubscription
from engine.broker.segment.hosted import HostedSegment
from engine.control.base.ports import LEFT, HostedConsumerStatistics, HostedSegmentStatistics, SubscriptionStatistics
from engine.model.transactions import id_text

_NOT_SHARED = Sharing(buckets=0, reassignments=0)


def segment_statistics(hosted: HostedSegment) -> HostedSegmentStatistics:
    """Those of the segment and of all its open subscriptions."""
    hosted.sample()
    segment = hosted.segment
    holding = None if hosted.transactions is None else hosted.transactions.holding
    return HostedSegmentStatistics(
        readable=None if holding is None else holding[1],
        held_by=None if holding is None else id_text(holding[0]),
        first_offset=segment.first_offset,
        next_offset=segment.next_offset,
        gap_offsets=segment.gaps.count(segment.first_offset, segment.next_offset),
        size_bytes=segment.size_bytes,
        producers=len(hosted.producers),
        publishers=[producer.facts() for producer in hosted.producers.values()],
        msg_rate_in=hosted.incoming.messages_per_s,
        bytes_rate_in=hosted.incoming.bytes_per_s,
        sealed=segment.sealed,
        subscriptions={name: _subscription(s) for name, s in subscriptions_of(hosted).items()},
    )


def _subscription(subscription: HostedSubscription) -> SubscriptionStatistics:
    attached = subscription.consumers
    gone = (HostedConsumerStatistics(n, LEFT, 0, r.messages_per_s, r.bytes_per_s) for n, r in subscription.left.items())
    members = (*(_consumer(consumer) for consumer in attached), *gone)
    sharing = subscription.sharing or _NOT_SHARED
    return SubscriptionStatistics(
        mode=None if subscription.mode is None else str(subscription.mode),
        sharers=sharing.sharers,
        reassignments=sharing.reassignments,
        withheld_buckets=sharing.withheld,
        drain=sharing.drain,
        backlog=subscription.backlog,
        position=subscription.cursor.position,
        acknowledged_above=subscription.cursor.acked_count,
        delayed=subscription.delayed,
        consumers=len(attached),
        msg_rate_out=subscription.out.messages_per_s,
        bytes_rate_out=subscription.out.bytes_per_s,
        members=members,
    )


def _consumer(consumer: Consumer) -> HostedConsumerStatistics:
    return HostedConsumerStatistics(
        name=consumer.name,
        mode=str(consumer.mode),
        unacknowledged=consumer.pending,
        msg_rate_out=consumer.sent.messages_per_s,
        bytes_rate_out=consumer.sent.bytes_per_s,
        buckets=consumer.bucket_count if isinstance(consumer, SharedConsumer) else 0,
    )
