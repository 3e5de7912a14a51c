"""`TopApp`: the live screen. Looks come from a thread of their own, and no key waits for the broker."""

from __future__ import annotations

from typing import ClassVar

from rich.console import Group, RenderableType
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Footer, Input, Static

from engine.cli.looks import Looks
from engine.cli.output import plural
from engine.cli.screen.columns import WIDE
from engine.cli.screen.grid import Grid
from engine.cli.screen.levels import Level, topics_level
from engine.cli.top_view import View, duration, pool_table, process_table, time_table
from engine.model.text import plain
from engine.model.units import size_text

INTERRUPTED = 130
NOTE_S = 0.5  # between two updates of the age of the last answer
TIMES = {"durable": "publish to durable", "delivered": "durable to delivered", "sync": "log sync"}

KEYS = """\
up down pgup pgdn   move; also j k, home end
enter right         open: the segments of a topic, the consumers of a segment
escape left         back, or clear the filter
s S                 sort by the next column, by the one before it
r                   the other way round
/                   filter by a part of the name; enter keeps it, escape clears it
p space             hold the screen still; go on
m                   memory, times and processes of the broker
q                   quit"""


class Looked(Message):
    """The broker was looked at, or did not answer."""


class Page(ModalScreen[None]):
    """Text over the screen, which scrolls."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,left,m,question_mark,enter", "dismiss", "Back", key_display="esc"),
        Binding("q", "app.quit_top", "Quit"),
    ]
    DEFAULT_CSS = "Page { background: $surface; } Page Static { width: auto; }"

    def __init__(self, content: RenderableType) -> None:
        super().__init__()
        self._content = content

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(self._content)
        yield Footer(show_command_palette=False, compact=True)


class TopApp(App[int]):
    """Run with run() or run_test(); the result is an exit code. `looks` must be entered by the caller meanwhile."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: 2; } #crumb { height: 1; text-style: bold; } Grid { height: 1fr; }
    #filter { height: 1; border: none; padding: 0; display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit_top", "Quit"),
        Binding("escape,left,h,backspace", "up_level", "Back", key_display="esc"),
        Binding("s", "sort(1)", "Sort"),
        Binding("S", "sort(-1)", show=False),
        Binding("r", "reverse", "Reverse"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("space,p", "hold", "Pause", key_display="p"),
        Binding("m", "memory", "Memory"),
        Binding("question_mark", "keys", "Keys", key_display="?"),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
    ]

    def __init__(self, looks: Looks, sort: str = "in") -> None:
        super().__init__()
        self.looks = looks
        self.held = False
        self._view: View | None = None
        self.levels: list[Level] = [topics_level(sort)]
        self.grid = Grid()
        self._head, self._crumb = Static("", id="head"), Static("", id="crumb", markup=False)
        self._input = Input(id="filter", placeholder="part of a name")

    def compose(self) -> ComposeResult:
        yield self._head
        yield self._crumb
        yield self.grid
        yield self._input
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self._input.can_focus = False
        self.grid.focus()
        self.looks.notify = lambda: self.post_message(Looked())
        self.set_interval(NOTE_S, self._show_head)
        self._show()

    def on_unmount(self) -> None:
        self.looks.notify = lambda: None

    @property
    def level(self) -> Level:
        """The one on the screen."""
        return self.levels[-1]

    def on_looked(self) -> None:
        """Show what is new, unless the screen is held."""
        if not self.held:
            self._show()

    def on_grid_opened(self, event: Grid.Opened) -> None:
        """Go one level down, and have its answer fetched at once."""
        below = self.level.below(event.row)
        if below is None:
            self.bell()
            return
        self.level.cursor = self.grid.selected_key
        self._go([*self.levels, below])

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while it is typed."""
        self.level.filter = event.value
        self._show()

    def on_input_submitted(self) -> None:
        """Keep the filter, and go on in the rows."""
        self._close_filter()

    def action_up_level(self) -> None:
        if self._input.has_focus or self.level.filter:
            self.level.filter = self._input.value = ""
            self._close_filter()
            self._show()
        elif len(self.levels) > 1:
            self._go(self.levels[:-1])

    def action_sort(self, step: int) -> None:
        self.level.next_sort(step, self.size.width >= WIDE)
        self._show()

    def action_reverse(self) -> None:
        self.level.reverse = not self.level.reverse
        self._show()

    def action_filter(self) -> None:
        self._input.value = self.level.filter
        self._input.display = self._input.can_focus = True
        self._input.focus()

    def action_hold(self) -> None:
        self.held = not self.held
        self._show()

    def action_memory(self) -> None:
        view = self._view
        if view is not None:
            parts: list[RenderableType] = [pool_table(view), Text(""), time_table(view)]
            if view.processes:
                parts += [Text(""), process_table(view)]
            self.push_screen(Page(Group(*parts)))

    def action_keys(self) -> None:
        self.push_screen(Page(Text(KEYS)))

    def action_quit_top(self) -> None:
        self.exit(0)

    def action_interrupt(self) -> None:
        self.exit(INTERRUPTED)

    def _go(self, levels: list[Level]) -> None:
        self.levels = levels
        self._input.value = self.level.filter
        self.held = False
        self.looks.ask(self.level.asked)
        self._show()
        self.grid.select(self.level.cursor)

    def _close_filter(self) -> None:
        self._input.display = self._input.can_focus = False
        self.grid.focus()

    def _show(self) -> None:
        """All of it, of the last look, or of the one at which the screen was held."""
        level = self.level
        if not self.held:
            self._view = self.looks.view
        rows = None if self._view is None else level.rows(self._view, self.looks.detail)
        shown = level.shown(rows or ())
        self.grid.fill(shown, level.columns, level.key, (level.sort, level.column.numeric == level.reverse))
        self._crumb.update(Text(self._path(len(shown), rows), no_wrap=True, overflow="ellipsis"))
        self._show_head()

    def _path(self, shown: int, rows: object) -> str:
        names = " > ".join(level.title for level in self.levels)
        if rows is None:
            return f"{names}  waiting for the broker"
        found = f"{shown:,} of {len(rows):,}" if self.level.filter else f"{shown:,}"  # type: ignore[arg-type]
        filtered = f'  filter "{plain(self.level.filter)}"' if self.level.filter else ""
        return f"{names}  {found}, by {self.level.column.name}{filtered}{'  PAUSED' if self.held else ''}"

    def _show_head(self) -> None:
        detail = self.looks.detail
        note = self.looks.note or (detail.fault if detail is not None and detail.asked == self.level.asked else "")
        lines = [_broker_line(self._view), Text(plain(note), "bold red") if note else _times_line(self._view)]
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
        self._head.update(Group(*lines))


def _broker_line(view: View | None) -> Text:
    if view is None:
        return Text("waiting for the broker")
    clients = f"{plural(view.connections, 'connection')}, {size_text(view.memory)}"
    return Text.assemble(
        (plain(view.broker) or "a broker", "bold"),
        "  ",
        ("ready", "green") if view.ready else ("not ready", "bold red"),
        f"  {clients}",
        (f"  {view.unmeasured:,} topics to be measured", "yellow") if view.unmeasured else "",
    )


def _times_line(view: View | None) -> Text:
    """Half and 99 of 100 of each within its bound."""
    if view is None:
        return Text("")
    found = {name: view.times.get(what, (None, None)) for name, what in TIMES.items()}
    parts = [f"{name} {duration(half)}/{duration(most)}" for name, (half, most) in found.items()]
    return Text("50%/99%:  " + "  ".join(parts), "dim")
