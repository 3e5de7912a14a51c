"""The levels that the live screen opens one below the other: topics, the segments of one, the consumers of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.cli.looks import Asked, Detail
from engine.cli.screen import columns
from engine.cli.screen.columns import ClientLine, Column, SegmentLine
from engine.cli.top_view import View


@dataclass
class Level:
    """One list of rows, how it is sorted and filtered, and where its cursor was.

    `rows` makes it of the last look: None while the broker has not answered what `asked` says. `below`: the level
    that a row opens, None where it opens none. `key` identifies a row over several looks.
    """

    title: str
    columns: Sequence[Column[Any]]
    rows: Callable[[View, Detail | None], Sequence[Any] | None]
    key: Callable[[Any], Any]
    below: Callable[[Any], Level | None]
    sort: str
    asked: Asked | None = None
    reverse: bool = False
    filter: str = ""
    cursor: Any = None

    @property
    def column(self) -> Column[Any]:
        """The one by which it is sorted."""
        return next(column for column in self.columns if column.name == self.sort)

    def next_sort(self, step: int, wide: bool) -> None:
        """Sort by the next column that is on the screen."""
        names = [column.name for column in self.columns if wide or not column.only_wide]
        self.sort = names[(names.index(self.sort) + step) % len(names)] if self.sort in names else names[0]
        self.reverse = False

    def shown(self, rows: Sequence[Any]) -> list[Any]:
        """Those of the rows that the filter lets through, sorted. Equal ones are in order of their names."""
        wanted = self.filter.lower()
        texts = [column for column in self.columns if not column.numeric]
        kept = [row for row in rows if any(wanted in column.value(row).lower() for column in texts)]
        return columns.ordered(sorted(kept, key=self.key), self.column, self.reverse)


def topics_level(sort: str) -> Level:
    """The first one: every topic of the broker that has series of its own, and sums of the others."""
    return Level("topics", columns.TOPICS, lambda view, detail: view.topics, lambda row: row.topic, _segments_of, sort)


def _segments_of(row: Any) -> Level | None:
    asked = columns.topic_asked(row)
    if asked is None:
        return None

    def rows(view: View, detail: Detail | None) -> Sequence[SegmentLine] | None:
        found = _answer(asked, detail)
        return None if found is None else columns.segment_lines(asked.topic, found)

    title = columns.short_name(asked.topic)
    return Level(title, columns.SEGMENTS, rows, lambda line: line.ident, _clients_of(asked.topic), "in", asked)


def _clients_of(topic: str) -> Callable[[SegmentLine], Level]:
    def below(line: SegmentLine) -> Level:
        asked = Asked(topic, line.name)

        def rows(view: View, detail: Detail | None) -> Sequence[ClientLine] | None:
            found = _answer(asked, detail)
            return None if found is None else columns.client_lines(found)

        def key(client: ClientLine) -> tuple[str, str]:
            return (client.subscription, client.client)

        return Level(f"segment {line.title}", columns.CLIENTS, rows, key, lambda row: None, "backlog", asked)

    return below


def _answer(asked: Asked, detail: Detail | None) -> dict[str, Any] | None:
    return detail.answer if detail is not None and detail.asked == asked else None
