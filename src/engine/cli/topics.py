"""`engine topics`: list, create, describe, stats, delete; what changes their shape: `reshape.py`, `autoscale.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from engine.cli import autoscale, lines, output, policies, properties, reshape
from engine.cli.autoscale import scaling_facts
from engine.cli.connection import connect, connection_options, json_option
from engine.cli.dag import only_active, print_layout
from engine.cli.groups import Group, examples
from engine.cli.statistics import print_stats
from engine.cli.values import key_values, namespace_name, topic_name

if TYPE_CHECKING:
    from engine.model.layout import KeyHash
    from engine.model.policies import Durability
    from engine.sync import Client

THE_BROKERS = "[default: as the broker is configured]"
THE_NAMESPACES = (
    "When a message counts as stored: synced to disk, synced at intervals, or handed to the operating "
    "system. [default: the namespace's policy, else as the broker is configured]"
)


@click.group(cls=Group)
def command() -> None:
    """Create, list, describe, reshape and delete topics."""


@command.command(
    "list",
    epilog=examples("engine topics list", "engine topics list --namespace acme/orders --property team=billing --watch"),
)
@click.option(
    "--namespace",
    type=namespace_name,
    metavar="NAMESPACE",
    default="public/default",
    show_default=True,
    help="The namespace, as tenant/namespace.",
)
@click.option(
    "--property", "facts", multiple=True, metavar="NAME=VALUE", help="Only topics with this property; repeatable."
)
@click.option(
    "--pattern",
    metavar="RE2",
    help="Only topics whose name, without tenant and namespace, matches this regular expression as a whole.",
)
@click.option(
    "--watch", is_flag=True, help="Keep running and print changes: + before a created topic, - before a deleted one."
)
@json_option
@connection_options
def list_topics(
    url: str,
    data: str | None,
    namespace: str,
    facts: tuple[str, ...],
    pattern: str | None,
    watch: bool,
    as_json: bool,
) -> None:
    """List the topics of a namespace."""
    wanted = key_values(facts) or None
    with connect(url, data) as client:
        if watch:
            watch_topics(client, namespace, wanted, pattern, as_json)
            return
        found = client.list_topics(namespace, properties=wanted, pattern=pattern)
    if as_json:
        output.print_json(found)
    else:
        for name in found:
            lines.line(name)


def watch_topics(
    client: Client, namespace: str, properties: dict[str, str] | None, pattern: str | None, as_json: bool
) -> None:
    with client.watch_topics(namespace, properties=properties, pattern=pattern) as changes:
        for change in changes:
            if as_json:
                change_of = {"removed": change.removed, "added": change.added}
                lines.line(lines.json_text(change_of, ascii_only=lines.on_terminal()))
                continue
            for sign, names in (("-", change.removed), ("+", change.added)):
                for name in names:
                    lines.line(f"{sign} {name}")


@command.command(epilog=examples("engine topics create orders --segments 4 --property team=billing"))
@click.argument("topic", type=topic_name)
@click.option("--segments", type=click.IntRange(1), metavar="N", help=f"Segments at the start. {THE_BROKERS}")
@click.option(
    "--key-hash",
    type=click.Choice(["xxh64", "murmur3", "murmur3-low"]),
    help=f"How keys are hashed; cannot be changed later. {THE_BROKERS}",
)
@click.option("--durability", type=click.Choice(["fsync", "interval", "os", "object"]), help=THE_NAMESPACES)
@click.option(
    "--entry-buckets",
    type=click.IntRange(1),
    metavar="N",
    help=f"Entry buckets of the topic at the start. {THE_BROKERS}",
)
@click.option("--property", "facts", multiple=True, metavar="NAME=VALUE", help="A property of the topic; repeatable.")
@click.option(
    "--auto-scale",
    multiple=True,
    metavar="FIELD=VALUE",
    help="A field of its auto-scale policy, as max-segments=8; repeatable.",
)
@connection_options
def create(
    topic: str,
    url: str,
    data: str | None,
    segments: int | None,
    key_hash: KeyHash | None,
    durability: Durability | None,
    entry_buckets: int | None,
    facts: tuple[str, ...],
    auto_scale: tuple[str, ...],
) -> None:
    """Create a topic."""
    policy = autoscale.fields_of(auto_scale)
    with connect(url, data, create=True) as client:
        client.admin.create_topic(
            topic,
            segments=segments,
            key_hash=key_hash,
            durability=durability,
            entry_buckets=entry_buckets,
            properties=key_values(facts) or None,
            auto_scale=policy or None,
        )
    lines.say(f"created {topic}")


@command.command(epilog=examples("engine topics describe orders"))
@click.argument("topic", type=topic_name)
@click.option("--active", is_flag=True, help="List only active segments, one a line.")
@json_option
@connection_options
def describe(topic: str, url: str, data: str | None, active: bool, as_json: bool) -> None:
    """Show a topic's properties and the tree of its segments."""
    with connect(url, data) as client:
        metadata: Any = client.admin.get_metadata(topic)
        metadata = only_active(metadata) if active else metadata
        numbers: Any = {} if as_json else client.admin.get_stats(topic)
    if as_json:
        output.print_json(metadata)
        return
    output.print_facts([*topic_facts(metadata), *scaling_facts(numbers["autoScale"])])
    click.echo()
    print_layout(numbers["topic"], metadata, numbers)


def topic_facts(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What holds for the whole topic."""
    yield "epoch", metadata["epoch"]
    yield "durability", metadata["durability"]
    yield "key hash", metadata["keyHash"]
    yield "created", datetime.fromtimestamp(metadata["createdAtMs"] / 1000, UTC).isoformat(timespec="seconds")
    for name, value in metadata["properties"].items():
        yield f"property {name}", value
    if "change" in metadata:
        yield "under way", change_text(metadata["change"])


def change_text(change: dict[str, Any]) -> str:
    """A pending change: what it is, of which segments, and how far it has come."""
    parents = " and ".join(map(str, change.get("details", {}).get("parents", ())))
    return f"{change['kind']}{' of ' if parents else ''}{parents}, phase {change['phase']!r}"


@command.command(epilog=examples("engine topics stats orders"))
@click.argument("topic", type=topic_name)
@json_option
@connection_options
def stats(topic: str, url: str, data: str | None, as_json: bool) -> None:
    """Show rates, sizes and backlogs of a topic.

    For the topic, its segments, its subscriptions and their consumers.
    """
    with connect(url, data) as client:
        found = client.admin.get_stats(topic)
    if as_json:
        output.print_json(found)
        return
    print_stats(found)


@command.command(epilog=examples("engine topics delete orders"))
@click.argument("topic", type=topic_name)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@connection_options
def delete(topic: str, url: str, data: str | None, yes: bool) -> None:
    """Delete a topic and every message in it."""
    if not yes:
        lines.confirm(f"Delete {topic} and every message in it?")
    with connect(url, data) as client:
        client.admin.delete_topic(topic)
    lines.say(f"deleted {topic}")


for more in (reshape.split, reshape.merge, reshape.rebucket, autoscale.topics, policies.topics, properties.command):
    command.add_command(more)
