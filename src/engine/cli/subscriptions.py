"""`engine subscriptions`: list, create, delete, seek."""

from __future__ import annotations

import click

from engine.cli import output
from engine.cli.connection import connect, connection_options, json_option
from engine.cli.topics import records
from engine.cli.values import position


@click.group()
def command() -> None:
    """Subscriptions of a topic: list, create, delete, move."""


@command.command("list")
@click.argument("topic")
@json_option
@connection_options
def list_subscriptions(topic: str, url: str, data: str | None, as_json: bool) -> None:
    """The subscriptions of a topic, with what is known of each."""
    with connect(url, data) as client:
        found = client.admin.get_stats(topic).get("subscriptions", {})
    if as_json:
        output.print_json(found)
        return
    rows = records(found)
    columns = list(dict.fromkeys(c for row in rows for c in row)) or ["name"]
    output.print_table(columns, ([row.get(c) for c in columns] for row in rows))


@command.command()
@click.argument("topic")
@click.argument("subscription")
@click.option("--from", "initial", type=click.Choice(["earliest", "latest"]), default="latest", show_default=True)
@connection_options
def create(topic: str, subscription: str, url: str, data: str | None, initial: str) -> None:
    """Make a subscription, before its first consumer comes."""
    with connect(url, data) as client:
        client.admin.create_subscription(topic, subscription, initial_position=initial)
    click.echo(f"created {subscription} on {topic}", err=True)


@command.command()
@click.argument("topic")
@click.argument("subscription")
@click.option("--yes", is_flag=True, help="Do not ask.")
@connection_options
def delete(topic: str, subscription: str, url: str, data: str | None, yes: bool) -> None:
    """Delete a subscription with what it has acknowledged."""
    if not yes:
        click.confirm(f"Delete the subscription {subscription} of {topic}?", abort=True)
    with connect(url, data) as client:
        client.admin.delete_subscription(topic, subscription)
    click.echo(f"deleted {subscription} from {topic}", err=True)


@command.command()
@click.argument("topic")
@click.argument("subscription")
@click.argument("when")
@connection_options
def seek(topic: str, subscription: str, when: str, url: str, data: str | None) -> None:
    """Move a subscription to WHEN: earliest, latest, an ISO 8601 time, or milliseconds since 1970."""
    aim = position(when)
    with connect(url, data) as client:
        client.admin.seek_subscription(topic, subscription, aim)
    click.echo(f"{subscription} on {topic} continues at {aim}", err=True)
