"""What is right about a value that an operator has set: each says what would be right, or "" when it is."""

from __future__ import annotations

from typing import Any

SHARE_MAX = 10.0
SECONDS_MAX = 1e11  # 3,000 years; in milliseconds far below 2**63


def boolean(value: Any) -> str:
    """A switch."""
    return "" if isinstance(value, bool) else "true or false"


def integer(value: Any, low: int, high: int) -> str:
    """A whole number within bounds."""
    good = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    return "" if good else f"an integer from {low} to {high}"


def seconds(value: Any, low: float) -> str:
    """From a least number on, up to what timers and clocks can count."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= SECONDS_MAX
    return "" if good else f"a number of seconds from {low:g} to {SECONDS_MAX:g}"


def number(value: Any, low: float, *, optional: bool = False) -> str:
    """Seconds, where text with a unit is understood as well."""
    right = "" if value is None and optional else seconds(value, low)
    return right and f"{right}, or text like '5m',"


def share(value: Any) -> str:
    """A part of one, or a little more."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= SHARE_MAX
    return "" if good else f"a part from 0 to {SHARE_MAX:g}, or text like '25%',"


def choice(value: Any, right: tuple[str, ...]) -> str:
    """One of these."""
    return "" if value in right else " or ".join(right)


def optional_text(value: Any, start: str) -> str:
    """Text that begins so, or nothing."""
    return "" if value is None or (isinstance(value, str) and value.startswith(start)) else f"a URL {start}…"


def name(value: Any) -> str:
    """Something to call it by."""
    return "" if isinstance(value, str) and value.isprintable() and value else "text"


def printable(value: Any, start: str = "") -> str:
    """What can be said in a header of HTTP and begins so, or nothing."""
    good = value is None or (
        isinstance(value, str) and value.startswith(start) and value.isascii() and value.isprintable() and value.strip()
    )
    return "" if good else f"text of printable ASCII characters{' that begins with ' + start if start else ''}"


def pair(value: Any, other: Any, name: str) -> str:
    """A path that is there together with another, or neither."""
    good = value is None or (isinstance(value, str) and value and other is not None)
    return "" if good else f"the path of a PEM file, together with {name},"


def listed(value: Any) -> Any:
    """A list as a tuple, and text as the tuple of its parts between commas; anything else as it is."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return tuple(value) if isinstance(value, list) else value


def hosts(value: Any) -> str:
    """Names or addresses without ports, or `*`."""
    good = isinstance(value, tuple) and all(isinstance(host, str) and _is_host(host) for host in value)
    return "" if good else 'a list of host names without ports, as ["engine.example.org"],'


def _is_host(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable() and not set(text) & set(" /@?#,") and ":" not in text
