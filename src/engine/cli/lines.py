"""Single lines on the two output streams.

Whatever comes from outside passes plain() on its way to a terminal: a name or value may hold what moves the cursor,
changes colours or sets the window's title. What a program reads, JSON or a pipe, is as it is.
"""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

import click

from engine.model.text import plain


def say(text: object) -> None:
    """A line on the error stream, for people."""
    click.echo(plain(text), err=True)


def line(text: object) -> None:
    """A line on the standard output, which may be a name that a program reads there."""
    click.echo(plain(text) if on_terminal() else str(text))


def confirm(question: str) -> None:
    """Go on only if a person says yes. Raises click.Abort."""
    click.confirm(plain(question), abort=True)


def on_terminal() -> bool:
    """Whether a person's terminal shows the standard output."""
    return sys.stdout.isatty()


def json_text(value: Any, *, ascii_only: bool) -> str:
    """One document in a line. For a terminal it is ASCII alone, which means the same."""
    return json.dumps(value, ensure_ascii=ascii_only)


def as_text(name: str, value: bytes | None) -> dict[str, str | None]:
    """A JSON field of bytes: as text, or in base64 under `…_base64` where it is not UTF-8."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}
