"""`engine topics properties`: get, set, unset."""

from __future__ import annotations

import click

from engine.cli import lines, output
from engine.cli.connection import connect, connection_options, json_option
from engine.cli.values import key_values, topic_name


@click.group("properties")
def command() -> None:
    """A topic's properties: text by text, by which consumers of a namespace choose their topics."""


@command.command()
@click.argument("topic", type=topic_name)
@json_option
@connection_options
def get(topic: str, url: str, data: str | None, as_json: bool) -> None:
    """Show a topic's properties."""
    with connect(url, data) as client:
        found = client.admin.get_metadata(topic)["properties"]
    if as_json:
        output.print_json(found)
    else:
        output.print_facts(found.items())


@command.command("set")
@click.argument("topic", type=topic_name)
@click.argument("properties", nargs=-1, required=True, metavar="NAME=VALUE...")
@connection_options
def set_properties(topic: str, properties: tuple[str, ...], url: str, data: str | None) -> None:
    """Set properties of a topic; others stay.

    Example: engine topics properties set orders team=billing
    """
    said = key_values(properties)
    with connect(url, data) as client:
        now = client.admin.get_metadata(topic)["properties"]
        client.admin.set_topic_properties(topic, {**now, **said})
    lines.say(f"set {', '.join(said)} of {topic}")


@command.command()
@click.argument("topic", type=topic_name)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@connection_options
def unset(topic: str, names: tuple[str, ...], url: str, data: str | None) -> None:
    """Remove properties of a topic; others stay.

    Example: engine topics properties unset orders team
    """
    with connect(url, data) as client:
        now = client.admin.get_metadata(topic)["properties"]
        client.admin.set_topic_properties(topic, {name: now[name] for name in now if name not in names})
    lines.say(f"removed {', '.join(names)} of {topic}")
