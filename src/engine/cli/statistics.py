"""Prints the statistics of a topic as tables: the topic, its segments, its subscriptions, their consumers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from engine.cli import lines, output
from engine.cli.autoscale import scaling_facts
from engine.cli.dag import hash_range
from engine.model.units import size_text

IDS_SHOWN = 12
SUBSCRIPTION_COLUMNS = ("subscription", "kind", "state", "backlog", "out msg/s", "consumers")


def print_stats(stats: Mapping[str, Any]) -> None:
    sealed = stats["segmentCount"] - stats["activeSegmentCount"]
    output.print_facts(
        [
            ("topic", stats["topic"]),
            ("epoch", stats["epoch"]),
            ("segments", f"{stats['activeSegmentCount']:,} active, {sealed:,} sealed"),
            *([("under way", stats["pendingChange"])] if stats.get("pendingChange") else []),
            ("in", rate(stats, "In")),
            ("out", rate(stats, "Out")),
            ("stored", size_text(stats["storageSize"])),
            *scaling_facts(stats["autoScale"]),
        ]
    )
    print_segments(stats["segments"])
    print_loads(stats["segments"])
    if stats["subscriptions"]:
        click.echo()
        print_subscriptions(stats["subscriptions"])
    print_consumers(stats["subscriptions"])
    print_groups(stats["checkpointGroups"])


def rate(part: Mapping[str, Any], way: str) -> str:
    """Messages/s and bytes/s. `way`: "In" or "Out"."""
    return f"{part[f'msgRate{way}']:,.1f} messages/s, {size_text(part[f'bytesRate{way}'])}/s"


def print_segments(segments: Mapping[str, Mapping[str, Any]]) -> None:
    click.echo()
    rows = [
        (
            int(name),
            hash_range(s),
            s["state"],
            s["bucketCount"],
            *((None,) * 5 if s["unavailable"] else numbers(s)),
        )
        for name, s in segments.items()
    ]
    columns = ["segment", "hash range", "state", "buckets", "messages", "stored", "producers", "in msg/s", "out msg/s"]
    output.print_table(columns, rows)
    for name, s in segments.items():
        if s["unavailable"]:
            lines.line(f"segment {name} is unavailable: {s['unavailable']}")
        elif s.get("heldBackBy"):
            lines.line(
                f"readers of segment {name} wait at offset {s['readableOffset']:,} of {s['nextOffset']:,} "
                f"for the transaction {s['heldBackBy']}"
            )


def numbers(segment: Mapping[str, Any]) -> tuple[int, str, int, float, float]:
    """The columns that the owner of the segment reports."""
    return (
        output.messages_in(segment),
        size_text(segment["storageSize"]),
        segment["producerCount"],
        segment["msgRateIn"],
        segment["msgRateOut"],
    )


def print_loads(segments: Mapping[str, Mapping[str, Any]]) -> None:
    """The last load report of each active segment, which auto-scale decides by. Prints nothing if there are none."""
    rows = [(int(name), *load_row(s["load"])) for name, s in segments.items() if s["state"] == "ACTIVE" and s["load"]]
    if rows:
        click.echo()
        output.print_table(["load of", "in msg/s", "in", "out msg/s", "out", "unchanged for"], rows)


def load_row(load: Mapping[str, Any]) -> tuple[float, str, float, str, str]:
    """The columns of one load report; the last one is its age."""
    return (
        load["msgRateIn"],
        f"{size_text(load['bytesRateIn'])}/s",
        load["msgRateOut"],
        f"{size_text(load['bytesRateOut'])}/s",
        f"{load['ageMs'] / 1000:,.0f} s",
    )


def print_subscriptions(subscriptions: Mapping[str, Mapping[str, Any]]) -> None:
    rows = [
        (name, s["kind"], s["state"], s["backlog"], s["msgRateOut"], s["consumerCount"])
        for name, s in subscriptions.items()
    ]
    output.print_table(SUBSCRIPTION_COLUMNS, rows)


def print_consumers(subscriptions: Mapping[str, Mapping[str, Any]]) -> None:
    """One row for each consumer, with its segments. Prints nothing if there are none."""
    rows = [
        (name, consumer, c["connected"], share(c), c["unackedMessages"], c["msgRateOut"])
        for name, s in subscriptions.items()
        for consumer, c in s["consumers"].items()
    ]
    if rows:
        click.echo()
        columns = ["subscription", "consumer", "connected", "segments", "not acknowledged", "out msg/s"]
        output.print_table(columns, rows)


def print_groups(groups: Mapping[str, Mapping[str, Any]]) -> None:
    """The members of checkpoint groups, one line each; nothing where there are none."""
    rows = [
        (name, member, m["connected"], share({**m, "buckets": {}}))
        for name, group in groups.items()
        for member, m in group["consumers"].items()
    ]
    if rows:
        click.echo()
        output.print_table(["checkpoint group", "member", "connected", "segments"], rows)


def share(consumer: Mapping[str, Any]) -> str:
    """The segments of a consumer, as in "1, 4, 5 (2 buckets) and 3 more": at most IDS_SHOWN, with the number of buckets
    where the segment is shared.
    """
    segments, buckets = consumer["segments"], consumer["buckets"]
    shown = [
        f"{i} ({output.plural(buckets[str(i)], 'bucket')})" if str(i) in buckets else str(i)
        for i in segments[:IDS_SHOWN]
    ]
    more = f" and {len(segments) - IDS_SHOWN} more" if len(segments) > IDS_SHOWN else ""
    return ", ".join(shown) + more


def sharing_row(part: Mapping[str, Any]) -> tuple[str | None, int, int, int]:
    """The columns of one segment in a subscription: how it is read, and how it is shared."""
    read = f"{part['mode']}, to drain it" if part["drain"] else part["mode"]
    return read, part["sharers"], part["reassignments"], part["withheldBuckets"]


def print_subscription(name: str, subscription: Mapping[str, Any]) -> None:
    """One subscription, segment by segment and consumer by consumer."""
    output.print_facts(
        [
            ("subscription", name),
            ("kind", subscription["kind"]),
            ("state", subscription["state"]),
            ("backlog", subscription["backlog"]),
            ("of that delayed", subscription["delayed"]),
            ("out", rate(subscription, "Out")),
            ("consumers", subscription["consumerCount"]),
        ]
    )
    click.echo()
    sharing = subscription["segmentSharing"]
    rows = [
        (int(segment), count, *sharing_row(sharing[segment]))
        for segment, count in subscription["segmentBacklog"].items()
    ]
    output.print_table(["segment", "backlog", "read", "sharers", "reassignments", "withheld buckets"], rows)
    print_consumers({name: subscription})
