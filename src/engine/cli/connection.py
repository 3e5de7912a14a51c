"""How commands reach an engine: over the network, or by opening a data directory themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from engine.sync import Client

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_URL = "engine://127.0.0.1:6650"


def connection_options(command: F) -> F:
    """Add `--url` and `--data` to a command."""
    url = click.option(
        "--url",
        envvar="ENGINE_URL",
        default=DEFAULT_URL,
        show_default=True,
        help="The server to talk to; ENGINE_URL says it too.",
    )
    data = click.option(
        "--data",
        type=click.Path(file_okay=False),
        help="Open this data directory instead of talking to a server (which must not have it open).",
    )
    return url(data(command))


def json_option(command: F) -> F:
    """Add `--json` to a command."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for a program to read.")(command)


def connect(url: str, data: str | None) -> Client:
    """A client of the server, or of an engine of our own; close it, or use it as a context manager."""
    if data is not None:
        from engine.embedded import open as open_engine

        return open_engine(data)
    from engine.sync import Client

    return Client(url)
