"""Values that are pydantic models, or containers of them: encoded, decoded and checked by pydantic.

pydantic is imported by the programs that have such a form.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, get_args

import msgspec

from engine.client.base.avro_definition import NATIVE_TYPES
from engine.errors import SchemaError


def has_models(form: object) -> bool:
    """Whether a form is a pydantic model, or a container of some. Does not import pydantic."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is None:
        return False
    if isinstance(form, type) and issubclass(form, pydantic.BaseModel):
        return True
    return any(has_models(one) for one in get_args(form))


class ModelCodec:
    """Encodes and decodes values of one form. Any thread. All raise SchemaError."""

    def __init__(self, form: Any) -> None:
        import pydantic

        self._adapter: Any = pydantic.TypeAdapter(form)

    def to_plain(self, value: Any) -> Any:
        """In the types of the definition."""
        dumped = self._checked(lambda: self._adapter.dump_python(value, by_alias=True, warnings=False))
        return msgspec.to_builtins(dumped, builtin_types=NATIVE_TYPES)

    def from_plain(self, value: Any) -> Any:
        """Undo to_plain()."""
        return self._checked(lambda: self._adapter.validate_python(value))

    def to_json(self, value: Any) -> bytes:
        """JSON."""
        written: bytes = self._checked(lambda: self._adapter.dump_json(value, by_alias=True, warnings=False))
        return written

    def from_json(self, data: Any) -> Any:
        """Undo to_json()."""
        return self._checked(lambda: self._adapter.validate_json(bytes(data)))

    def to_msgpack(self, value: Any) -> bytes:
        """MessagePack of what JSON would have."""
        dumped = self._checked(lambda: self._adapter.dump_python(value, mode="json", by_alias=True, warnings=False))
        return msgspec.msgpack.encode(dumped)

    def from_msgpack(self, data: Any) -> Any:
        """Undo to_msgpack()."""
        return self.from_plain(msgspec.msgpack.decode(data))

    def _checked(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except ValueError as e:  # ValidationError and PydanticSerializationError are such
            raise SchemaError(f"the value is not what the schema says: {e!s:.1000}") from e
