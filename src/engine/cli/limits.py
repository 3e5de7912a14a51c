"""`engine limits`: how much may be done on topics, namespaces, tenants, and by roles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from engine.cli import lines, output
from engine.cli.connection import connect, connection_options, json_option
from engine.cli.groups import Group, examples
from engine.cli.values import duration, size
from engine.model.limits import ACTIONS, NAMES, NO_LIMIT


@click.group(cls=Group)
def command() -> None:
    """Limit rates, numbers and storage.

    A RESOURCE is tenant/namespace/topic, tenant/namespace, tenant, * for each broker, role:NAME, or role:* for each
    role that says nothing itself. A topic has its own limits, else those of its namespace, tenant, and broker; sums
    (total-…) hold where they are said.
    """


@command.command("list", epilog=examples("engine limits list"))
@json_option
@connection_options
def list_limits(url: str, data: str | None, as_json: bool) -> None:
    """List what each resource and role says."""
    with connect(url, data) as client:
        found = client.admin.list_limits()
    if as_json:
        output.print_json(found)
        return
    rows = [
        (resource, _option(name), _shown(value)) for resource, said in found.items() for name, value in said.items()
    ]
    output.print_table(["resource", "limit", "value"], rows)


@command.command(epilog=examples("engine limits get billing", "engine limits get 'role:*'"))
@click.argument("resource")
@json_option
@connection_options
def get(resource: str, url: str, data: str | None, as_json: bool) -> None:
    """Show what a resource or a role says itself.

    Those in effect for a topic are in `engine topics stats`.
    """
    with connect(url, data) as client:
        found = client.admin.get_limits(resource)
    if as_json:
        output.print_json(found)
        return
    rows = [(_option(name), _shown(value)) for name, value in found.items() if value is not None]
    output.print_table(["limit", "value"], rows)


@command.command(
    "set", epilog=examples("engine limits set billing total-publish-bytes-per-s=10MB total-storage-bytes=1GB")
)
@click.argument("resource")
@click.argument("limits", nargs=-1, required=True, metavar="LIMIT=VALUE...")
@connection_options
def set_limits(resource: str, limits: tuple[str, ...], url: str, data: str | None) -> None:
    """Set limits; those not named stay. -1 is no limit, whatever is said above."""
    values = dict(_parsed(text) for text in limits)
    with connect(url, data, create=True) as client:
        client.admin.set_limits(resource, values)
    lines.say(f"set {', '.join(map(_option, values))} of {resource}")


@command.command(
    epilog=examples("engine limits unset billing total-storage-bytes", "engine limits unset billing --all")
)
@click.argument("resource")
@click.argument("limits", nargs=-1, metavar="[LIMIT]...")
@click.option("--all", "everything", is_flag=True, help="All limits.")
@connection_options
def unset(resource: str, limits: tuple[str, ...], everything: bool, url: str, data: str | None) -> None:
    """Take limits of a resource or a role back."""
    if bool(limits) == everything:
        raise click.UsageError("name limits, or give --all")
    named = [_name(text) for text in limits]
    with connect(url, data) as client:
        if everything:
            client.admin.remove_limits(resource)
        else:
            client.admin.set_limits(resource, dict.fromkeys(named))
    lines.say(f"{resource} says nothing of {'any limit' if everything else ', '.join(limits)}")


def _option(name: str) -> str:
    return name.replace("_", "-")


def _name(text: str) -> str:
    """A limit as typed: producers-max. Raises a usage error for an unknown one."""
    name = text.replace("-", "_")
    if name not in NAMES:
        raise click.BadParameter(f"a limit must be one of {', '.join(map(_option, NAMES))}, got {text!r}")
    return name


def _parsed(text: str) -> tuple[str, Any]:
    typed, equals, value = text.partition("=")
    name = _name(typed)
    if not equals:
        raise click.BadParameter(f"a limit must be NAME=VALUE, got {text!r}")
    if name == "backlog_action":
        return name, click.Choice(ACTIONS).convert(value, None, None)
    if value == str(NO_LIMIT):
        return name, NO_LIMIT
    read: Callable[[str], Any] = int if "bytes" not in name else size
    if name in ("backlog_age_s", "message_ttl_s", "retention_time_s"):
        read = duration
    try:
        return name, int(read(value))
    except ValueError as e:
        raise click.BadParameter(f"{typed} must be a number, or text with a unit, got {value!r}") from e


def _shown(value: Any) -> str:
    return "no limit" if value == NO_LIMIT else output.show(value)
