"""Values that are NamedTuples, or containers of them: written as records, by the names of their fields.

msgspec writes a NamedTuple as a list, in which a field that is new moves those behind it. So each class gets a Struct
with the same fields, and values are copied to and from it.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from engine.client.base.avro_definition import NATIVE_TYPES
from engine.errors import InvalidArgumentError, SchemaError


def is_named_tuple(form: object) -> bool:
    """Whether it is a class made by NamedTuple."""
    return isinstance(form, type) and issubclass(form, tuple) and hasattr(form, "_fields")


def has_named_tuples(form: object) -> bool:
    """Whether a form is a NamedTuple or a container of some. Those in fields of other classes do not count."""
    return is_named_tuple(form) or (get_origin(form) is not Literal and any(map(has_named_tuples, get_args(form))))


class NamedTupleCodec:
    """Encodes and decodes values of one form. Any thread. All raise SchemaError.

    `record`: the form with Structs instead of NamedTuples.
    """

    def __init__(self, form: Any) -> None:
        self._structs: dict[type, Any] = {}
        self._tuples: dict[type, Any] = {}
        self.record = self._replaced(form)
        self._json = msgspec.json.Decoder(self.record)
        self._msgpack = msgspec.msgpack.Decoder(self.record)

    def _replaced(self, form: Any) -> Any:
        if is_named_tuple(form):
            if form not in self._structs:
                self._structs[form] = None
                self._structs[form] = self._struct_of(form)
                self._tuples[self._structs[form]] = form
            if self._structs[form] is None:
                raise InvalidArgumentError(f"{form.__name__} must not hold itself: use a dataclass")
            return self._structs[form]
        origin, args = get_origin(form), get_args(form)
        if not has_named_tuples(form):
            return form
        replaced = tuple(map(self._replaced, args))
        if origin in (Union, types.UnionType):
            return Union[replaced]  # noqa: UP007 - of a tuple
        return origin[replaced]

    def _struct_of(self, form: Any) -> type:
        defaults = form._field_defaults
        fields: list[Any] = []
        for name, hint in get_type_hints(form, include_extras=True).items():
            kind = self._replaced(hint)
            if name not in defaults:
                fields.append((name, kind))
            else:
                made = partial(self._to_records, defaults[name])
                fields.append((name, kind, msgspec.field(default_factory=made)))
        return msgspec.defstruct(form.__name__, fields, module=form.__module__)

    def _to_records(self, value: Any) -> Any:
        if (struct := self._structs.get(type(value))) is not None:
            return struct(*map(self._to_records, value))
        return _inside(value, self._to_records)

    def _from_records(self, value: Any) -> Any:
        if (made := self._tuples.get(type(value))) is not None:
            return made(*(self._from_records(getattr(value, name)) for name in made._fields))
        return _inside(value, self._from_records)

    def to_plain(self, value: Any) -> Any:
        """In the types of the definition."""
        return msgspec.to_builtins(self._to_records(value), builtin_types=NATIVE_TYPES)

    def from_plain(self, value: Any) -> Any:
        """Undo to_plain()."""
        try:
            return self._from_records(msgspec.convert(value, self.record, builtin_types=NATIVE_TYPES))
        except msgspec.ValidationError as e:
            raise SchemaError(f"the value is not what the schema says: {e}") from e

    def to_json(self, value: Any) -> bytes:
        """JSON."""
        return msgspec.json.encode(self._to_records(value))

    def from_json(self, data: Any) -> Any:
        """Undo to_json()."""
        return self._from_records(self._json.decode(data))

    def to_msgpack(self, value: Any) -> bytes:
        """MessagePack."""
        return msgspec.msgpack.encode(self._to_records(value))

    def from_msgpack(self, data: Any) -> Any:
        """Undo to_msgpack()."""
        return self._from_records(self._msgpack.decode(data))


def _inside(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: change(item) for key, item in value.items()}
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(change(item) for item in value)
    return value
