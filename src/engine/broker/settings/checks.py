"""Checks of configured values. Each returns what the value must be, for the error's text, or "" when it is valid.

What a setting may be by itself is said once, in its annotation: msgspec checks by it (`wrong`), and the JSON Schema of
settings is made of it.

    keep_alive: Annotated[Seconds, Meta(ge=0)] = KEEP_ALIVE_S

Rules that join several settings, and the forms of texts, are functions.
"""

from __future__ import annotations

import re
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from engine.limits import FRAME_SIZE_MAX, MIB

SHARE_MAX = 10.0
SECONDS_MAX = 1e11  # 3,000 years; in milliseconds far below 2**63

Seconds = Annotated[float, Meta(le=SECONDS_MAX, extra={"unit": "seconds"})]
Share = Annotated[float, Meta(ge=0, le=SHARE_MAX, extra={"unit": "share"})]
Bytes = Annotated[int, Meta(extra={"unit": "bytes"})]

Duration = Annotated[Seconds, Meta(ge=0)]
Interval = Annotated[Seconds, Meta(ge=0.01)]
Timeout = Annotated[Seconds, Meta(ge=0.001)]
Count = Annotated[int, Meta(ge=0, le=10_000_000)]
Positive = Annotated[int, Meta(ge=1, le=10_000_000)]
Memory = Annotated[Bytes, Meta(ge=0, le=2**40)]
CacheSize = Annotated[Bytes, Meta(ge=0, le=2**50)]
FrameMemory = Annotated[Bytes, Meta(ge=FRAME_SIZE_MAX, le=2**40)]  # room for a frame at least
ListMemory = Annotated[Bytes, Meta(ge=MIB, le=2**40)]


def kinds_of(settings: type) -> dict[str, Any]:
    """{field: its annotation} of a dataclass."""
    return get_type_hints(settings, include_extras=True)


def plain(kind: Any) -> str:
    """An annotation without its bounds: "float | None"."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return plain(parts[0])
    if origin in (Union, types.UnionType):
        return " | ".join(map(plain, parts))
    if origin is Literal:
        return "str"
    return "None" if kind is type(None) else kind.__name__ if isinstance(kind, type) and not parts else str(kind)


def is_choice(kind: Any) -> bool:
    """Whether it is one of some words, or true or false."""
    return kind is bool or get_origin(kind) is Literal


def wrong(settings: object, kinds: Mapping[str, Any]) -> dict[str, str]:
    """For every field of `kinds`: what it must be, or "" when it is valid."""
    return {key: _wrong(getattr(settings, key), kind) for key, kind in kinds.items()}


def _wrong(value: Any, kind: Any) -> str:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return wanted(kind)
    return ""


def bounds_of(kind: Any) -> dict[str, Any]:
    """`ge`, `le` and `unit` of an annotation, where it has them."""
    found: dict[str, Any] = {}
    if get_origin(kind) is Annotated:
        base, *metas = get_args(kind)
        found = bounds_of(base)
        for meta in metas:
            found |= {name: value for name in ("ge", "le") if (value := getattr(meta, name)) is not None}
            found |= meta.extra or {}
    elif get_origin(kind) in (Union, types.UnionType):
        found = bounds_of(get_args(kind)[0])
    return found


def wanted(kind: Any) -> str:
    """What a value of this kind must be, for an error's text."""
    bounds, name = bounds_of(kind), plain(kind).removesuffix(" | None")
    if get_origin(kind) is Literal:
        return " or ".join(get_args(kind))
    if name == "bool":
        return "true or false"
    if bounds.get("unit") == "share":
        return f"a fraction from {bounds['ge']:g} to {bounds['le']:g}, or text like '25%'"
    if bounds.get("unit") == "seconds":
        return f"a number of seconds from {bounds['ge']:g} to {bounds['le']:g}, or text like '5m'"
    return f"an integer from {bounds['ge']} to {bounds['le']}"


def boolean(value: Any) -> str:
    return "" if isinstance(value, bool) else "true or false"


def integer(value: Any, low: int, high: int) -> str:
    """A whole number within bounds."""
    good = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    return "" if good else f"an integer from {low} to {high}"


