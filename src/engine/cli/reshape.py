"""`engine topics split`, `merge` and `rebucket`: change the shape of a topic that is in use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from engine.cli import lines, output
from engine.cli.connection import connect, connection_options, json_option
from engine.cli.dag import hash_range
from engine.cli.values import topic_name


def segment_id(text: str) -> int:
    """A segment's id as typed. Raises a usage error."""
    if not (text.isascii() and text.isdecimal()):
        raise click.BadParameter(f"{text!r} is no segment id; `engine topics describe` shows them")
    return int(text)


NUMBERS = {"ignore_unknown_options": True}  # -1 is a wrong number, and no option that is missing


@click.command(context_settings=NUMBERS)
@click.argument("topic", type=topic_name)
@click.argument("segment", type=segment_id)
@json_option
@connection_options
def split(topic: str, segment: int, url: str, data: str | None, as_json: bool) -> None:
    """Split a segment's hash range in halves: more of everything in parallel. Producers and consumers follow."""
    with connect(url, data) as client:
        metadata = client.admin.split_segment(topic, segment)
    report(f"split segment {segment} of {topic}", [segment], metadata, as_json)


@click.command(context_settings=NUMBERS)
@click.argument("topic", type=topic_name)
@click.argument("segment", type=segment_id)
@click.argument("other", type=segment_id)
@json_option
@connection_options
def merge(topic: str, segment: int, other: int, url: str, data: str | None, as_json: bool) -> None:
    """Make one of two segments whose hash ranges are neighbours."""
    with connect(url, data) as client:
        metadata = client.admin.merge_segments(topic, segment, other)
    report(f"merged segments {segment} and {other} of {topic}", [segment, other], metadata, as_json)


@click.command(context_settings=NUMBERS)
@click.argument("topic", type=topic_name)
@click.argument("segment", type=segment_id)
@click.argument("buckets", type=click.IntRange(1))
@json_option
@connection_options
def rebucket(topic: str, segment: int, buckets: int, url: str, data: str | None, as_json: bool) -> None:
    """Replace a segment by one of the same hash range with BUCKETS entry buckets."""
    with connect(url, data) as client:
        metadata = client.admin.rebucket_segment(topic, segment, buckets)
    report(f"rebucketed segment {segment} of {topic}", [segment], metadata, as_json)


def report(done: str, parents: list[int], metadata: Mapping[str, Any], as_json: bool) -> None:
    """What has come of it: the new metadata for a program, a line for a person."""
    if as_json:
        output.print_json(metadata)
        return
    segments = metadata["segments"]
    children = sorted({child for parent in parents for child in segments[str(parent)]["childIds"]})
    made = " and ".join(described(segments[str(child)]) for child in children)
    lines.say(f"{done}: {made}; the layout is at epoch {metadata['epoch']}")


def described(segment: dict[str, Any]) -> str:
    """A new segment: 3 (0000-3fff, 2 buckets)."""
    buckets = output.plural(len(segment.get("bucketBoundaries") or [0]), "bucket")
    return f"{segment['segmentId']} ({hash_range(segment)}, {buckets})"
