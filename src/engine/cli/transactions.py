"""`engine transactions`: list, show, abort."""

from __future__ import annotations

import time

import click

from engine.cli import lines, output
from engine.cli.connection import connect, connection_options, json_option
from engine.cli.groups import Group, examples
from engine.cli.values import checked, duration, segment_name
from engine.model.transactions import parse_id


def transaction_id(text: str) -> str:
    return checked(text, parse_id)


@click.group(cls=Group, aliases={"get": "show"})
def command() -> None:
    """List, show and abort transactions."""


@command.command("list", epilog=examples("engine transactions list --open-longer-than 5m"))
@click.option(
    "--open-longer-than", type=duration, metavar="DURATION", help="Only those of at least this age: 90, 90s, 5m."
)
@click.option(
    "--segment",
    type=segment_name,
    metavar="SEGMENT",
    help="Only those with operations in this segment: segment://tenant/namespace/topic/0000-ffff-0.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=1_000,
    show_default=True,
    metavar="N",
    help="At most so many, the oldest.",
)
@json_option
@connection_options
def list_transactions(
    url: str, data: str | None, as_json: bool, open_longer_than: float | None, segment: str | None, limit: int
) -> None:
    """List open transactions, the oldest first."""
    with connect(url, data) as client:
        found = client.admin.list_transactions(open_longer_than=open_longer_than, segment=segment, limit=limit)
    if as_json:
        output.print_json(found)
        return
    output.print_table(
        ["id", "name", "open for", "aborted in"],
        [(t["id"], t["name"], _span(t.get("openForMs")), _span(t.get("abortedInMs"))) for t in found],
    )


@command.command(epilog=examples("engine transactions show 3f00000000000a1b"))
@click.argument("ident", metavar="ID", type=transaction_id)
@json_option
@connection_options
def show(url: str, data: str | None, as_json: bool, ident: str) -> None:
    """Show a transaction and its pending operations."""
    with connect(url, data) as client:
        found = client.admin.get_transaction(ident)
    if as_json:
        output.print_json(found)
        return
    accepted = found["acceptedAttempts"]
    output.print_facts(
        [
            ("id", found["id"]),
            ("name", found["name"]),
            ("state", found["state"]),
            ("begun", _moment(found["createdAtMs"])),
            *([("aborted in", _span(found.get("abortedInMs")))] if found["state"] == "OPEN" else []),
            ("ended", _moment(found["finalizedAtMs"])),
            *([] if accepted is None else [("accepted attempts", accepted)]),
            ("partition", found["partition"]),
        ]
    )
    if found["operations"]:
        click.echo()
        output.print_table(
            ["segment", "kind", "subscription", "records", "messages"],
            [(o["segment"], o["kind"], o["subscription"], o["records"], o["messages"]) for o in found["operations"]],
        )


@command.command(epilog=examples("engine transactions abort 3f00000000000a1b"))
@click.argument("ident", metavar="ID", type=transaction_id)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@connection_options
def abort(url: str, data: str | None, ident: str, yes: bool) -> None:
    """Abort an open transaction.

    None of its messages is delivered, none of its acknowledgements takes effect, and its further requests fail.
    """
    if not yes:
        lines.confirm(f"Abort the transaction {ident}?")
    with connect(url, data) as client:
        client.admin.abort_transaction(ident)
    lines.say(f"aborted {ident}")


def _span(milliseconds: float | None) -> str | None:
    return None if milliseconds is None else f"{milliseconds / 1000:,.1f} s"


def _moment(milliseconds: int | None) -> str | None:
    if milliseconds is None:
        return None
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(milliseconds / 1000))