def seconds(value: Any, low: float) -> str:
    """From `low` up to what timers and clocks can count."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= SECONDS_MAX
    return "" if good else f"a number of seconds from {low:g} to {SECONDS_MAX:g}"


def number(value: Any, kind: Any) -> str:
    """Of an annotation with bounds: without a unit in the text."""
    bounds = bounds_of(kind)
    if bounds.get("unit") == "seconds":
        return seconds(value, bounds["ge"])
    return integer(value, bounds["ge"], bounds["le"])


def choice(value: Any, choices: tuple[str, ...]) -> str:
    return "" if value in choices else " or ".join(choices)


def optional_text(value: Any, start: str) -> str:
    """None, or text with this prefix."""
    return "" if value is None or (isinstance(value, str) and value.startswith(start)) else f"a URL {start}…"


def name(value: Any) -> str:
    """Something to call it by."""
    return "" if isinstance(value, str) and value.isprintable() and value else "text"


def folder(value: str, objects: Any) -> str:
    """Where names of objects begin with it, something that can be in each store."""
    good = objects is None or re.fullmatch(r"[a-z0-9][a-z0-9-]{0,63}", value)
    return "" if good else "1 to 64 of a-z, 0-9 and - where `objects` is set"


def object_store(value: Any) -> str:
    """None, or the URL of an object store. Its details are checked when it is opened."""
    good = value is None or (isinstance(value, str) and value.startswith(("s3://", "gs://", "az://")))
    return "" if good else "a URL s3://…, gs://… or az://…"


def printable(value: Any, start: str = "") -> str:
    """None, or text with this prefix that an HTTP header can carry."""
    good = value is None or (
        isinstance(value, str) and value.startswith(start) and value.isascii() and value.isprintable() and value.strip()
    )
    return "" if good else f"text of printable ASCII characters{' that begins with ' + start if start else ''}"


def pair(value: Any, other: Any, name: str) -> str:
    """A path that must be set together with another."""
    good = value is None or (isinstance(value, str) and value and other is not None)
    return "" if good else f"the path of a PEM file, set together with {name}"


def beside(value: Any, other: Any, name: str) -> str:
    """None, or a path, only where another key is set."""
    good = value is None or (isinstance(value, str) and value and other is not None)
    return "" if good else f"the path of a PEM file, set only together with {name}"


def other(value: Any, taken: Any) -> str:
    """Not the same secret twice."""
    return "" if value is None or value != taken else "another one than auth_token"


def listed(value: Any) -> Any:
    """A list, or comma-separated text, as a tuple; anything else unchanged."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return tuple(value) if isinstance(value, list) else value


def path(value: Any) -> str:
    """None, or the path of a file."""
    return "" if value is None or (isinstance(value, str) and value) else "the path of a file"


def together(value: Any, other: Any, name: str) -> str:
    """None, or text, only where another key is set."""
    good = value is None or (isinstance(value, str) and value and other is not None)
    return "" if good else f"text, set only together with {name}"


def only_beside(value: Any, other: Any, name: str) -> str:
    """True only where another key is set."""
    return boolean(value) or ("" if not value or other is not None else f"false without {name}")


def pairs_of_names(value: Any) -> str:
    """Pairs name=name in a list; the first names are different."""
    good = isinstance(value, tuple) and all(isinstance(one, str) and one.isprintable() for one in value)
    pairs = [one.partition("=") for one in value] if good else []
    good = good and all(first and second for first, _, second in pairs)
    good = good and len({first for first, _, _ in pairs}) == len(pairs)
    return "" if good else 'a list of users, each once, with their roles, as ["www-data=web", "1001=batch"]'


def names(value: Any) -> str:
    """Names of roles."""
    good = isinstance(value, tuple) and all(isinstance(one, str) and one and one.isprintable() for one in value)
    return "" if good else 'a list of names, as ["operators"]'


def hosts(value: Any) -> str:
    """Names or addresses without ports, or `*`."""
    good = isinstance(value, tuple) and all(isinstance(host, str) and _is_host(host) for host in value)
    return "" if good else 'a list of host names without ports, as ["engine.example.org"]'


def _is_host(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable() and not set(text) & set(" /@?#,") and ":" not in text
