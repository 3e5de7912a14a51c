"""`engine tenants`: list, create, show, change and delete tenants."""

from __future__ import annotations

import click

from engine.cli import lines, output
from engine.cli.connection import connect, connection_options, json_option
from engine.cli.groups import Group, examples


@click.group(cls=Group)
def command() -> None:
    """Manage tenants, which have namespaces."""


@command.command("list", epilog=examples("engine tenants list"))
@json_option
@connection_options
def list_tenants(url: str, data: str | None, as_json: bool) -> None:
    """List the tenants that were created, or have namespaces."""
    with connect(url, data) as client:
        found = client.admin.list_tenants()
    if as_json:
        output.print_json(found)
    else:
        for name in found:
            lines.line(name)


@command.command(epilog=examples("engine tenants create billing --role ann --role bob"))
@click.argument("tenant")
@click.option("--role", "roles", multiple=True, help="Only these may be granted rights in it; repeatable.")
@connection_options
def create(tenant: str, roles: tuple[str, ...], url: str, data: str | None) -> None:
    """Create a tenant."""
    with connect(url, data, create=True) as client:
        client.admin.create_tenant(tenant, roles=list(roles) or None)
    lines.say(f"created {tenant}")


@command.command(epilog=examples("engine tenants get billing"))
@click.argument("tenant")
@json_option
@connection_options
def get(tenant: str, url: str, data: str | None, as_json: bool) -> None:
    """Show the roles that may be granted rights in a tenant."""
    with connect(url, data) as client:
        found = client.admin.get_tenant(tenant)
    if as_json:
        output.print_json(found)
    else:
        lines.line("any" if found["roles"] is None else ", ".join(found["roles"]))


@command.command(epilog=examples("engine tenants roles billing --role ann --role bob"))
@click.argument("tenant")
@click.option("--role", "names", multiple=True, help="Only these may be granted rights in it; repeatable.")
@click.option("--any-role", is_flag=True, help="Any role may be granted rights in it.")
@connection_options
def roles(tenant: str, names: tuple[str, ...], any_role: bool, url: str, data: str | None) -> None:
    """Set the roles that may be granted rights in a tenant."""
    if bool(names) == any_role:
        raise click.UsageError("give --role, once or more often, or --any-role")
    with connect(url, data) as client:
        client.admin.set_tenant_roles(tenant, None if any_role else list(names))
    lines.say(f"set the roles of {tenant}")


@command.command(epilog=examples("engine tenants delete billing"))
@click.argument("tenant")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@connection_options
def delete(tenant: str, yes: bool, url: str, data: str | None) -> None:
    """Delete a tenant that has no namespaces, with the grants on it."""
    if not yes:
        lines.confirm(f"Delete {tenant} with the grants on it?")
    with connect(url, data) as client:
        client.admin.delete_tenant(tenant)
    lines.say(f"deleted {tenant}")
