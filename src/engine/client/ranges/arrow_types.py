"""The Arrow type of an Avro one, and values of the latter as the former takes them.

What has no Arrow type (a union of several types, a type that holds itself) is text: the value as JSON. pyarrow is
imported by the callers, which name it when it is missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

Convert = Callable[[Any], Any] | None

_PLAIN = {
    "null": "null",
    "boolean": "bool_",
    "int": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "bytes": "binary",
    "string": "string",
    "enum": "string",
}
_DECIMAL128_DIGITS_MAX = 38
_DECIMAL_DIGITS_MAX = 76  # of Arrow's widest


@dataclass(frozen=True, slots=True)
class ArrowForm:
    """An Arrow type. `convert`: makes what pyarrow takes for it of a plain value; None: the value itself."""

    type: Any
    convert: Convert = None

    @property
    def nullable(self) -> ArrowForm:
        """The same for values that may be None."""
        convert = self.convert
        return self if convert is None else ArrowForm(self.type, lambda v: None if v is None else convert(v))


def form_of(definition: str) -> ArrowForm:
    """The Arrow form of an Avro definition that was checked. A record is a struct."""
    return _Forms().of(json.loads(definition))


def json_text(value: Any) -> str:
    """A plain value as JSON."""
    return msgspec.json.encode(value).decode()


class _Forms:
    """One definition; a named type that is being described is unknown yet, and so is whatever holds it."""

    def __init__(self) -> None:
        import pyarrow

        self._arrow = pyarrow
        self._named: dict[str, ArrowForm | None] = {}
        self._text = ArrowForm(pyarrow.string(), json_text)

    def of(self, kind: Any, namespace: str = "") -> ArrowForm:
        if isinstance(kind, list):
            return self._union(kind, namespace)
        if isinstance(kind, str):
            return self._word(kind, namespace)
        base = kind["type"]
        if not isinstance(base, str):
            return self.of(base, namespace)
        if base in ("record", "error", "enum", "fixed"):
            return self._new(kind, base, namespace)
        if (logical := self._logical(kind, base)) is not None:
            return logical
        if base == "array":
            items = self.of(kind["items"], namespace)
            return ArrowForm(self._arrow.list_(items.type), _each(items.convert))
        if base == "map":
            values = self.of(kind["values"], namespace)
            return ArrowForm(self._arrow.map_(self._arrow.string(), values.type), _pairs(values.convert))
        return self._word(base, namespace)

    def _word(self, word: str, namespace: str) -> ArrowForm:
        if word in _PLAIN:
            return ArrowForm(getattr(self._arrow, _PLAIN[word])())
        full = word if "." in word or not namespace else f"{namespace}.{word}"
        return self._named.get(full, self._named.get(word)) or self._text

    def _union(self, kinds: list[Any], namespace: str) -> ArrowForm:
        others = [kind for kind in kinds if kind != "null"]
        forms = [self.of(kind, namespace) for kind in others]  # also those that become text: they define names
        if not forms:
            return self.of("null")
        return (forms[0] if len(forms) == 1 else self._text).nullable

    def _new(self, kind: dict[str, Any], base: str, namespace: str) -> ArrowForm:
        space, _, name = kind["name"].rpartition(".")
        namespace = space or kind.get("namespace", namespace)
        full = f"{namespace}.{name}" if namespace else name
        if base == "enum":
            form = self.of("string")
        elif base == "fixed":
            form = self._logical(kind, base) or ArrowForm(self._arrow.binary(kind["size"]))
        else:
            self._named[full] = None
            form = self._record(kind, namespace)
        self._named[full] = form
        return form

    def _record(self, kind: dict[str, Any], namespace: str) -> ArrowForm:
        forms = {field["name"]: self.of(field["type"], namespace) for field in kind["fields"]}
        converts = {name: form.convert for name, form in forms.items() if form.convert is not None}

        def convert(value: dict[str, Any]) -> dict[str, Any]:
            return value | {name: one(value[name]) for name, one in converts.items()}

        struct = self._arrow.struct([(name, form.type) for name, form in forms.items()])
        return ArrowForm(struct, convert if converts else None)

    def _logical(self, kind: dict[str, Any], base: str) -> ArrowForm | None:
        """The form of a logical type, None for a type without one and for one that Avro says is to be ignored."""
        arrow, logical = self._arrow, kind.get("logicalType")
        if logical == "decimal" and base in ("bytes", "fixed"):
            return self._decimal(kind.get("precision", 0), kind.get("scale", 0))
        if (base, logical) == ("string", "uuid"):
            return ArrowForm(arrow.string(), str)
        made = {
            ("int", "date"): lambda: arrow.date32(),
            ("int", "time-millis"): lambda: arrow.time32("ms"),
            ("long", "time-micros"): lambda: arrow.time64("us"),
            ("long", "timestamp-millis"): lambda: arrow.timestamp("ms", "UTC"),
            ("long", "timestamp-micros"): lambda: arrow.timestamp("us", "UTC"),
            ("long", "local-timestamp-millis"): lambda: arrow.timestamp("ms"),
            ("long", "local-timestamp-micros"): lambda: arrow.timestamp("us"),
        }.get((base, str(logical)))
        return None if made is None else ArrowForm(made())

    def _decimal(self, precision: int, scale: int) -> ArrowForm | None:
        if not 0 <= scale <= precision or not precision:
            return None
        if precision > _DECIMAL_DIGITS_MAX:
            return ArrowForm(self._arrow.string(), str)
        wide = precision > _DECIMAL128_DIGITS_MAX
        return ArrowForm((self._arrow.decimal256 if wide else self._arrow.decimal128)(precision, scale))


def _each(convert: Convert) -> Convert:
    return None if convert is None else lambda values: [convert(value) for value in values]


def _pairs(convert: Convert) -> Convert:
    if convert is None:
        return lambda values: list(values.items())
    return lambda values: [(key, convert(value)) for key, value in values.items()]
