"""`engine inspect`: what stands in the files of a data directory, read without an engine and without changing them."""

from __future__ import annotations

import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from engine.cli import lines, output
from engine.cli.connection import json_option
from engine.cli.groups import examples
from engine.errors import CorruptionError

if TYPE_CHECKING:
    from engine.broker.upkeep.offline import LogReport

COMPRESSIONS = {0: "none", 1: "lz4", 2: "zstd"}


@click.command(
    epilog=examples(
        "engine inspect ./data",
        "engine inspect ./data/metadata.db --prefix /topics/",
        "engine inspect --repair --dry-run ./data",
    )
)
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "-n", "limit", type=click.IntRange(0), default=20, show_default=True, metavar="N", help="Rows to show; 0: all."
)
@click.option("--messages", is_flag=True, help="Show the messages of a log file, not its entries.")
@click.option("--prefix", default="", help="Show only those keys of a metadata file that start with this.")
@click.option(
    "--repair", is_flag=True, help="Create new metadata records for messages of a data directory that have none."
)
@click.option("--dry-run", is_flag=True, help="With --repair: only list what would be created.")
@click.option(
    "--transactions",
    type=click.Choice(["hide", "show"]),
    default="hide",
    show_default=True,
    help="With --repair: whether messages of transactions with a lost outcome are delivered.",
)
@json_option
def command(
    path: Path,
    limit: int,
    messages: bool,
    prefix: str,
    repair: bool,
    dry_run: bool,
    transactions: str,
    as_json: bool,
) -> int:
    """Show what is in a file or directory of an engine.

    PATH is a log file, a metadata file, or a data directory that no engine has open. The exit code is 1 where
    something is damaged; an incomplete last write is no damage.
    """
    from engine.broker.upkeep import offline

    kind = offline.kind_of(path)
    if dry_run and not repair:
        raise click.UsageError("--dry-run must come with --repair")
    if repair:
        if kind != "directory":
            raise click.UsageError(f"--repair must be given a data directory, got {path}")
        from engine.cli import repair as repairing

        show = transactions == "show"
        return repairing.repair(path, dry_run=dry_run, show_transactional=show, as_json=as_json)
    if kind == "directory":
        return show_directory(path, as_json)
    if kind == "metadata":
        return show_metadata(path, prefix, limit, as_json)
    return show_log(offline.read_log(path), messages, limit, as_json)


def show_directory(path: Path, as_json: bool) -> int:
    """One line for each log file, and what the metadata file holds."""
    from engine.broker.upkeep import offline

    metadata = offline.metadata_file(path)
    records = read_records(metadata) if metadata else []  # first: it is refused while an engine has the directory
    rows = [directory_row(segment, file) for segment, file in offline.log_files(path)]
    if as_json:
        output.print_json({"metadata_records": len(records), "logs": rows})
    else:
        output.print_facts([("metadata", metadata and metadata.name), ("records", len(records))])
        click.echo()
        columns = ["segment", "file", "first", "end", "entries", "state", "bytes", "tail", "damage"]
        output.print_table(columns, ([row[c] for c in columns] for row in rows))
    return complain([row["damage"] for row in rows])


def directory_row(segment: str, file: Path) -> dict[str, Any]:
    """One log file among others. What cannot be read at all is a damage too."""
    from engine.broker.upkeep import offline

    size = file.stat().st_size
    try:
        report = offline.read_log(file)
    except CorruptionError as e:
        blank = dict.fromkeys(("first", "end", "entries", "state", "tail"))
        return {"segment": segment, "file": file.name, "bytes": size, **blank, "damage": str(e)}
    return {
        "segment": segment,
        "file": file.name,
        "first": report.opening.first_offset,
        "end": report.end_offset,
        "entries": len(report.entries),
        "state": state(report),
        "bytes": size,
        "tail": report.tail,
        "damage": report.damage,
    }


