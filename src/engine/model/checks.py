"""Checks of plain arguments: numbers within bounds, one of several words, maps of text, aware times."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from engine.errors import InvalidArgumentError


def check_number(
    name: str, value: Any, low: float, high: float | None = None, *, whole: bool = False, why: str = ""
) -> None:
    """Raise InvalidArgumentError unless `value` is a number of [low, high] (an int where `whole`), and say `why`."""
    number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if number and low <= value < math.inf and (high is None or value <= high):
        return
    right = f"{'an int' if whole else 'a number'} of at least {low}" + (
        f" and at most {high}" if high is not None else ""
    )
    raise InvalidArgumentError(f"{name} must be {right}, got {value if number else repr(value)}{why and f': {why}'}")


def check_flag(name: str, value: Any) -> None:
    """Raise InvalidArgumentError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"{name} must be True or False, got {value!r:.80}")


def check_choice(name: str, value: Any, choices: tuple[str | None, ...]) -> str:
    """`value` itself when it is one of `choices`; else InvalidArgumentError."""
    if value not in choices:
        raise InvalidArgumentError(f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}")
    return str(value)


def check_properties(properties: Mapping[str, str] | None) -> None:
    """Raise InvalidArgumentError unless it is None or maps text to text."""
    if properties is None:
        return
    if not isinstance(properties, Mapping):
        raise InvalidArgumentError(f"properties must be a mapping of text to text, got {type(properties).__name__}")
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidArgumentError(f"properties must be text to text, got {name!r:.80}: {value!r:.80}")


def milliseconds(when: datetime) -> int:
    """Since 1970, of an aware datetime. Raises InvalidArgumentError."""
    if when.tzinfo is None:
        raise InvalidArgumentError(f"a datetime must have a time zone, as datetime.now(UTC) has, got {when!r}")
    return int(when.timestamp() * 1000)
