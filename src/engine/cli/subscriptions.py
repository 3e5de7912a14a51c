"""`engine subscriptions`: list, stats, create, delete, seek, skip, clear-backlog."""

from __future__ import annotations

import click

from engine.cli import lines, output
from engine.cli.connection import connect, connection_options, json_option
from engine.cli.statistics import print_subscription, print_subscriptions
from engine.cli.values import offset_range, position, subscription_name, topic_name
from engine.errors import NotFoundError


@click.group()
def command() -> None:
    """Subscriptions of a topic: list them, show statistics, create, delete, move, clear."""


@command.command("list")
@click.argument("topic", type=topic_name)
@json_option
@connection_options
def list_subscriptions(topic: str, url: str, data: str | None, as_json: bool) -> None:
    """List the subscriptions of a topic: kind, state, backlog, rate, consumers."""
    with connect(url, data) as client:
        found = client.admin.get_stats(topic).get("subscriptions", {})
    if as_json:
        output.print_json(found)
        return
    print_subscriptions(found)


@command.command()
@click.argument("topic", type=topic_name)
@click.argument("subscription", type=subscription_name)
@json_option
@connection_options
def stats(topic: str, subscription: str, url: str, data: str | None, as_json: bool) -> None:
    """Show the statistics of a subscription: its backlog in each segment, its consumers."""
    with connect(url, data) as client:
        found = client.admin.get_stats(topic)
    facts = found["subscriptions"].get(subscription)
    if facts is None:
        raise NotFoundError(f"{found['topic']} has no subscription {subscription!r}")
    if as_json:
        output.print_json(facts)
    else:
        print_subscription(subscription, facts)


@command.command()
@click.argument("topic", type=topic_name)
@click.argument("subscription", type=subscription_name)
@click.option("--from", "initial", type=click.Choice(["earliest", "latest"]), default="latest", show_default=True)
@click.option("--kind", type=click.Choice(["stream", "queue"]), help="Of its consumers; shown before the first comes.")
@connection_options
def create(topic: str, subscription: str, url: str, data: str | None, initial: str, kind: str | None) -> None:
    """Create a subscription ahead of its first consumer."""
    with connect(url, data) as client:
        client.admin.create_subscription(topic, subscription, initial_position=initial, kind=kind)
    lines.say(f"created {subscription} on {topic}")


@command.command()
@click.argument("topic", type=topic_name)
@click.argument("subscription", type=subscription_name)
@click.option("--yes", is_flag=True, help="Do not ask.")
@connection_options
def delete(topic: str, subscription: str, url: str, data: str | None, yes: bool) -> None:
    """Delete a subscription and its cursors."""
    if not yes:
        lines.confirm(f"Delete the subscription {subscription} of {topic}?")
    with connect(url, data) as client:
        client.admin.delete_subscription(topic, subscription)
    lines.say(f"deleted {subscription} from {topic}")


@command.command()
@click.argument("topic", type=topic_name)
@click.argument("subscription", type=subscription_name)
@click.argument("when")
@connection_options
def seek(topic: str, subscription: str, when: str, url: str, data: str | None) -> None:
    """Move a subscription to WHEN: earliest, latest, an ISO 8601 time, or milliseconds since 1970."""
    aim = position(when)
    with connect(url, data) as client:
        client.admin.seek_subscription(topic, subscription, aim)
    lines.say(f"{subscription} on {topic} continues at {aim}")


@command.command()
@click.argument("topic", type=topic_name)
@click.argument("subscription", type=subscription_name)
@click.argument("segment", type=click.IntRange(min=0))
@click.argument("offsets", type=offset_range)
@click.option("--yes", is_flag=True, help="Do not ask.")
@connection_options
def skip(
    topic: str, subscription: str, segment: int, offsets: tuple[int, int], url: str, data: str | None, yes: bool
) -> None:
    """Acknowledge OFFSETS of a SEGMENT, "7" or "100..149", without reading them.

    Consumers stop at a corrupt entry, and their error names its offsets. Once skipped, they continue behind it.
    """
    first, last = offsets
    if not yes:
        count = last + 1 - first
        lines.confirm(f"Acknowledge {count} messages that {subscription} of {topic} may not have read?")
    with connect(url, data) as client:
        client.admin.skip_messages(topic, subscription, segment, first, last)
    lines.say(f"{subscription} on {topic} continues behind offset {last} of segment {segment}")


@command.command("clear-backlog")
@click.argument("topic", type=topic_name)
@click.argument("subscription", type=subscription_name)
@click.option("--yes", is_flag=True, help="Do not ask.")
@connection_options
def clear_backlog(topic: str, subscription: str, url: str, data: str | None, yes: bool) -> None:
    """Acknowledge the whole backlog of a subscription: delivery continues with new messages."""
    if not yes:
        lines.confirm(f"Acknowledge the whole backlog of {subscription} of {topic}?")
    with connect(url, data) as client:
        client.admin.clear_backlog(topic, subscription)
    lines.say(f"{subscription} on {topic} has no backlog")
