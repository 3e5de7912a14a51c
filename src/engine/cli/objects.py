"""`engine objects`: what a cluster keeps in its object store."""

from __future__ import annotations

import click

from engine.cli import lines, output
from engine.cli.connection import connect, connection_options, json_option
from engine.cli.groups import Group, examples
from engine.model.units import size_text


@click.group(cls=Group)
def command() -> None:
    """Look after a cluster's object store."""


@command.command(epilog=examples("engine objects sweep --dry-run", "engine objects sweep"))
@click.option("--dry-run", is_flag=True, help="List what would be deleted, and delete nothing.")
@json_option
@connection_options
def sweep(dry_run: bool, url: str, data: str | None, as_json: bool) -> None:
    """Delete what brokers that have ended left behind.

    One broker does this once an hour by itself. What a segment needs, what is younger than an hour, and what belongs to
    a broker that lives, stays.
    """
    with connect(url, data) as client:
        found = client.admin.sweep_objects(dry_run=dry_run)
    if as_json:
        output.print_json(found)
        return
    for name in found["names"]:
        lines.line(name)
    done = "would be deleted" if dry_run else "were deleted"
    count = found["logObjects"] + found["files"]
    files, sessions = output.plural(found["files"], "file"), output.plural(found["sessions"], "session")
    lines.say(f"{output.plural(count, 'object')} {done}, {size_text(found['sizeBytes'])}: {files}")
    lines.say(f"and {found['logObjects']:,} of the logs of {sessions}")
