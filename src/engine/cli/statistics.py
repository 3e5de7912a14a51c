"""A topic's numbers as tables: the topic, its segments, its subscriptions, their consumers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from engine.cli import output
from engine.cli.dag import hash_range

IDS_SHOWN = 12
SUBSCRIPTION_COLUMNS = ("subscription", "kind", "state", "backlog", "out msg/s", "consumers")


def print_stats(stats: Mapping[str, Any]) -> None:
    """All of get_stats."""
    sealed = stats["segmentCount"] - stats["activeSegmentCount"]
    output.print_facts(
        [
            ("topic", stats["topic"]),
            ("epoch", stats["epoch"]),
            ("segments", f"{stats['activeSegmentCount']:,} active, {sealed:,} sealed"),
            *([("under way", stats["pendingChange"])] if stats.get("pendingChange") else []),
            ("in", rate(stats, "In")),
            ("out", rate(stats, "Out")),
            ("stored", output.size(stats["storageSize"])),
        ]
    )
    print_segments(stats["segments"])
    if stats["subscriptions"]:
        click.echo()
        print_subscriptions(stats["subscriptions"])
    print_consumers(stats["subscriptions"])


def rate(part: Mapping[str, Any], way: str) -> str:
    """Messages and bytes per second, "In" or "Out"."""
    return f"{part[f'msgRate{way}']:,.1f} messages/s, {output.size(part[f'bytesRate{way}'])}/s"


def print_segments(segments: Mapping[str, Mapping[str, Any]]) -> None:
    """One line each."""
    click.echo()
    rows = [
        (
            int(name),
            hash_range(s),
            s["state"],
            s["bucketCount"],
            s["nextOffset"] - s["firstOffset"],
            output.size(s["storageSize"]),
            s["producerCount"],
            s["msgRateIn"],
            s["msgRateOut"],
        )
        for name, s in segments.items()
    ]
    columns = ["segment", "hash range", "state", "buckets", "messages", "stored", "producers", "in msg/s", "out msg/s"]
    output.print_table(columns, rows)


def print_subscriptions(subscriptions: Mapping[str, Mapping[str, Any]]) -> None:
    """One line each."""
    rows = [
        (name, s["kind"], s["state"], s["backlog"], s["msgRateOut"], s["consumerCount"])
        for name, s in subscriptions.items()
    ]
    output.print_table(SUBSCRIPTION_COLUMNS, rows)


def print_consumers(subscriptions: Mapping[str, Mapping[str, Any]]) -> None:
    """One line each, with their shares; nothing where there are none."""
    rows = [
        (name, consumer, c["connected"], ids(c["segments"]), c["unackedMessages"], c["msgRateOut"])
        for name, s in subscriptions.items()
        for consumer, c in s["consumers"].items()
    ]
    if rows:
        click.echo()
        columns = ["subscription", "consumer", "connected", "segments", "not acknowledged", "out msg/s"]
        output.print_table(columns, rows)


def ids(segments: Sequence[int]) -> str:
    """A share: 1, 4, 5; the first ones of a long one."""
    shown = ", ".join(map(str, segments[:IDS_SHOWN]))
    return shown if len(segments) <= IDS_SHOWN else f"{shown} and {len(segments) - IDS_SHOWN} more"


def print_subscription(name: str, subscription: Mapping[str, Any]) -> None:
    """One subscription, segment by segment and consumer by consumer."""
    output.print_facts(
        [
            ("subscription", name),
            ("kind", subscription["kind"]),
            ("state", subscription["state"]),
            ("backlog", subscription["backlog"]),
            ("out", rate(subscription, "Out")),
            ("consumers", subscription["consumerCount"]),
        ]
    )
    click.echo()
    rows = [(int(segment), count) for segment, count in subscription["segmentBacklog"].items()]
    output.print_table(["segment", "backlog"], rows)
    print_consumers({name: subscription})
