"""`engine top`: a live view of a broker's topics, segments, rates, backlogs and pools; it outlives the broker."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import click
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from engine.cli import lines, output
from engine.cli.connection import connect, connection_options
from engine.cli.exposition import Metrics
from engine.cli.top_view import SORTS, View, rendered, view_of
from engine.errors import EngineError
from engine.model.text import plain

if TYPE_CHECKING:
    from engine.sync import Client

HEAD_ROWS = 18  # above the topics: the broker, its pools and times
ROWS_MIN = 3
REFRESH_S = 0.5  # of the display, which shows the age of the last answer
LATE_S = 3.0  # beyond the interval: then the broker is shown as not answering


class Looks:
    """Polls the broker on a thread of its own: the screen does not wait for a slow or lost broker."""

    def __init__(self, url: str, data: str | None, interval: float, sort: str) -> None:
        self.view: View | None = None
        self.changed = threading.Event()  # set after each look, and after each that failed
        self._where = (url, data)
        self._interval = interval
        self._sort = sort
        self._context = click.get_current_context()
        self._metrics: Metrics | None = None
        self._seen_at = time.monotonic()
        self._fault = ""
        self._client: Client | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine-top", daemon=True)

    def __enter__(self) -> Looks:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        if (client := self._client) is not None:
            client.close()
        self._thread.join()

    @property
    def note(self) -> str:
        """The failure and its duration; "": none."""
        silent = time.monotonic() - self._seen_at
        if not self._fault and silent < self._interval + LATE_S:
            return ""
        return f"no answer for {silent:.0f} s: {self._fault or 'the broker is slow'}"

    def once(self) -> None:
        """One look, by the caller. Raises what the broker or the connection to it does."""
        with connect(*self._where) as client:
            self._take(client.admin.get_metrics())

    def _run(self) -> None:
        with self._context.scope(cleanup=False):
            while not self._stopped.is_set():
                try:
                    self._follow()
                except (EngineError, OSError) as e:
                    self._fault = " ".join(str(e).split()) or type(e).__name__
                    self.changed.set()
                self._stopped.wait(self._interval)

    def _follow(self) -> None:
        """Use one client until it fails: after that, another broker may answer."""
        with connect(*self._where) as self._client:
            while not self._stopped.is_set():
                self._take(self._client.admin.get_metrics())
                self._stopped.wait(self._interval)

    def _take(self, text: str) -> None:
        before, self._metrics = self._metrics, Metrics(text)
        self.view = view_of(self._metrics, before, self._sort)
        self._seen_at, self._fault = time.monotonic(), ""
        self.changed.set()


@click.command()
@click.option("--interval", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="Seconds.")
@click.option("--sort", type=click.Choice(SORTS), default="in", show_default=True, help="Order of the topics.")
@click.option("--segments", is_flag=True, help="Show each segment.")
@click.option("--once", is_flag=True, help="Print once and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line per refresh.")
@connection_options
def command(url: str, data: str | None, interval: float, sort: str, segments: bool, once: bool, as_json: bool) -> None:
    """A live view of one broker: topics, rates, backlogs, memory. Ctrl-C ends it.

    When the broker does not answer, it reports that and keeps showing the last values.
    """
    looks = Looks(url, data, interval, sort)
    if once:
        looks.once()
        _print(looks, as_json, segments)
    elif as_json or not output.console().is_terminal:
        with looks:
            while looks.changed.wait():
                looks.changed.clear()
                _print(looks, as_json, segments)
    else:
        with looks:
            _live(looks, segments)


def _live(looks: Looks, segments: bool) -> None:
    console = output.console()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(_shown(looks, max(console.size.height - HEAD_ROWS, ROWS_MIN), segments), refresh=True)
            looks.changed.wait(REFRESH_S)
            looks.changed.clear()


def _shown(looks: Looks, rows: int, segments: bool) -> RenderableType:
    if looks.view is None:
        return Text(plain(looks.note or "waiting for the broker"))
    return rendered(looks.view, looks.note, rows, segments)


def _print(looks: Looks, as_json: bool, segments: bool) -> None:
    if as_json:
        shown = (looks.view.to_json() if looks.view is not None else {}) | {"fault": looks.note}
        lines.line(lines.json_text(shown, ascii_only=True))
    elif looks.view is None:
        lines.say(looks.note)
    else:
        output.console().print(rendered(looks.view, looks.note, segments=segments))
