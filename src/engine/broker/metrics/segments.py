"""Metrics of segments and their subscriptions: of all that this broker answers for, and more of those that are open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from engine.broker.delivery.opened import subscriptions_of
from engine.broker.delivery.subscription import HostedSubscription
from engine.broker.metrics.exposition import Family, Sample, counter, gauge
from engine.broker.metrics.labels import segment_labels, subscription_labels
from engine.broker.metrics.stored import Stored

if TYPE_CHECKING:
    from engine.broker.segment.hosted import HostedSegment

# {name: (field of SegmentStatistics, help text)}
_STORED = {
    "in_entries_total": ("appended_entries", "Entries appended; messages per entry is the batching ratio"),
    "duplicate_entries_total": ("duplicate_entries", "Duplicate entries, not stored again"),
    "storage_read_bytes_total": ("read_bytes", "Bytes read for consumers"),
    "storage_read_blocks_total": ("read_blocks", "Blocks read for consumers"),
    "storage_read_from_memory_total": (
        "read_from_memory",
        "Of these blocks, those read from memory",
    ),
    "storage_commits_total": ("commits", "Group commits"),
    "storage_commit_bytes_total": ("commit_bytes", "Bytes made durable by group commits"),
    "storage_syncs_total": ("syncs", "Syncs of log files"),
    "storage_sync_failures_total": ("sync_failures", "Failed syncs"),
    "storage_write_failures_total": ("write_failures", "Failed writes, as on a full disk"),
    "storage_rolls_total": ("rolls", "New log files begun"),
}
# {name: (kind, field of Sharing, help text)}
_SHARING: dict[str, tuple[Callable[..., Family], str, str]] = {
    "sharers": (gauge, "sharers", "Members: consumers that share the segment by bucket"),
    "bucket_reassignments_total": (counter, "reassignments", "Buckets that moved from one member to another"),
    "withheld_buckets": (gauge, "withheld", "Buckets withheld until an earlier owner's acknowledgements"),
    "drain_mode": (gauge, "drain", "1: a sealed segment is shared until it is drained"),
}


def segment_families(hosted: Sequence[HostedSegment], stored: Stored) -> Iterator[Family]:
    """Counters and rates are those of open segments, counted since the segment was opened here."""
    labelled = [(segment_labels(h.name), h, h.segment.statistics()) for h in hosted]

    def each(value: Callable[[HostedSegment], float]) -> list[Sample]:
        return [(labels, value(h)) for labels, h, _ in labelled]

    yield counter("in_messages_total", "Messages made durable", each(lambda h: h.incoming.messages))
    yield counter("in_bytes_total", "Bytes of entries made durable", each(lambda h: h.incoming.bytes))
    yield counter("out_messages_total", "Messages sent to consumers and readers", each(lambda h: h.sent_messages))
    yield counter("out_bytes_total", "Bytes of entries sent to consumers and readers", each(lambda h: h.sent_bytes))
    yield counter("refused_entries_total", "Entries refused for their content", each(lambda h: h.refused_entries))
    text = "Messages skipped by operators: acknowledged unread"
    yield counter("skipped_messages_total", text, each(lambda h: h.skipped_messages))
    text = "Messages that a subscription did not acknowledge within their time to live"
    yield counter("expired_messages_total", text, each(lambda h: h.expired_messages))
    text = "Messages that clients on this machine read from the log files (short-circuit reads)"
    yield counter("short_circuit_messages_total", text, each(lambda h: h.near_messages))
    text = "Messages that clients read from the store of objects themselves"
    yield counter("object_read_messages_total", text, each(lambda h: h.object_messages))
    yield gauge("rate_in", "Messages per second published", each(lambda h: h.incoming.messages_per_s))
    yield gauge("throughput_in", "Bytes per second published", each(lambda h: h.incoming.bytes_per_s))
    for name, (field, text) in _STORED.items():
        yield counter(name, text, [(labels, getattr(found, field)) for labels, _, found in labelled])
    files: list[Sample] = [(labels, found.files) for labels, _, found in labelled]
    sizes = each(lambda h: h.segment.size_bytes)
    yield gauge("storage_size", "Bytes in the segment's files", stored.of(sizes, "size_bytes", rest=True))
    yield gauge("storage_files", "Log files of the segment", stored.of(files, "files", rest=True))
    producers, consumers = each(lambda h: len(h.producers)), each(lambda h: sum(1 for _ in h.consumers))
    yield gauge("segment_producers", "Producers attached", stored.of(producers, None))
    yield gauge("segment_consumers", "Consumers attached", stored.of(consumers, None))
    buckets, sealed = each(lambda h: len(h.spec.bucket_ends)), each(lambda h: h.segment.sealed)
    yield gauge("segment_buckets", "Entry buckets", stored.of(buckets, "buckets"))
    yield gauge("segment_sealed", "1: takes no messages", stored.of(sealed, "sealed"))
    yield gauge("segment_owner", "1; the label is the broker that answers for the segment", stored.owners(each))
    text = "Closed segments that have no series of their own: metrics_segments_max"
    yield gauge("segments_unlisted", text, stored.unlisted())


def subscription_families(hosted: Sequence[HostedSegment], stored: Stored) -> Iterator[Family]:
    """One sample per segment and subscription; counters and rates of those that are open."""
    readers = [(subscription_labels(h.name, s.name), s) for h in hosted for s in subscriptions_of(h).values()]

    def each(value: Callable[[HostedSubscription], float]) -> list[Sample]:
        return [(labels, value(s)) for labels, s in readers]

    def unacknowledged(subscription: HostedSubscription) -> int:
        return sum(consumer.pending for consumer in subscription.consumers)

    yield gauge("subscription_back_log", "Messages not acknowledged", stored.backlogs(each(lambda s: s.backlog)))
    yield gauge("subscription_delayed", "Messages withheld until their delivery time", each(lambda s: s.delayed))
    consumers = stored.no_consumers(each(lambda s: len(s.consumers)))
    yield gauge("subscription_consumers", "Consumers attached", consumers)
    yield gauge("subscription_unacked_messages", "Messages sent and not acknowledged", each(unacknowledged))
    yield counter("subscription_out_messages_total", "Messages sent to consumers", each(lambda s: s.out.messages))
    yield counter("subscription_out_bytes_total", "Bytes of entries sent to consumers", each(lambda s: s.out.bytes))
    yield gauge("subscription_rate_out", "Messages per second sent", each(lambda s: s.out.messages_per_s))
    yield gauge("subscription_throughput_out", "Bytes per second sent", each(lambda s: s.out.bytes_per_s))
    for name, (kind, field, text) in _SHARING.items():
        known = [(labels, s.sharing) for labels, s in readers]
        samples = [(labels, 0 if sharing is None else getattr(sharing, field)) for labels, sharing in known]
        yield kind(f"subscription_{name}", text, samples)
