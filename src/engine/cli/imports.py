"""`engine import`: the rows of Parquet, CSV or JSON lines as messages."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from engine.cli import lines, output
from engine.cli.connection import connect, connection_options, json_option
from engine.cli.groups import examples
from engine.cli.interrupts import told
from engine.cli.message_options import compression_option, encoding_option, encrypt_option, file_format_option
from engine.cli.transfer.formats import STANDARD, check_arrow, form_of
from engine.cli.values import key_files, topic_name
from engine.model.names import check_name


@click.command(
    "import",
    epilog=examples(
        "engine import orders orders.parquet",
        "engine import customers customers.csv.gz --key-column id --value json",
        "engine import events events.jsonl --event-time-column at --on-error skip",
    ),
)
@click.argument("topic", type=topic_name)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@file_format_option
@click.option(
    "--value",
    type=click.Choice(["column", "json", "schema"]),
    help="What a value is: a column of text or bytes, the whole row as JSON, or the row by the topic's schema.  "
    "[default: by the schema, where the topic has one of records, and else the column value]",
)
@click.option("--value-column", metavar="NAME", help="The column of values.  [default: value]")
@click.option("--key-column", "key", metavar="NAME", help="The column of keys, '' for none.  [default: key]")
@click.option("--event-time-column", "event_time", metavar="NAME", help="Likewise.  [default: event_time]")
@click.option("--properties-column", "properties", metavar="NAME", help="Likewise.  [default: properties]")
@encoding_option("keys and values")
@click.option(
    "--on-error",
    type=click.Choice(["stop", "skip"]),
    default="stop",
    show_default=True,
    help="At a row that is no message: end there, or go on behind it and count it.",
)
@click.option("--name", metavar="NAME", help="The name of this import: each of its rows is stored once under it.")
@click.option("--no-create", is_flag=True, help="The topic must exist.")
@click.option("--transaction", is_flag=True, help="All rows or none, in one transaction.")
@click.option("--dry-run", is_flag=True, help="Check every row, and send nothing.")
@compression_option()
@encrypt_option()
@json_option
@connection_options
def command(
    topic: str,
    file: str,
    form: str | None,
    url: str,
    data: str | None,
    on_error: str,
    no_create: bool,
    encrypt_for: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Send each row of a file as a message.

    FILE may be `-`, the standard input. Returns when all are durable. An import that was interrupted goes on where it
    stopped, when it is repeated, and a complete one adds nothing: the rows of a file are stored once. Another --name
    stores them once more.
    """
    found = form_of(file, form)
    one: Any = None
    dry_run = options["dry_run"]
    with told(lambda interrupted: standing(one, file, interrupted, dry_run=dry_run)):
        check_arrow("import")
        if options["name"] is not None:
            check_name(options["name"], "name of an import")
        from engine.cli.transfer.importing import FAULTS_SHOWN, Import, Source, Terms, usage

        terms = Terms(
            topic, create=not no_create, skip_bad=on_error == "skip", encryption_keys=key_files(encrypt_for), **options
        )
        usage(terms)
        source = Source(file, found)
        try:
            with connect(url, data, create=not (no_create or dry_run)) as client, bar(source.size) as progressed:
                one = Import(client, source, terms, progressed)
                done = one.run()
        finally:
            source.close()
    if as_json:
        output.print_json({**dataclasses.asdict(done), "faults": one.faults, "dry_run": terms.dry_run})
        return
    for fault in one.faults:
        lines.say(fault)
    if done.bad > FAULTS_SHOWN:
        lines.say(f"and {done.bad - FAULTS_SHOWN:,} more")
    lines.say(summary(done, terms.dry_run))


def summary(done: Any, dry_run: bool) -> str:
    """What an import has done, in a line."""
    bad = f", {output.plural(done.bad, 'bad row')} left out" if done.bad else ""
    if done.before < 0:
        return f"all of it is in {done.topic}: the transaction was committed before"
    if dry_run:
        return f"{output.plural(done.sent, 'message')} would be sent to {done.topic}{bad}"
    if done.before and not done.sent:
        return f"all of it is in {done.topic}: {output.plural(done.before, 'row')} of an earlier run{bad}"
    if done.before:
        earlier = f"; {output.plural(done.before, 'row')} of an earlier run are there"
        return f"{output.plural(done.sent, 'message')} sent to {done.topic}{earlier}{bad}"
    return f"{output.plural(done.sent, 'message')} sent to {done.topic}{bad}"


@contextmanager
def bar(size: int) -> Iterator[Any]:
    with output.progress(eta=True) as shown:
        task = shown.add_task("importing", total=size or None, note="")
        begun = shown.get_time()

        def progressed(read: int, so_far: Any) -> None:
            rate = so_far.sent / max(shown.get_time() - begun, 1e-9)
            shown.update(task, completed=read, note=f"{so_far.rows:,} rows, {rate:,.0f} messages/s")

        yield progressed


def standing(one: Any, file: str, interrupted: bool, *, dry_run: bool) -> str:
    """Where an import that ends early stands, and how it is completed. `one`: the Import; None: there was none yet."""
    if one is None:
        return f"interrupted before a row of {file} was sent" if interrupted else ""
    done = one.result
    read = f"interrupted after {done.rows:,} rows of {file}"
    if dry_run:
        return f"{read}; nothing was sent" if interrupted else ""
    how = ""
    if file != STANDARD and not done.name:
        how = "repeat the command"
    elif file != STANDARD:
        how = f"repeat the command to complete it; with another FILE, or a mended one, add --name {done.name}"
    elif done.name:
        how = f"repeat the command with the same rows and --name {done.name} to complete it"
    elif interrupted:
        how = "without --name it cannot be completed, and a repeated one sends its rows once more"
    return f"{read}, of which {done.sent:,} were sent: {how}" if interrupted else how
