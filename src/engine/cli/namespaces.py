"""`engine namespaces`: get, set, unset the policies of a namespace's topics."""

from __future__ import annotations

from typing import Any

import click

from engine.cli import autoscale, lines, output
from engine.cli.connection import connect, connection_options, json_option
from engine.cli.groups import Group, examples
from engine.cli.values import duration, namespace_name, size

FOR_EVER = -1


def retention_time(text: str) -> int:
    """Whole seconds as typed: -1, 90, 36h, 7d."""
    return FOR_EVER if text == str(FOR_EVER) else int(duration(text))


def retention_size(text: str) -> int:
    """Bytes as typed: -1, 50MB."""
    return FOR_EVER if text == str(FOR_EVER) else size(text)


@click.group(cls=Group, aliases={"remove": "unset"})
def command() -> None:
    """Get and set the policies of a namespace.

    A NAMESPACE is named as tenant/namespace. Its policies hold for all of its topics.
    """


@command.command(epilog=examples("engine namespaces get public/default"))
@click.argument("namespace", type=namespace_name)
@json_option
@connection_options
def get(namespace: str, url: str, data: str | None, as_json: bool) -> None:
    """Show the policies in effect."""
    with connect(url, data) as client:
        found = client.admin.get_namespace_policies(namespace)
    if as_json:
        output.print_json(found)
    else:
        output.print_facts((name, shown(name, value)) for name, value in found.items())


@command.command(
    "set", epilog=examples("engine namespaces set public/default --retention-time 36h --retention-size 2GB")
)
@click.argument("namespace", type=namespace_name)
@click.option("--retention-time", type=retention_time, metavar="DURATION", help="-1: for ever. [default: 7d]")
@click.option("--retention-size", type=retention_size, metavar="BYTES", help="Per segment. [default: -1, no limit]")
@click.option(
    "--durability", type=click.Choice(["fsync", "interval", "os"]), help="Of topics that are created from now on."
)
@connection_options
def set_policies(
    namespace: str,
    url: str,
    data: str | None,
    retention_time: int | None,
    retention_size: int | None,
    durability: str | None,
) -> None:
    """Replace all policies.

    One that is not given returns to its default, also if it was set before.
    """
    said = {"retention_time_s": retention_time, "retention_size_bytes": retention_size, "durability": durability}
    policies = {name: value for name, value in said.items() if value is not None}
    if not policies:
        raise click.UsageError("give at least one policy; `engine namespaces unset` returns to the broker's defaults")
    with connect(url, data, create=True) as client:
        client.admin.set_namespace_policies(namespace, policies)
    lines.say(f"set the policies of {namespace}")


@command.command("unset", epilog=examples("engine namespaces unset public/default"))
@click.argument("namespace", type=namespace_name)
@connection_options
def unset_policies(namespace: str, url: str, data: str | None) -> None:
    """Remove the policies: the broker's defaults hold."""
    with connect(url, data) as client:
        client.admin.remove_namespace_policies(namespace)
    lines.say(f"{namespace} has the broker's defaults")


command.add_command(autoscale.namespaces)


def shown(name: str, value: Any) -> Any:
    """A policy as people read it."""
    if name == "durability":
        return value or "the broker's"
    if value is None or value == FOR_EVER:
        return "for ever" if name == "retention_time_s" else "no limit"
    return f"{value:,} s" if name == "retention_time_s" else output.size(value)
