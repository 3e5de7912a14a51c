"""`engine topics`: list, create, describe, stats, delete."""

from __future__ import annotations

from typing import Any

import click

from engine.cli import output
from engine.cli.connection import connect, connection_options, json_option
from engine.cli.values import key_values


@click.group()
def command() -> None:
    """Topics: list, create, describe, watch their numbers, delete."""


@command.command("list")
@click.option("--namespace", default="public/default", show_default=True, help="As tenant/namespace.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="Only topics that have it.")
@json_option
@connection_options
def list_topics(url: str, data: str | None, namespace: str, properties: tuple[str, ...], as_json: bool) -> None:
    """Names of the topics of a namespace."""
    with connect(url, data) as client:
        found = client.admin.list_topics(namespace, properties=key_values(properties) or None)
    if as_json:
        output.print_json(found)
    else:
        for name in found:
            click.echo(name)


@command.command()
@click.argument("topic")
@click.option("--segments", type=click.IntRange(1), default=1, show_default=True, help="How many to start with.")
@click.option("--key-hash", type=click.Choice(["xxh64", "murmur3"]), default="xxh64", show_default=True)
@click.option("--durability", type=click.Choice(["fsync", "interval", "os"]), default="fsync", show_default=True)
@click.option("--entry-buckets", type=click.IntRange(1), default=4, show_default=True, help="Per topic, at the start.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="May be repeated.")
@connection_options
def create(
    topic: str,
    url: str,
    data: str | None,
    segments: int,
    key_hash: str,
    durability: str,
    entry_buckets: int,
    properties: tuple[str, ...],
) -> None:
    """Make a new topic."""
    with connect(url, data, create=True) as client:
        client.admin.create_topic(
            topic,
            segments=segments,
            key_hash=key_hash,
            durability=durability,
            entry_buckets=entry_buckets,
            properties=key_values(properties) or None,
        )
    click.echo(f"created {topic}", err=True)


@command.command()
@click.argument("topic")
@json_option
@connection_options
def describe(topic: str, url: str, data: str | None, as_json: bool) -> None:
    """What a topic is: its properties and its segments."""
    with connect(url, data) as client:
        metadata = client.admin.get_metadata(topic)
    if as_json:
        output.print_json(metadata)
        return
    facts = [(name, value) for name, value in metadata.items() if not isinstance(value, (dict, list))]
    output.print_facts([("topic", topic), *facts, *metadata.get("properties", {}).items()])
    click.echo()
    segments = sorted(metadata["segments"].values(), key=lambda s: (s["hashRange"]["start"], s["segmentId"]))
    output.print_table(["segment", "hash range", "state", "buckets", "parents", "children"], map(segment_row, segments))


def segment_row(segment: dict[str, Any]) -> tuple[Any, ...]:
    """One line of `describe`."""
    span = segment["hashRange"]
    return (
        segment["segmentId"],
        f"{span['start']:04x}-{span['end']:04x}",
        segment["state"],
        len(segment.get("bucketBoundaries") or []) or None,
        ", ".join(map(str, segment["parentIds"])),
        ", ".join(map(str, segment["childIds"])),
    )


@command.command()
@click.argument("topic")
@json_option
@connection_options
def stats(topic: str, url: str, data: str | None, as_json: bool) -> None:
    """What a topic is doing: rates, sizes, backlogs."""
    with connect(url, data) as client:
        found = client.admin.get_stats(topic)
    if as_json:
        output.print_json(found)
        return
    output.print_facts((n, v) for n, v in found.items() if not isinstance(v, (dict, list)))
    for name, part in found.items():
        rows = records(part)
        if rows:
            click.echo()
            columns = list(dict.fromkeys(c for row in rows for c in row))
            output.print_table(columns, ([row.get(c) for c in columns] for row in rows), title=name)


def records(part: Any) -> list[dict[str, Any]]:
    """A list or map of records as flat rows; anything else is no table."""
    items = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    keys = list(part) if isinstance(part, dict) else None
    rows = []
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            return []
        flat = {name: value for name, value in item.items() if not isinstance(value, (dict, list))}
        rows.append({"name": keys[index], **flat} if keys else flat)
    return rows


@command.command()
@click.argument("topic")
@click.option("--yes", is_flag=True, help="Do not ask.")
@connection_options
def delete(topic: str, url: str, data: str | None, yes: bool) -> None:
    """Delete a topic with everything in it."""
    if not yes:
        click.confirm(f"Delete {topic} and every message in it?", abort=True)
    with connect(url, data) as client:
        client.admin.delete_topic(topic)
    click.echo(f"deleted {topic}", err=True)