def show_metadata(path: Path, prefix: str, limit: int, as_json: bool) -> int:
    """Its records; values are JSON wherever the product wrote them."""
    rows = [r for r in read_records(path) if r["key"].startswith(prefix)]
    if as_json:
        output.print_json(rows)
        return 0
    shown = rows[: limit or None]
    output.print_table(
        ["key", "version", "modified", "value"],
        ([r["key"], r["version"], r["modified"], compact(r["value"])] for r in shown),
    )
    say_rest(len(rows), len(shown))
    return 0


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of a metadata file as mappings."""
    from engine.broker.upkeep import offline

    with tempfile.TemporaryDirectory(prefix="engine-inspect-") as scratch:
        records, _ = offline.read_metadata(path, Path(scratch))
    return [
        {
            "key": r.key,
            "version": r.stat.version,
            "created": when(r.stat.created_ms),
            "modified": when(r.stat.modified_ms),
            "session": r.stat.session,
            "value": decoded(r.value),
        }
        for r in records
    ]


def decoded(value: bytes) -> Any:
    """JSON as what it means, other text as text, other bytes by their number."""
    try:
        return json.loads(value)
    except (UnicodeDecodeError, json.JSONDecodeError):
        return value.decode() if value.isascii() else f"<{len(value)} bytes>"


def compact(value: Any) -> str:
    """A record's value on as few lines as it needs."""
    return value if isinstance(value, str) else json.dumps(value)


def show_log(report: LogReport, messages: bool, limit: int, as_json: bool) -> int:
    """Its header, then its entries or messages."""
    rows = [row for entry in report.entries for row in (message_rows(entry) if messages else [entry_row(entry)])]
    if as_json:
        output.print_json({**dict(log_facts(report)), "messages" if messages else "entries": rows})
    else:
        output.print_facts(log_facts(report))
        click.echo()
        shown = rows[: limit or None]
        columns = list(shown[0]) if shown else []
        output.print_table(columns, ([row[c] for c in columns] for row in shown))
        say_rest(len(rows), len(shown))
    return complain([report.damage])


def log_facts(report: LogReport) -> list[tuple[str, Any]]:
    """The file's header and what was found behind it."""
    return [
        ("path", report.path),
        ("segment", report.opening.segment_id),
        ("created", when(report.opening.created_ms)),
        ("state", state(report)),
        ("first_offset", report.opening.first_offset),
        ("end_offset", report.end_offset),
        ("entry_count", len(report.entries)),
        ("message_count", report.messages),
        ("tail_bytes", report.tail),
        ("damage", report.damage),
    ]


def state(report: LogReport) -> str:
    """open, rolled, clean or sealed."""
    return report.closing.state.name.lower() if report.closing else "open"


def entry_row(entry: Any) -> dict[str, Any]:
    """One line of an entry table."""
    return {
        "offset": entry.first_offset,
        "messages": entry.count,
        "size": entry.size,
        "buckets": f"{entry.bucket_min:04x}-{entry.bucket_max:04x}",
        "sequences": f"{entry.first_sequence}-{entry.last_sequence}",
        "published": when(entry.publish_time_ms),
        "compression": COMPRESSIONS.get(entry.compression, "?") + _closed(entry),
        "durable_upto": entry.durable_upto,
        "term": entry.term,
    }


def _closed(entry: Any) -> str:
    """How its body is closed, besides being compressed."""
    if entry.foreign:
        return ", as sent by Apache Pulsar's client"
    return ", encrypted" if entry.encrypted else ""


def message_rows(entry: Any) -> list[dict[str, Any]]:
    """One line for each message of an entry; none for an encrypted one."""
    if entry.encrypted:
        return []
    from engine.model.compression import decompressor

    return [
        {
            "offset": entry.first_offset + index,
            **lines.as_text("key", message.key),
            **lines.as_text("value", message.value),
            "properties": json.dumps(message.properties) if message.properties else None,
            "published": when(entry.publish_time_ms),
            "sequence": message.sequence_id,
            "producer": entry.producer_name,
        }
        for index, message in enumerate(entry.messages(decompressor()))
    ]


def when(milliseconds: int) -> str:
    """An instant for people and programs."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


def say_rest(count: int, shown: int) -> None:
    if count > shown:
        lines.line(f"… and {count - shown:,} more: -n 0 shows all")


def complain(damages: list[str | None]) -> int:
    """The exit code, with a word on the error stream for every damage."""
    found = [damage for damage in damages if damage]
    for damage in found:
        lines.say(f"engine: damaged: {damage}")
    return 1 if found else 0
