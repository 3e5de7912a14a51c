"""Whether an Avro value is nested no deeper than fastavro can follow, which ends the process where its stack does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.errors import SchemaError
from engine.limits import SCHEMA_VALUE_DEPTH_MAX
from engine.model.avro import AvroType, all_types

_FIXED_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


class AvroDepth:
    """Checks values of one definition. Costs nothing where no type contains itself, or the value is short."""

    def __init__(self, root: AvroType) -> None:
        self._root = root
        self._turns = sum(one.recursive for one in all_types(root))  # types passed with each byte, at most

    def check_bytes(self, data: Any) -> None:
        """Raise SchemaError for an encoded value that is nested deeper than SCHEMA_VALUE_DEPTH_MAX, or no value."""
        if len(data) * self._turns > SCHEMA_VALUE_DEPTH_MAX:
            _Walk(bytes(data)).follow(self._root)

    def check_value(self, value: object) -> None:
        """Raise SchemaError for dicts and lists that are nested deeper than any value may be."""
        waiting = [(value, 0)] if self._turns else []
        while waiting:
            one, depth = waiting.pop()
            if depth > SCHEMA_VALUE_DEPTH_MAX:
                raise _too_deep()
            inside = one.values() if isinstance(one, dict) else one if isinstance(one, (list, tuple)) else ()
            waiting.extend((item, depth + 1) for item in inside if isinstance(item, (dict, list, tuple)))


def _too_deep() -> SchemaError:
    return SchemaError(f"the value must have at most {SCHEMA_VALUE_DEPTH_MAX:,} types inside each other, got more")


class _Walk:
    """Passes over an encoded value with its own stack: one iterator over what is inside for each open type."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def follow(self, root: AvroType) -> None:
        stack = [iter((root,))]
        while stack:
            child = next(stack[-1], None)
            if child is None:
                stack.pop()
            elif child.kind in ("record", "union", "array", "map"):
                stack.append(self._inside(child))
                if len(stack) > SCHEMA_VALUE_DEPTH_MAX:
                    raise _too_deep()
            else:
                self._pass_leaf(child)

    def _inside(self, one: AvroType) -> Iterator[AvroType]:
        if one.kind == "record":
            yield from (part.type for part in one.fields)
        elif one.kind == "union":
            branch = self._number()
            if not 0 <= branch < len(one.parts):
                raise SchemaError(f"the value is not what the schema says: a union has no branch {branch}")
            yield one.parts[branch]
        else:
            while count := self._number():
                if count < 0:  # the block's bytes stand behind its count
                    count = -count
                    self._number()
                for _ in range(count):
                    if one.kind == "map":
                        self._pass(self._number())
                    yield one.parts[0]

    def _pass_leaf(self, one: AvroType) -> None:
        if one.kind in ("bytes", "string"):
            self._pass(self._number())
        elif one.kind in ("int", "long", "enum"):
            self._number()
        else:
            self._pass(one.size if one.kind == "fixed" else _FIXED_SIZES[one.kind])

    def _pass(self, size: int) -> None:
        self._at += size
        if size < 0 or self._at > len(self._data):
            raise SchemaError("the value is not what the schema says: it ends too soon")

    def _number(self) -> int:
        """A zigzag varint."""
        number = shift = 0
        while True:
            self._pass(1)
            byte = self._data[self._at - 1]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)
            shift += 7
            if shift > 63:
                raise SchemaError("the value is not what the schema says: a number has more than 64 bits")
