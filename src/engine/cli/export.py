"""`engine export`: a topic, or a part of it, as Parquet, CSV or JSON lines."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from engine.cli import lines, output
from engine.cli.connection import connect, connection_options, json_option
from engine.cli.groups import examples
from engine.cli.interrupts import told
from engine.cli.message_options import decrypt_option, encoding_option, file_format_option
from engine.cli.transfer.formats import PARQUET_CODECS, STANDARD, check_arrow, form_of
from engine.cli.values import key_files, position, topic_name
from engine.model.units import size_text


def _segment(text: str) -> tuple[int, tuple[int, int] | None]:
    """`3`, or `3:100..200`, whose offsets are both inclusive."""
    from engine.cli.values import offset_range

    number, colon, offsets = text.partition(":")
    if not number.isdecimal():
        raise click.BadParameter(f"a segment must be like 3 or 3:100..200, got {text!r}")
    if not colon:
        return int(number), None
    first, last = offset_range(offsets)
    return int(number), (first, last + 1)


@click.command(
    epilog=examples(
        "engine export orders orders.parquet",
        "engine export orders today.csv.gz --from 2026-01-31 --columns key,value,publish_time",
        "engine export orders - --format jsonl --key customer-7 | jq .value",
    )
)
@click.argument("topic", type=topic_name)
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@file_format_option
@click.option("--key", "keys", multiple=True, metavar="KEY", help="Only messages with this key; repeatable.")
@click.option("--from", "start", default="earliest", type=position, help="earliest, latest or a time of publication.")
@click.option("--to", "end", default="latest", type=position, help="Likewise; what was published then is not in it.")
@click.option(
    "--segment",
    "segments",
    multiple=True,
    metavar="ID[:FIRST..LAST]",
    type=_segment,
    help="Only this segment, or these offsets of it, both inclusive; repeatable.",
)
@click.option(
    "--columns", metavar="NAMES", help="Names of columns with commas between them.  [default: those of a table]"
)
@click.option("-n", "--limit", type=click.IntRange(0), metavar="N", help="At most so many messages.")
@click.option("--raw", is_flag=True, help="Values as bytes, also where the topic has a schema.")
@encoding_option("keys, values and other bytes")
@click.option(
    "--compression", type=click.Choice(PARQUET_CODECS), default="zstd", show_default=True, help="Inside of Parquet."
)
@click.option(
    "--row-group",
    type=click.IntRange(1),
    default=1 << 20,
    show_default=True,
    metavar="ROWS",
    help="Of Parquet, at most.",
)
@click.option(
    "--rows-per-file", type=click.IntRange(1), metavar="ROWS", help="Several files: NAME-00000.parquet and so on."
)
@decrypt_option
@click.option(
    "--on-corrupt", type=click.Choice(["stop", "skip"]), default="stop", show_default=True, help="At damaged entries."
)
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@click.option("--restart", is_flag=True, help="Forget an interrupted export to FILE, and begin anew.")
@json_option
@connection_options
def command(
    topic: str,
    file: str,
    form: str | None,
    url: str,
    data: str | None,
    keys: tuple[str, ...],
    segments: Sequence[tuple[int, tuple[int, int] | None]],
    columns: str | None,
    decrypt_with: tuple[str, ...],
    row_group: int,
    rows_per_file: int | None,
    overwrite: bool,
    restart: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Write what a topic holds now into a file.

    FILE may be `-`, the standard output. Messages of one key are in order. When an export was interrupted, the same
    command goes on where it stopped.
    """
    found = form_of(file, form)
    check_arrow("export")
    if file == STANDARD and (rows_per_file is not None or overwrite or restart or as_json):
        raise click.UsageError("--rows-per-file, --overwrite, --restart and --json are for a file, not for -")
    if len(dict(segments)) < len(segments):
        raise click.UsageError("--segment must name different segments")
    from engine.cli.transfer.exporting import Export, Wanted

    wanted = Wanted(
        topic,
        keys=tuple(key.encode() for key in keys),
        segments=dict(segments),
        columns=None if columns is None else tuple(name.strip() for name in columns.split(",")),
        decryption_keys=key_files(decrypt_with),
        part_rows=row_group,
        file_rows=rows_per_file,
        **options,
    )
    written = Written()
    with (
        told(lambda interrupted: standing(file, interrupted, written.rows)),
        connect(url, data) as client,
        bar(file, written) as progressed,
    ):
        export = Export(client, wanted, found, file, progressed)
        progressed.total(export.offsets)
        done = export.run(overwrite=overwrite, restart=restart)
    if as_json:
        output.print_json(dataclasses.asdict(done))
    elif file != STANDARD:
        before = f", {done.resumed:,} of them by an interrupted export" if done.resumed else ""
        where = done.files[0] if len(done.files) == 1 else output.plural(len(done.files), "file")
        lines.say(f"{output.plural(done.rows, 'message')} in {where} ({size_text(done.bytes)}){before}")


class Written:
    """What a run has written so far."""

    rows = 0


class Progress:
    """Shows what progressed() is told."""

    def __init__(self, shown: Any, written: Written) -> None:
        self._shown, self._written = shown, written
        self._task = shown.add_task("exporting", total=None, note="")

    def total(self, offsets: int) -> None:
        self._shown.update(self._task, total=offsets)

    def __call__(self, read: int, rows: int, size: int) -> None:
        self._written.rows = rows
        self._shown.update(self._task, completed=read, note=f"{rows:,} messages, {size_text(size)}")


@contextmanager
def bar(file: str, written: Written) -> Iterator[Progress]:
    with output.progress(eta=True) as shown:
        yield Progress(shown, written)


def standing(file: str, interrupted: bool, rows: int) -> str:
    """Where an export that ends early stands, and how it is completed."""
    from engine.cli.transfer.journal import left_of

    if file == STANDARD:
        return f"interrupted after {rows:,} messages; a repeated export begins anew" if interrupted else ""
    if not left_of(file):
        return f"interrupted before any of {file} was kept: repeat the command" if interrupted else ""
    so_far = f"interrupted after {rows:,} messages: " if interrupted else ""
    return f"{so_far}what is written of {file} is kept, the same command goes on from there"
