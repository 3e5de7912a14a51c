"""`engine brokers`: the brokers that share the work, what each has, and limits that change at run time."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import click

from engine.broker.settings.config import setting
from engine.cli import lines, output
from engine.cli.connection import connect, connection_options, json_option
from engine.cli.groups import Group, examples
from engine.cli.values import broker_url
from engine.errors import InvalidConfigurationError

_LOOK_S = 0.5  # between two looks at a broker that drains


@click.group(cls=Group)
def command() -> None:
    """See and change what each broker has, and what all share."""


@command.command("list", epilog=examples("engine brokers list"))
@json_option
@connection_options
def list_brokers(url: str, data: str | None, as_json: bool) -> None:
    """List the live brokers with their segments and load."""
    with connect(url, data) as client:
        found = client.admin.list_brokers()
    if as_json:
        output.print_json(found)
    else:
        output.print_table(
            ["broker", "state", "segments", "topics led", "load", "msg/s in", "msg/s out"],
            [_row(broker) for broker in found],
        )


def _row(broker: dict[str, Any]) -> tuple[object, ...]:
    led = broker["topicsLed"]
    states = [name for name in ("draining", "balancer") if broker[name]]
    return (
        broker["url"],
        ", ".join(states + ["silent"] * (led is None)) or "live",
        broker["segments"],
        led,
        round(broker["load"], 1),
        round(broker["msgRateIn"]),
        round(broker["msgRateOut"]),
    )


@command.command(epilog=examples("engine brokers drain engine://10.0.0.2:6650"))
@click.argument("broker", type=broker_url)
@click.option("--no-wait", is_flag=True, help="Return when it has begun.")
@connection_options
def drain(broker: str, no_wait: bool, url: str, data: str | None) -> None:
    """Have a broker hand over all it has, and take no more.

    BROKER is its URL. Returns when it has nothing left. Clients go on meanwhile. It drains until
    `engine brokers undrain`, or until it is started again.
    """
    with connect(url, data) as client:
        client.admin.drain_broker(broker)
        lines.say(f"{broker} drains")
        while not no_wait:
            left = next((found for found in client.admin.list_brokers() if found["url"] == broker), None)
            if left is None or not (left["segments"] or left["topicsLed"]):
                lines.say(f"{broker} has nothing left")
                return
            time.sleep(_LOOK_S)


@command.command(epilog=examples("engine brokers undrain engine://10.0.0.2:6650"))
@click.argument("broker", type=broker_url)
@connection_options
def undrain(broker: str, url: str, data: str | None) -> None:
    """Let a broker take segments again."""
    with connect(url, data) as client:
        client.admin.undrain_broker(broker)
    lines.say(f"{broker} takes segments again")


@command.command(
    epilog=examples(
        "engine brokers unload orders",
        "engine brokers unload segment://public/default/orders/0000-7fff-1 --to engine://10.0.0.2:6650",
    )
)
@click.argument("what")
@click.option("--to", type=broker_url, metavar="BROKER", help="The broker that gets it; else one that has little load.")
@connection_options
def unload(what: str, to: str | None, url: str, data: str | None) -> None:
    """Hand a topic, or one segment, over to another broker.

    WHAT is a topic, or the whole name of a segment. Clients go on meanwhile.
    """
    with connect(url, data) as client:
        whole = what.startswith("segment://")
        moves = client.admin.unload_segment(what, to=to) if whole else client.admin.unload_topic(what, to=to)
    _say_moves(moves)


@command.command(epilog=examples("engine brokers balance --dry-run", "engine brokers balance"))
@click.option("--dry-run", is_flag=True, help="Say what would go, and move nothing.")
@json_option
@connection_options
def balance(dry_run: bool, as_json: bool, url: str, data: str | None) -> None:
    """Move a few segments from loaded brokers to others, now."""
    with connect(url, data) as client:
        found = client.admin.balance_brokers(dry_run=dry_run)
    if as_json:
        output.print_json(found)
        return
    lines.say(f"the most loaded broker is {found['imbalance']:.0%} above the mean")
    _say_moves(found["moves"], "would go" if dry_run else "went")


def _say_moves(moves: list[dict[str, Any]], verb: str = "went") -> None:
    for move in moves:
        refused = f", but: {move['error']}" if "error" in move else ""
        lines.say(f"{move['segment']} {verb} from {move['source']} to {move['target']}{refused}")
    if not moves:
        lines.say("nothing moves")


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
