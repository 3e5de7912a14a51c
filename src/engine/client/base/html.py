"""Records as HTML tables, for notebooks, which show what `_repr_html_` returns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any


def html_table(caption: str, head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table of plain text."""
    from html import escape

    def line(cells: Iterable[object], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(text_of(cell))}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<table><caption>{escape(caption)}</caption>{line(head, 'th')}{body}</table>"


def text_of(cell: object) -> str:
    """Numbers with their thousands apart."""
    if isinstance(cell, (int, float)) and not isinstance(cell, bool):
        return f"{cell:,}"
    if isinstance(cell, (list, tuple)):
        return ", ".join(map(text_of, cell))
    return str(cell)


class HtmlRecord:
    """A dataclass that a notebook shows as a table of its fields."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        record: Any = self
        rows = [(field.name, getattr(record, field.name)) for field in fields(record)]
        return html_table(type(self).__name__, ("", ""), rows)
