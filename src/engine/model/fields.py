"""Reads a JSON record field by field, with an error that names the field."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

import msgspec

from engine.errors import CorruptionError

E = TypeVar("E", bound=enum.Enum)

_PLAIN: dict[type, Callable[[Any], object]] = {str: str.__str__, int: int.__index__, float: float.__float__}


def _plain(value: object) -> object:
    """The plain equivalent of a special text or number type, such as NumPy's."""
    for kind, plain in _PLAIN.items():
        if isinstance(value, kind):
            return plain(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


_encode = msgspec.json.Encoder(enc_hook=_plain).encode


def dump(fields: Mapping[str, Any] | msgspec.Struct) -> bytes:
    """A record's value: compact JSON, keys in the order given, or a struct's fields in their order."""
    return _encode(fields)


def load(text: str | bytes) -> Any:
    """Parse JSON. Raises ValueError, also for text that cannot be written again: half a surrogate pair."""
    try:
        value = json.loads(text)
        if ("\\u" if isinstance(text, str) else b"\\u") in text:  # type: ignore[operator]
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as e:
        raise ValueError("it is nested too deeply") from e
    return value


class Fields:
    """A JSON object that is being read. Every method raises CorruptionError naming the record and the field."""

    __slots__ = ("values", "what")

    def __init__(self, what: str, values: Any) -> None:
        self.what = what
        if not isinstance(values, dict):
            raise CorruptionError(f"{what} must be a JSON object, got {type(values).__name__}")
        self.values: dict[str, Any] = values

    @classmethod
    def parse(cls, what: str, value: bytes) -> Fields:
        """Parse an object."""
        try:
            values = load(value)
        except ValueError as e:
            raise CorruptionError(f"{what} must be JSON: {e}") from e
        return cls(what, values)

    def wrong(self, name: str, problem: str) -> NoReturn:
        """Raise CorruptionError for one field."""
        raise CorruptionError(f"{self.what}: field {name!r} {problem}")

    def _get(self, name: str, kind: type, default: Any) -> Any:
        value = self.values.get(name, default)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.wrong(name, f"is {value!r:.80}, not {kind.__name__}" if name in self.values else "is missing")
        return value

    def number(self, name: str, default: int | None = None) -> int:
        """An integer that is not negative."""
        value: int = self._get(name, int, default)
        if value < 0:
            self.wrong(name, f"is {value}, which is negative")
        return value

    def flag(self, name: str) -> bool:
        value: bool = self._get(name, bool, None)
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value: str = self._get(name, str, default)
        return value

    def numbers(self, name: str, default: list[int] | None = None) -> tuple[int, ...]:
        """A list of integers that are not negative."""
        items = self._get(name, list, default)
        for item in items:
            if type(item) is not int or item < 0:
                self.wrong(name, f"holds {item!r:.80}, which is not an integer from 0 up")
        return tuple(items)

    def fields(self, name: str, default: dict[str, Any] | None = None) -> Fields:
        return Fields(f"{self.what}: field {name!r}", self._get(name, dict, default))

    def objects(self, name: str) -> list[Fields]:
        items = self._get(name, list, None)
        return [Fields(f"{self.what}: field {name!r}", item) for item in items]

    def choice(self, name: str, kind: type[E], default: E | None = None) -> E:
        """One of an enumeration's values."""
        if default is not None and self.values.get(name) is None:
            return default
        text = self.text(name)
        try:
            return kind(text)
        except ValueError:
            self.wrong(name, f"is {text!r:.80}, not one of {', '.join(member.value for member in kind)}")

    def texts(self, name: str, default: dict[str, str] | None = None) -> dict[str, str]:
        """An object whose values are all strings."""
        items = self._get(name, dict, default)
        for key, item in items.items():
            if not isinstance(item, str):
                self.wrong(name, f"holds {item!r:.80} under {key!r}, which is not text")
        return dict(items)
