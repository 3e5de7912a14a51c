"""`engine grants`: what roles may do on topics, namespaces, tenants and the cluster."""

from __future__ import annotations

import click

from engine.cli import lines, output
from engine.cli.connection import connect, connection_options, json_option
from engine.cli.groups import Group, examples


@click.group(cls=Group)
def command() -> None:
    """Grant roles rights, and take them away.

    A RESOURCE is tenant/namespace/topic, tenant/namespace, tenant, or * for the cluster. A right holds for what lies
    below it.
    """


@command.command("list", epilog=examples("engine grants list billing", "engine grants list '*'"))
@click.argument("resource")
@json_option
@connection_options
def list_grants(resource: str, url: str, data: str | None, as_json: bool) -> None:
    """List the grants on a resource and below it."""
    with connect(url, data) as client:
        found = client.admin.list_grants(resource)
    if as_json:
        output.print_json(found)
        return
    rows = [(g["resource"], g["role"], ", ".join(g["rights"]), g["subscription_prefix"] or "") for g in found]
    output.print_table(["resource", "role", "rights", "subscriptions"], rows)


@command.command(epilog=examples("engine grants check billing/invoices"))
@click.argument("resource")
@json_option
@connection_options
def check(resource: str, url: str, data: str | None, as_json: bool) -> None:
    """Show what you may do on a resource."""
    with connect(url, data) as client:
        found = client.admin.get_permissions(resource)
    if as_json:
        output.print_json(found)
        return
    prefixes = found["subscriptionPrefixes"]
    facts = [("role", found["role"] or "none: all is allowed"), ("rights", ", ".join(found["rights"]) or "none")]
    output.print_facts([*facts, ("subscriptions", "all" if prefixes is None else f"{', '.join(prefixes)}…")])


@command.command(epilog=examples("engine grants add billing/invoices ann produce consume"))
@click.argument("resource")
@click.argument("role")
@click.argument("rights", nargs=-1, required=True, metavar="RIGHT...")
@click.option("--subscription-prefix", metavar="TEXT", help="consume is of subscriptions whose names begin so.")
@connection_options
def add(
    resource: str, role: str, rights: tuple[str, ...], subscription_prefix: str | None, url: str, data: str | None
) -> None:
    """Grant a role rights on a resource.

    They take the place of those that it has there.
    """
    with connect(url, data, create=True) as client:
        client.admin.grant(resource, role, rights, subscription_prefix=subscription_prefix)
    lines.say(f"{role} has {', '.join(rights)} on {resource}")


@command.command(epilog=examples("engine grants remove billing/invoices ann"))
@click.argument("resource")
@click.argument("role")
@connection_options
def remove(resource: str, role: str, url: str, data: str | None) -> None:
    """Take the rights of a role on a resource away."""
    with connect(url, data) as client:
        client.admin.revoke(resource, role)
    lines.say(f"{role} has nothing on {resource} any more")
