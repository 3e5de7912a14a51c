"""`engine top`: a broker's topics, segments, consumers, rates, backlogs and pools, live or printed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from engine.cli import lines, output
from engine.cli.connection import connect, connection_options
from engine.cli.groups import examples
from engine.cli.looks import Looks
from engine.cli.top_view import SORTS, rendered
from engine.errors import UnsupportedError

if TYPE_CHECKING:
    from engine.sync import Client


@click.command(epilog=examples("engine top --sort backlog", "engine top --once --json"))
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two looks.",
)
@click.option("--sort", type=click.Choice(SORTS), default="in", show_default=True, help="Order of the topics.")
@click.option("--segments", is_flag=True, help="Print each segment of the topics, too.")
@click.option("--once", is_flag=True, help="Print the current state and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print a line with a JSON object at each look.")
@connection_options
def command(url: str, data: str | None, interval: float, sort: str, segments: bool, once: bool, as_json: bool) -> int:
    """Watch a broker: topics, rates, backlogs, memory.

    Enter opens a topic, and one of its segments down to its consumers. At a terminal it needs Textual (pip install
    'engine[top]'): the keys are at the foot of the screen, q ends it. A pipe, and a terminal without a keyboard behind
    the standard input, get one look after another, until Ctrl-C.
    While the broker does not answer, the last values stay with a note.
    """
    context = click.get_current_context()

    def opened() -> Client:
        with context.scope(cleanup=False):  # the token and the certificates are in it
            return connect(url, data)

    looks = Looks(opened, interval, sort)
    if once:
        looks.once()
        _print(looks, as_json, segments)
    elif as_json or not (output.console().is_terminal and _has_keys()):
        with looks:
            while looks.changed.wait():
                looks.changed.clear()
                _print(looks, as_json, segments)
    else:
        return _live(looks, sort)
    return 0


def _has_keys() -> bool:
    """Whether keys can come: the live screen ends by one, and what reads an empty input never sleeps."""
    return sys.stdin is not None and sys.stdin.isatty()


def _live(looks: Looks, sort: str) -> int:
    """The exit code. Raises UnsupportedError: Textual is not installed."""
    try:
        from engine.cli.screen.app import TopApp
    except ModuleNotFoundError as e:
        if (e.name or "").partition(".")[0] != "textual":
            raise
        raise UnsupportedError(
            "engine top needs Textual at a terminal, which is not installed: pip install 'engine[top]'; "
            "engine top --once prints one look without it"
        ) from e
    with looks:
        return TopApp(looks, sort).run() or 0


def _print(looks: Looks, as_json: bool, segments: bool) -> None:
    if as_json:
        shown = (looks.view.to_json() if looks.view is not None else {}) | {"fault": looks.note}
        lines.line(lines.json_text(shown, ascii_only=True))
    elif looks.view is None:
        lines.say(looks.note)
    else:
        output.console().print(rendered(looks.view, looks.note, segments=segments))
