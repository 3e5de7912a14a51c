"""`engine subscriptions`: list, stats, create, delete, seek, skip, clear-backlog."""

from __future__ import annotations

from typing import Literal

import click

from engine.cli import lines, output
from engine.cli.connection import connect, connection_options, json_option
from engine.cli.groups import Group, examples
from engine.cli.statistics import print_subscription, print_subscriptions
from engine.cli.values import offset_range, position, subscription_name, topic_name
from engine.errors import NotFoundError


@click.group(cls=Group)
def command() -> None:
    """Create, list, move and delete a topic's subscriptions."""


@command.command("list", epilog=examples("engine subscriptions list orders"))
@click.argument("topic", type=topic_name)
@json_option
@connection_options
def list_subscriptions(topic: str, url: str, data: str | None, as_json: bool) -> None:
    """List a topic's subscriptions, their backlogs and consumers."""
    with connect(url, data) as client:
        found = client.admin.get_stats(topic).get("subscriptions", {})
    if as_json:
        output.print_json(found)
        return
    print_subscriptions(found)


@command.command(epilog=examples("engine subscriptions stats orders billing"))
@click.argument("topic", type=topic_name)
@click.argument("subscription", type=subscription_name)
@json_option
@connection_options
def stats(topic: str, subscription: str, url: str, data: str | None, as_json: bool) -> None:
    """Show a subscription's backlog and its consumers."""
    with connect(url, data) as client:
        found = client.admin.get_stats(topic)
    facts = found["subscriptions"].get(subscription)
    if facts is None:
        raise NotFoundError(f"{found['topic']} has no subscription {subscription!r}")
    if as_json:
        output.print_json(facts)
    else:
        print_subscription(subscription, facts)


@command.command(epilog=examples("engine subscriptions create orders billing --from earliest"))
@click.argument("topic", type=topic_name)
@click.argument("subscription", type=subscription_name)
@click.option(
    "--from",
    "initial",
    type=click.Choice(["earliest", "latest"]),
    default="latest",
    show_default=True,
    help="Begin with the first stored message, or behind the last one.",
)
@click.option("--kind", type=click.Choice(["stream", "queue"]), help="Of its consumers; shown before the first comes.")
@connection_options
def create(
    topic: str,
    subscription: str,
    url: str,
    data: str | None,
    initial: Literal["earliest", "latest"],
    kind: Literal["stream", "queue"] | None,
) -> None:
    """Create a subscription before its first consumer attaches."""
    with connect(url, data) as client:
        client.admin.create_subscription(topic, subscription, initial_position=initial, kind=kind)
    lines.say(f"created {subscription} on {topic}")


@command.command(epilog=examples("engine subscriptions delete orders billing"))
@click.argument("topic", type=topic_name)
@click.argument("subscription", type=subscription_name)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@connection_options
def delete(topic: str, subscription: str, url: str, data: str | None, yes: bool) -> None:
    """Delete a subscription and its position.

    Its consumers end with NotFoundError. The messages stay in the topic.
    """
    if not yes:
        lines.confirm(f"Delete the subscription {subscription} of {topic}?")
    with connect(url, data) as client:
        client.admin.delete_subscription(topic, subscription)
    lines.say(f"deleted {subscription} from {topic}")


@command.command(
    epilog=examples(
        "engine subscriptions seek orders billing 2026-01-31T12:00:00Z",
        "engine subscriptions seek orders billing earliest",
    )
)
@click.argument("topic", type=topic_name)
@click.argument("subscription", type=subscription_name)
@click.argument("when")
@connection_options
def seek(topic: str, subscription: str, when: str, url: str, data: str | None) -> None:
    """Move a subscription back or forward.

    WHEN is earliest, latest, an ISO 8601 time (UTC without a zone), or milliseconds since 1970.
    """
    aim = position(when)
    with connect(url, data) as client:
        client.admin.seek_subscription(topic, subscription, aim)
    lines.say(f"{subscription} on {topic} continues at {aim}")


@command.command(epilog=examples("engine subscriptions skip orders billing 3 100..149"))
@click.argument("topic", type=topic_name)
@click.argument("subscription", type=subscription_name)
@click.argument("segment", type=click.IntRange(min=0))
@click.argument("offsets", type=offset_range)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@connection_options
def skip(
    topic: str, subscription: str, segment: int, offsets: tuple[int, int], url: str, data: str | None, yes: bool
) -> None:
    """Acknowledge messages that cannot be read.

    A consumer that stops at a damaged entry names its SEGMENT and OFFSETS ("7" or "100..149") in the error. After this
    command it continues behind them.
    """
    first, last = offsets
    if not yes:
        count = last + 1 - first
        lines.confirm(f"Acknowledge {count} messages that {subscription} of {topic} may not have read?")
    with connect(url, data) as client:
        client.admin.skip_messages(topic, subscription, segment, first, last)
    lines.say(f"{subscription} on {topic} continues behind offset {last} of segment {segment}")


@command.command("clear-backlog", epilog=examples("engine subscriptions clear-backlog orders billing"))
@click.argument("topic", type=topic_name)
@click.argument("subscription", type=subscription_name)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@connection_options
def clear_backlog(topic: str, subscription: str, url: str, data: str | None, yes: bool) -> None:
    """Acknowledge all messages of a subscription, read or not.

    It continues with the next message that is sent.
    """
    if not yes:
        lines.confirm(f"Acknowledge the whole backlog of {subscription} of {topic}?")
    with connect(url, data) as client:
        client.admin.clear_backlog(topic, subscription)
    lines.say(f"{subscription} on {topic} has no backlog")
