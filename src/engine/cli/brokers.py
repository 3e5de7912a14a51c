"""`engine brokers config`: limits that change at run time."""

from __future__ import annotations

import contextlib

import click

from engine.broker.settings.config import setting
from engine.cli import lines, output
from engine.cli.connection import connect, connection_options, json_option
from engine.cli.groups import Group, examples
from engine.errors import InvalidConfigurationError


@click.group(cls=Group)
def command() -> None:
    """Get and set what all brokers of a cluster share."""


@command.group()
def config() -> None:
    """Get and set limits while brokers run.

    They hold for all brokers that share a metadata store, and stay set after a restart.
    """


@config.command("list", epilog=examples("engine brokers config list"))
@json_option
@connection_options
def list_config(url: str, data: str | None, as_json: bool) -> None:
    """List the limits, their values, and which were set here."""
    with connect(url, data) as client:
        effective, given = client.admin.get_runtime_configuration(), client.admin.get_dynamic_configuration()
    if as_json:
        rows = {name: {"value": value, "set": name in given} for name, value in effective.items()}
        output.print_json(rows)
    else:
        output.print_table(
            ["limit", "in effect", "set at run time"],
            [(name, shown(value), "yes" if name in given else "") for name, value in effective.items()],
        )


@config.command(epilog=examples("engine brokers config get lookups_max"))
@click.argument("name")
@connection_options
def get(name: str, url: str, data: str | None) -> None:
    """Print the value in effect, in the configuration's unit."""
    with contextlib.suppress(InvalidConfigurationError):
        name, _ = setting(name, 0)
    with connect(url, data) as client:
        effective = client.admin.get_runtime_configuration()
    if name not in effective:
        raise InvalidConfigurationError(f"a setting at run time must be one of {', '.join(effective)}, got {name!r}")
    lines.line(shown(effective[name]))


@config.command("set", epilog=examples("engine brokers config set lookups_max 500"))
@click.argument("name")
@click.argument("value")
@connection_options
def set_config(name: str, value: str, url: str, data: str | None) -> None:
    """Set a limit for all brokers.

    NAME is a key of the configuration, such as lookups_max, or the specification's name of it, such as
    maxConcurrentLookupRequest; then VALUE is in the specification's unit.
    """
    with connect(url, data, create=True) as client:
        client.admin.set_dynamic_configuration(name, value)
    lines.say(f"{name} is {value} from now on")


@config.command(epilog=examples("engine brokers config unset lookups_max"))
@click.argument("name")
@connection_options
def unset(name: str, url: str, data: str | None) -> None:
    """Remove a limit: each broker's own configuration holds."""
    with connect(url, data) as client:
        client.admin.remove_dynamic_configuration(name)
    lines.say(f"{name} is what each broker was started with")


def shown(value: float) -> str:
    """All its digits: it is to be typed again."""
    return f"{value:g}" if isinstance(value, float) else str(value)
