"""Parsers of arguments: NAME=VALUE pairs, separators, instants, durations, sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import click

from engine.errors import InvalidArgumentError
from engine.model.names import SegmentName, TopicName, check_name, parse_namespace
from engine.model.units import byte_count, seconds

ESCAPES = {"\\t": "\t", "\\0": "\0"}


def checked(text: str, check: Callable[[str], object]) -> str:
    """The text itself. Raises a usage error, before anything is opened, where `check` raises InvalidArgumentError."""
    try:
        check(text)
    except InvalidArgumentError as e:
        raise click.BadParameter(str(e)) from e
    return text


def topic_name(text: str) -> str:
    return checked(text, TopicName.parse)


def segment_name(text: str) -> str:
    return checked(text, SegmentName.parse)


def namespace_name(text: str) -> str:
    return checked(text, parse_namespace)


def subscription_name(text: str) -> str:
    return checked(text, lambda name: check_name(name, "subscription name"))


def service_url(text: str) -> str:
    """A service's URL as typed: of one broker or several."""
    from engine.client.base.endpoint import ServiceUrl

    return checked(text, ServiceUrl.parse)


def broker_address(text: str) -> str:
    """The URL of one broker as typed."""
    from engine.client.base.endpoint import parse_url

    return checked(text, parse_url)


def broker_url(text: str) -> str:
    """The URL of one broker as a list of brokers shows it, which is without a token."""
    if "@" in text:
        raise click.BadParameter("the URL of a broker must have no token in it")
    return text


def duration(text: str) -> float:
    """Seconds as typed: 90, 90s, 5m."""
    found = seconds(text)
    if found is None:
        raise click.BadParameter(f"a duration must be like 90s, 5m or 2h, got {text!r}")
    return found


def size(text: str) -> int:
    """Bytes as typed: 512KB, 50MB."""
    found = byte_count(text)
    if found is None:
        raise click.BadParameter(f"a size must be like 512KB, 50MB or 2GB, got {text!r}")
    return found


def key_values(pairs: Iterable[str]) -> dict[str, str]:
    """`NAME=VALUE` texts as a mapping."""
    split = [pair.partition("=") for pair in pairs]
    wrong = [name for name, equals, _ in split if not equals or not name]
    if wrong:
        raise click.BadParameter(f"a pair must be NAME=VALUE, got {wrong[0]!r}")
    return {name: value for name, _, value in split}


def key_files(pairs: Iterable[str]) -> dict[str, Path] | None:
    """`NAME=FILE` texts as files by name; None without any."""
    return {name: Path(file) for name, file in key_values(pairs).items()} or None


def separator(text: str | None) -> bytes | None:
    """A separator as typed; `\\t` and `\\0` may be written so."""
    if text == "":
        raise click.BadParameter("a separator must have at least one character, got none")
    return None if text is None else ESCAPES.get(text, text).encode()


def instant(text: str) -> datetime | None:
    """An instant: ISO 8601 (UTC where it says no zone) or milliseconds since 1970; None for neither."""
    try:
        if text.isdigit():
            return datetime.fromtimestamp(int(text) / 1000, UTC)
        found = datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def position(text: str) -> Literal["earliest", "latest"] | datetime:
    """`earliest`, `latest` or an instant."""
    places: dict[str, Literal["earliest", "latest"]] = {"earliest": "earliest", "latest": "latest"}
    if text in places:
        return places[text]
    found = instant(text)
    if found is None:
        raise click.BadParameter(
            f"a position must be earliest, latest, an ISO 8601 time or milliseconds since 1970, got {text!r}"
        )
    return found


def offset_range(text: str) -> tuple[int, int]:
    """Offsets as typed, and as errors write them: 7, or 100..149, both inclusive."""
    first, dots, last = text.partition("..")
    if not (first.isdecimal() and (last.isdecimal() or not dots)):
        raise click.BadParameter(f"offsets must be like 7 or 100..149, got {text!r}")
    found = int(first), int(last or first)
    if found[0] > found[1]:
        raise click.BadParameter(f"offsets must be first..last with first <= last, got {text!r}")
    return found
