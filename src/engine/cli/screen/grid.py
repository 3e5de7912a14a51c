"""`Grid`: a table of any number of rows, of which only those on the screen are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from engine.cli.screen.columns import WIDE, Column

RISING, FALLING = "▲", "▼"


class Grid(ScrollView, can_focus=True):
    """Rows under a line of headings. The cursor stays on its row, by `key`, when rows come, go and are sorted.

    `drawn` counts the rows that were made into text: as many as the screen has lines, not as many as there are.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home,g", "end(0)", show=False),
        Binding("end,G", "end(1)", show=False),
        Binding("enter,right,l", "open", "Open", key_display="enter"),
    ]
    DEFAULT_CSS = "Grid { scrollbar-size-horizontal: 0; }"

    class Opened(Message):
        """The row under the cursor was chosen by the keyboard or the mouse."""

        def __init__(self, row: Any) -> None:
            super().__init__()
            self.row = row

    def __init__(self) -> None:
        super().__init__()
        self.rows: Sequence[Any] = ()
        self.cursor = 0
        self.drawn = 0
        self._columns: Sequence[Column[Any]] = ()
        self._sorted_by: tuple[str, bool] = ("", False)
        self._key: Callable[[Any], Any] = id

    def fill(
        self,
        rows: Sequence[Any],
        columns: Sequence[Column[Any]],
        key: Callable[[Any], Any],
        sorted_by: tuple[str, bool],
    ) -> None:
        """Replace all rows. `sorted_by`: the name of a column, and whether the arrow beside it points up."""
        at = self.selected_key if columns is self._columns else None
        self.rows, self._columns, self._key, self._sorted_by = rows, columns, key, sorted_by
        found = None if at is None else next((i for i, row in enumerate(rows) if key(row) == at), None)
        self.cursor = max(min(self.cursor if found is None else found, len(rows) - 1), 0)
        self.virtual_size = Size(self.size.width, len(rows) + 1)
        self._follow()
        self.refresh()

    @property
    def selected(self) -> Any:
        """The row under the cursor; None where there is none."""
        return self.rows[self.cursor] if self.cursor < len(self.rows) else None

    @property
    def selected_key(self) -> Any:
        """What identifies it among the rows of later looks."""
        return None if self.selected is None else self._key(self.selected)

    def select(self, key: Any) -> None:
        """Move the cursor to the row of that key, or to the first where there is none."""
        self.cursor = next((i for i, row in enumerate(self.rows) if self._key(row) == key), 0)
        self._follow()
        self.refresh()

    def action_move(self, by: int) -> None:
        self.cursor = max(min(self.cursor + by, len(self.rows) - 1), 0)
        self._follow()
        self.refresh()

    def action_page(self, direction: int) -> None:
        self.action_move(direction * max(self.size.height - 2, 1))

    def action_end(self, last: int) -> None:
        self.action_move(last * len(self.rows) or -len(self.rows))

    def action_open(self) -> None:
        if self.selected is not None:
            self.post_message(self.Opened(self.selected))

    def on_click(self, event: Any) -> None:
        """The first click on a row moves the cursor there, the next one opens it."""
        at = event.y - 1 + self.scroll_offset.y
        if event.y and at < len(self.rows):
            chosen, self.cursor = at == self.cursor, at
            self.refresh()
            if chosen:
                self.action_open()

    def _follow(self) -> None:
        """Scroll so far that the cursor's line can be seen below the headings."""
        lines, top = max(self.size.height - 1, 1), self.scroll_offset.y
        wanted = min(max(top, self.cursor - lines + 1), self.cursor)
        if wanted != top:
            self.scroll_to(y=wanted, animate=False, immediate=True)

    def on_resize(self) -> None:
        self.virtual_size = Size(self.size.width, len(self.rows) + 1)
        self._follow()

    def render_line(self, y: int) -> Strip:
        """The headings, which do not scroll, and below them the rows from the scroll offset on."""
        if y == 0:
            return self._strip([self._heading(column) for column in self._shown()], self.rich_style + Style(bold=True))
        at = y - 1 + self.scroll_offset.y
        if at >= len(self.rows):
            return Strip.blank(self.size.width, self.rich_style)
        self.drawn += 1
        row = self.rows[at]
        style = self.rich_style + Style(reverse=True) if at == self.cursor else self.rich_style
        return self._strip([column.show(column.value(row)) for column in self._shown()], style)

    def text(self) -> list[str]:
        """The lines as they are on the screen, without spaces at their ends."""
        return [self.render_line(y).text.rstrip() for y in range(self.size.height)]

    def _heading(self, column: Column[Any]) -> str:
        name, rising = self._sorted_by
        return column.title + ((RISING if rising else FALLING) if column.name == name else "")

    def _shown(self) -> list[Column[Any]]:
        return [column for column in self._columns if not column.only_wide or self.size.width >= WIDE]

    def _strip(self, cells: list[str], style: Style) -> Strip:
        columns = self._shown()
        rest = self.size.width - sum(column.width for column in columns)
        parts = [
            _fitted(cell, column.width or max(rest, 8), right=column.numeric)
            for cell, column in zip(cells, columns, strict=True)
        ]
        return Strip([Segment("".join(parts), style)]).adjust_cell_length(self.size.width, style)


def _fitted(text: str, width: int, *, right: bool) -> str:
    """Exactly `width` characters, with a space beside the next column; of a long text the end, which tells most."""
    room = width - 1
    if len(text) > room:
        text = f"…{text[len(text) - room + 1 :]}"
    return f" {text.rjust(room)}" if right else f"{text.ljust(room)} "
