"""`engine restore`: a data directory is made of a backup."""

from __future__ import annotations

import dataclasses

import click

from engine.cli import output
from engine.cli.backup import facts_of, with_progress
from engine.cli.connection import json_option
from engine.cli.groups import examples


@click.command(
    epilog=examples(
        "engine restore /mnt/backups --data /var/lib/engine-restored",
        "engine restore s3://backups/engine --data ./data --generation 20261128T021500000Z-9f48",
    )
)
@click.argument("destination")
@click.option("--data", required=True, type=click.Path(file_okay=False), help="An empty directory, or a new one.")
@click.option("--generation", metavar="NAME", help="One of `engine backup list`.  [default: the newest]")
@json_option
def command(destination: str, data: str, generation: str | None, as_json: bool) -> None:
    """Make a data directory of a backup.

    Every byte is checked while it is written. Run it again when it was interrupted: it goes on where it was. Then
    `engine serve --data` serves the directory.
    """
    from engine.backups import restore

    done = with_progress(lambda progress: restore(destination, data, generation=generation, on_progress=progress))
    if as_json:
        output.print_json(dataclasses.asdict(done))
    else:
        facts = [*facts_of(done.generation)[:-1], ("files", done.files), ("there before", done.kept)]
        output.print_facts(facts, title=f"Restored to {data}")
