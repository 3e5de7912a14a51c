"""`engine namespaces`: list them; get, set, unset the policies of their topics."""

from __future__ import annotations

from typing import Any

import click

from engine.cli import autoscale, lines, output
from engine.cli.connection import connect, connection_options, json_option
from engine.cli.groups import Group, examples
from engine.cli.policies import add_above, given, message_options, names, print_policies
from engine.cli.values import namespace_name
from engine.model.policies import NamespacePolicies


@click.group(cls=Group)
def command() -> None:
    """List namespaces; get and set their policies.

    A NAMESPACE is named as tenant/namespace. Its policies hold for all of its topics.
    """


@command.command("list", epilog=examples("engine namespaces list"))
@json_option
@connection_options
def list_namespaces(url: str, data: str | None, as_json: bool) -> None:
    """List the namespaces that have topics, or policies of their own."""
    with connect(url, data) as client:
        found = client.admin.list_namespaces()
    if as_json:
        output.print_json(found)
    else:
        for name in found:
            lines.line(name)


@command.command(epilog=examples("engine namespaces create billing/invoices"))
@click.argument("namespace", type=namespace_name)
@connection_options
def create(namespace: str, url: str, data: str | None) -> None:
    """Create a namespace."""
    with connect(url, data, create=True) as client:
        client.admin.create_namespace(namespace)
    lines.say(f"created {namespace}")


@command.command(epilog=examples("engine namespaces delete billing/invoices"))
@click.argument("namespace", type=namespace_name)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@connection_options
def delete(namespace: str, yes: bool, url: str, data: str | None) -> None:
    """Delete a namespace that has no topics."""
    if not yes:
        lines.confirm(f"Delete {namespace} with its policies and grants?")
    with connect(url, data) as client:
        client.admin.delete_namespace(namespace)
    lines.say(f"deleted {namespace}")


@command.command(epilog=examples("engine namespaces get public/default"))
@click.argument("namespace", type=namespace_name)
@json_option
@connection_options
def get(namespace: str, url: str, data: str | None, as_json: bool) -> None:
    """Show the policies in effect, and where each is set."""
    with connect(url, data) as client:
        found = client.admin.get_namespace_policies(namespace)
        said = {"namespace": client.admin.get_namespace_policies(namespace, own=True)}
        rest = add_above(said, client.admin, namespace.split("/")[0])
    print_policies(found, said, rest, as_json)


@command.command(
    "set", epilog=examples("engine namespaces set public/default --retention-time 36h --retention-size 2GB")
)
@click.argument("namespace", type=namespace_name)
@message_options
@click.option(
    "--durability",
    type=click.Choice(["fsync", "interval", "os", "object"]),
    help="Of topics that are created from now on.",
)
@click.option(
    "--auto-create-topics/--no-auto-create-topics", default=None, help="Whether producers and consumers create topics."
)
@connection_options
def set_policies(namespace: str, url: str, data: str | None, **options: Any) -> None:
    """Set policies of a namespace; those not given stay."""
    policies = given(options, "namespaces unset NAMESPACE")
    with connect(url, data, create=True) as client:
        client.admin.set_namespace_policies(namespace, policies)
    lines.say(f"set the policies of {namespace}")


@command.command(
    epilog=examples(
        "engine namespaces unset public/default retention-time durability",
        "engine namespaces unset public/default --all",
    )
)
@click.argument("namespace", type=namespace_name)
@click.argument("policies", nargs=-1, metavar="[POLICY]...")
@click.option("--all", "everything", is_flag=True, help="All policies.")
@connection_options
def unset(namespace: str, policies: tuple[str, ...], everything: bool, url: str, data: str | None) -> None:
    """Leave policies of a namespace to the broker again."""
    said = names(policies, NamespacePolicies().to_mapping())
    if bool(said) == everything:
        raise click.UsageError("name policies, or give --all")
    _leave(namespace, url, data, said)


@command.command(hidden=True, epilog=examples("engine namespaces remove public/default"))
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
