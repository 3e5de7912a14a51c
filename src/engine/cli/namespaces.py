"""`engine namespaces`: get, set, unset, remove the policies of a namespace's topics."""

from __future__ import annotations

from typing import Any

import click

from engine.cli import autoscale, lines
from engine.cli.connection import connect, connection_options, json_option
from engine.cli.policies import given, names, print_policies, retention_options
from engine.cli.values import namespace_name
from engine.model.policies import NamespacePolicies


@click.group()
def command() -> None:
    """Policies of a namespace, as tenant/namespace: how long messages are kept, what acknowledgements mean."""


@command.command()
@click.argument("namespace", type=namespace_name)
@json_option
@connection_options
def get(namespace: str, url: str, data: str | None, as_json: bool) -> None:
    """Show the policies in effect, and which of them the namespace sets itself."""
    with connect(url, data) as client:
        found = client.admin.get_namespace_policies(namespace)
        own = client.admin.get_namespace_policies(namespace, own=True)
    print_policies(found, own, "namespace", as_json)


@command.command("set")
@click.argument("namespace", type=namespace_name)
@retention_options
@click.option("--durability", type=click.Choice(["fsync", "interval", "os"]), help="Of topics made from now on.")
@click.option(
    "--auto-create-topics/--no-auto-create-topics", default=None, help="Whether producers and consumers create topics."
)
@connection_options
def set_policies(namespace: str, url: str, data: str | None, **options: Any) -> None:
    """Set policies of a namespace; those not given stay.

    Example: engine namespaces set public/default --retention-time 36h
    """
    policies = given(options, "namespaces unset NAMESPACE")
    with connect(url, data, create=True) as client:
        client.admin.set_namespace_policies(namespace, policies)
    lines.say(f"set the policies of {namespace}")


@command.command()
@click.argument("namespace", type=namespace_name)
@click.argument("policies", nargs=-1, metavar="[POLICY]...")
@click.option("--all", "everything", is_flag=True, help="All of them.")
@connection_options
def unset(namespace: str, policies: tuple[str, ...], everything: bool, url: str, data: str | None) -> None:
    """Leave policies of a namespace to the broker again.

    Example: engine namespaces unset public/default retention-time durability
    """
    said = names(policies, NamespacePolicies().to_mapping())
    if bool(said) == everything:
        raise click.UsageError("name policies, or give --all")
    _leave(namespace, url, data, said)


@command.command()
@click.argument("namespace", type=namespace_name)
@connection_options
def remove(namespace: str, url: str, data: str | None) -> None:
    """The same as `unset --all`: return to the broker's policies."""
    _leave(namespace, url, data, [])


def _leave(namespace: str, url: str, data: str | None, policies: list[str]) -> None:
    with connect(url, data) as client:
        if policies:
            client.admin.set_namespace_policies(namespace, dict.fromkeys(policies))
        else:
            client.admin.remove_namespace_policies(namespace)
    lines.say(f"{namespace} has the broker's {', '.join(policies) or 'policies'}")


command.add_command(autoscale.namespaces)
