"""Output of commands: tables for people, JSON for programs, progress on the error stream."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from engine.model.text import plain
from engine.model.units import size_text

PLAIN_WIDTH = 200  # without a terminal: nothing is cut


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """A console as wide as the terminal, or as a wide page where the output is piped or kept; or `width` wide."""
    found = Console(stderr=stderr, highlight=False, width=width)
    if width is not None:
        return found
    return found if found.is_terminal else Console(stderr=stderr, highlight=False, width=PLAIN_WIDTH)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, default=str))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    """Rows under their headings; columns of numbers to the right."""
    cells = [list(row) for row in rows]
    table = Table(title=_title(title), title_justify="left", header_style="bold", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        numbers = all(isinstance(row[index], int | float | None) for row in cells)
        table.add_column(column, justify="right" if numbers and cells else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(show(cell)) for cell in row))
    console().print(table)


def print_facts(facts: Iterable[tuple[str, Any]], *, title: str | None = None) -> None:
    """Names and values, one a line."""
    table = Table(title=_title(title), title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(Text(plain(name)), Text(show(value)))
    console().print(table)


def _title(title: str | None) -> Text | None:
    return None if title is None else Text(plain(title))


def show(value: Any) -> str:
    """A cell: numbers with separators, nothing as a dash, text without what a terminal would obey."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return plain(value)


def plural(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def rates(messages: int, byte_count: int, seconds: float) -> dict[str, float]:
    """What a measurement says, for a table or as JSON."""
    span = max(seconds, 1e-9)
    return {
        "messages": messages,
        "bytes": byte_count,
        "seconds": round(seconds, 6),
        "messages_per_s": round(messages / span, 1),
        "bytes_per_s": round(byte_count / span, 1),
    }


def print_rates(title: str, measured: dict[str, float], *extra: tuple[str, Any]) -> None:
    """The same as lines a person reads."""
    print_facts(
        [
            ("messages", int(measured["messages"])),
            ("bytes", size_text(measured["bytes"])),
            ("seconds", f"{measured['seconds']:.3f}"),
            ("rate", f"{measured['messages_per_s']:,.0f} messages/s, {size_text(measured['bytes_per_s'])}/s"),
            *extra,
        ],
        title=title,
    )


def progress(*, disable: bool = False, eta: bool = False) -> Progress:
    """A progress bar on the error stream; silent where that is not a terminal, or when asked to be.

    `eta`: with the time that is left.
    """
    out = console(stderr=True)
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        *([TextColumn("left"), TimeRemainingColumn()] if eta else []),
        console=out,
        disable=disable or not out.is_terminal,
        transient=True,
    )


def messages_in(segment: Mapping[str, Any]) -> int:
    """How many messages a segment holds, by its statistics; offsets in gaps name none."""
    return int(segment["nextOffset"] - segment["firstOffset"] - segment.get("gapOffsets", 0))
