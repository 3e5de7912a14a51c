"""`engine topics split`, `merge` and `rebucket`: change the shape of a topic that is in use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from engine.cli import lines, output
from engine.cli.connection import connect, connection_options, json_option
from engine.cli.dag import hash_range
from engine.cli.groups import examples
from engine.cli.values import topic_name


def segment_id(text: str) -> int:
    """Parse a segment id. Raises click.BadParameter."""
    if not (text.isascii() and text.isdecimal()):
        raise click.BadParameter(f"must be a segment id, got {text!r}; `engine topics describe` lists them")
    return int(text)


NUMBERS = {"ignore_unknown_options": True}  # so that -1 is refused as a number, not as an unknown option


@click.command(context_settings=NUMBERS, epilog=examples("engine topics split orders 0"))
@click.argument("topic", type=topic_name)
@click.argument("segment", type=segment_id)
@json_option
@connection_options
def split(topic: str, segment: int, url: str, data: str | None, as_json: bool) -> None:
    """Split a segment into two.

    Each gets half of the hash range, so half of the keys. Producers and consumers follow by themselves.
    """
    with connect(url, data) as client:
        metadata = client.admin.split_segment(topic, segment)
    report(f"split segment {segment} of {topic}", [segment], metadata, as_json)


@click.command(context_settings=NUMBERS, epilog=examples("engine topics merge orders 1 2"))
@click.argument("topic", type=topic_name)
@click.argument("segment", type=segment_id)
@click.argument("other", type=segment_id)
@json_option
@connection_options
def merge(topic: str, segment: int, other: int, url: str, data: str | None, as_json: bool) -> None:
    """Merge two segments with neighbouring hash ranges."""
    with connect(url, data) as client:
        metadata = client.admin.merge_segments(topic, segment, other)
    report(f"merged segments {segment} and {other} of {topic}", [segment, other], metadata, as_json)


@click.command(context_settings=NUMBERS, epilog=examples("engine topics rebucket orders 0 16"))
@click.argument("topic", type=topic_name)
@click.argument("segment", type=segment_id)
@click.argument("buckets", type=click.IntRange(1))
@json_option
@connection_options
def rebucket(topic: str, segment: int, buckets: int, url: str, data: str | None, as_json: bool) -> None:
    """Change the number of a segment's entry buckets.

    A new segment of the same hash range, with BUCKETS entry buckets, replaces it.
    """
    with connect(url, data) as client:
        metadata = client.admin.rebucket_segment(topic, segment, buckets)
    report(f"rebucketed segment {segment} of {topic}", [segment], metadata, as_json)


def report(done: str, parents: list[int], metadata: Mapping[str, Any], as_json: bool) -> None:
    """Print the result: the new metadata as JSON, or one line with the new segments."""
    if as_json:
        output.print_json(metadata)
        return
    segments = metadata["segments"]
    children = sorted({child for parent in parents for child in segments[str(parent)]["childIds"]})
    made = " and ".join(described(segments[str(child)]) for child in children)
    lines.say(f"{done}: {made}; the layout is at epoch {metadata['epoch']}")


def described(segment: dict[str, Any]) -> str:
    """A new segment as in "3 (0000-3fff, 2 buckets)"."""
    buckets = output.plural(len(segment.get("bucketBoundaries") or [0]), "bucket")
    return f"{segment['segmentId']} ({hash_range(segment)}, {buckets})"
