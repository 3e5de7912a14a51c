"""Avro definitions: parsed within bounds, and compared: which can read what another wrote (Avro 1.12).

The avro library decides whether a definition is valid. Schema resolution is decided here: the library joins the reasons
of all parts into that of the whole, which doubles them with each record that has two fields of the record before, so
that a definition of 3 kB exhausts the machine's memory.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from engine.errors import InvalidArgumentError
from engine.limits import (
    SCHEMA_BRANCHES_MAX,
    SCHEMA_DEPTH_MAX,
    SCHEMA_EMPTY_TYPES_MAX,
    SCHEMA_ERROR_SIZE_MAX,
    SCHEMA_FIELDS_MAX,
    SCHEMA_NAMES_MAX,
    SCHEMA_SYMBOLS_MAX,
    SCHEMA_TYPES_MAX,
)

NAMED = frozenset(("record", "error", "enum", "fixed"))


@dataclass(slots=True, eq=False)
class AvroType:
    """One type of a definition; a name that is used again is the same object. Compared by identity."""

    kind: str  # as Avro spells it; an "error" counts as a record
    name: str = ""  # of a record, an enumeration or a fixed, without its namespace
    full_name: str = ""
    aliases: frozenset[str] = frozenset()
    parts: tuple[AvroType, ...] = ()  # branches of a union; the items of an array or a map
    branches: dict[str, list[AvroType]] = field(default_factory=dict)  # of a union: by each branch's read_by()
    fields: tuple[AvroField, ...] = ()
    fields_by_name: dict[str, AvroField] = field(default_factory=dict)
    size: int = 0  # bytes of a fixed
    symbols: frozenset[str] = frozenset()
    has_default: bool = False  # of an enumeration: a symbol for unknown ones
    recursive: bool = False  # whether it contains itself, or a type that does

    def read_by(self) -> Iterator[str]:
        """The keys under which a writer's type finds this reader: its kind, or its kind with its name or an alias."""
        if not self.name:
            yield self.kind
            return
        yield f"{self.kind} {self.name}"
        for alias in self.aliases:
            yield f"{self.kind} ={alias}"

    def children(self) -> Iterator[AvroType]:
        """The types that a value of this one directly contains."""
        yield from self.parts
        for one in self.fields:
            yield one.type


@dataclass(slots=True, eq=False)
class AvroField:
    """A field of a record."""

    name: str
    type: AvroType
    aliases: tuple[str, ...]
    has_default: bool


@lru_cache(64)
def parse_definition(definition: str) -> AvroType:
    """The type that a JSON text defines. Raises InvalidArgumentError for an invalid schema, or one beyond a limit."""
    import avro.name  # slow to load, and seldom needed
    import avro.schema

    try:
        spelled = json.loads(definition)
    except (ValueError, RecursionError) as e:
        raise _no_schema(e) from e
    _check_depth(spelled)
    plain = _Bounds().admit(spelled)
    try:
        found = avro.schema.make_avsc_object(plain, avro.name.Names())
    except Exception as e:  # the library raises many kinds of error for invalid schemas
        raise _no_schema(e) from e
    root = _Builder().of(found)
    _mark_recursive(root)
    return root


def _no_schema(error: Exception) -> InvalidArgumentError:
    said = str(error)
    if len(said) > SCHEMA_ERROR_SIZE_MAX:  # the library repeats the definition at every level
        said = f"{said[: SCHEMA_ERROR_SIZE_MAX // 2]} … {said[-SCHEMA_ERROR_SIZE_MAX // 2 :]}"
    return InvalidArgumentError(f"the definition must be an Avro schema: {said}")


def _check_depth(spelled: object) -> None:
    """A record, its fields, one of them and its type are four levels of JSON. Raises InvalidArgumentError."""
    waiting = [(spelled, 0)]
    while waiting:
        value, depth = waiting.pop()
        if depth > 4 * SCHEMA_DEPTH_MAX:
            raise _beyond("values inside each other", SCHEMA_DEPTH_MAX)
        inside: Iterable[object] = ()
        if isinstance(value, dict):
            inside = value.values()
        elif isinstance(value, list):
            inside = value
        waiting.extend((one, depth + 1) for one in inside)


def _beyond(what: str, limit: int) -> InvalidArgumentError:
    return InvalidArgumentError(f"the definition must have at most {limit:,} {what}, got more")


class _Bounds:
    """Counts a definition's types before the library sees them. Logical types are removed: they do not affect
    resolution, and the library warns of unknown ones in its sender's text.
    """

    def __init__(self) -> None:
        self._types = 0
        self._names = 0

    def admit(self, spelled: Any, depth: int = 1) -> Any:
        """A type as spelled in JSON, without logical types. Raises InvalidArgumentError."""
        self._types += 1
        if self._types > SCHEMA_TYPES_MAX:
            raise _beyond("types", SCHEMA_TYPES_MAX)
        if depth > SCHEMA_DEPTH_MAX:
            raise _beyond("types inside each other", SCHEMA_DEPTH_MAX)
        if isinstance(spelled, list):
            if len(spelled) > SCHEMA_BRANCHES_MAX:
                raise _beyond("branches in a union", SCHEMA_BRANCHES_MAX)
            return [self.admit(one, depth + 1) for one in spelled]
        return self._mapping(spelled, depth) if isinstance(spelled, dict) else spelled

    def _mapping(self, spelled: dict[str, Any], depth: int) -> dict[str, Any]:
        plain = {key: value for key, value in spelled.items() if key != "logicalType"}
        kind = plain.get("type")
        if kind == "array" and "items" in plain:
            plain["items"] = self.admit(plain["items"], depth + 1)
        elif kind == "map" and "values" in plain:
            plain["values"] = self.admit(plain["values"], depth + 1)
        elif isinstance(kind, str) and kind in NAMED:
            self._named(plain, depth)
        return plain

    def _named(self, plain: dict[str, Any], depth: int) -> None:
        self._names += 1
        if self._names > SCHEMA_NAMES_MAX:
            raise _beyond("named types", SCHEMA_NAMES_MAX)
        if isinstance(symbols := plain.get("symbols"), list) and len(symbols) > SCHEMA_SYMBOLS_MAX:
            raise _beyond("symbols in an enumeration", SCHEMA_SYMBOLS_MAX)
        if isinstance(fields := plain.get("fields"), list):
            if len(fields) > SCHEMA_FIELDS_MAX:
                raise _beyond("fields in a record", SCHEMA_FIELDS_MAX)
            plain["fields"] = [self._field(one, depth) for one in fields]

    def _field(self, spelled: Any, depth: int) -> Any:
        if not isinstance(spelled, dict) or "type" not in spelled:
            return spelled  # the library names the fault
        return {**spelled, "type": self.admit(spelled["type"], depth + 1)}


class _Builder:
    """Converts the library's types into ours: some hundred bytes a type."""

    def __init__(self) -> None:
        self._known: dict[int, AvroType] = {}
        self._plain: dict[str, AvroType] = {}

    def of(self, found: Any) -> AvroType:
        if (known := self._known.get(id(found))) is not None:
            return known
        kind = {"error": "record", "error_union": "union"}.get(found.type, found.type)
        if kind not in ("array", "map", "union") and found.type not in NAMED:
            return self._plain.setdefault(kind, AvroType(kind))
        made = self._known[id(found)] = AvroType(kind)
        if found.type in NAMED:
            made.name, made.full_name = found.name.rpartition(".")[2], found.fullname
            made.aliases = frozenset(_texts(found.props.get("aliases")))
        if kind == "record":
            made.fields = tuple(self._field(one) for one in found.fields)
            made.fields_by_name = {one.name: one for one in made.fields}
        elif kind == "enum":
            made.symbols = frozenset(found.symbols)
            made.has_default = found.props.get("default") in made.symbols
        elif kind == "fixed":
            made.size = found.size
        else:
            inside = found.schemas if kind == "union" else [found.items if kind == "array" else found.values]
            made.parts = tuple(self.of(one) for one in inside)
            if kind == "union":
                for branch in made.parts:
                    for key in branch.read_by():
                        made.branches.setdefault(key, []).append(branch)
        return made

    def _field(self, found: Any) -> AvroField:
        return AvroField(found.name, self.of(found.type), tuple(_texts(found.props.get("aliases"))), found.has_default)


def _texts(value: object) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def all_types(root: AvroType) -> list[AvroType]:
    """All types, each once, `root` first."""
    found = {id(root): root}
    waiting = [root]
    while waiting:
        for child in waiting.pop().children():
            if id(child) not in found:
                found[id(child)] = child
                waiting.append(child)
    return list(found.values())


def _mark_recursive(root: AvroType) -> None:
    for one in _unending(all_types(root), AvroType.children):
        one.recursive = True


def _endless(root: AvroType) -> set[int]:
    """Records that contain themselves, or a record that does, directly in a field."""
    return {id(one) for one in _unending(all_types(root), lambda one: (part.type for part in one.fields))}


def _unending(types: list[AvroType], inside: Callable[[AvroType], Iterable[AvroType]]) -> list[AvroType]:
    """Removes types that contain none of those left (Kahn); the rest contain themselves, or a type that does."""
    left = {id(one): sum(1 for _ in inside(one)) for one in types}
    holders: dict[int, list[AvroType]] = {id(one): [] for one in types}
    for one in types:
        for child in inside(one):
            holders[id(child)].append(one)
    flat = deque(one for one in types if not left[id(one)])
    while flat:
        for holder in holders[id(flat.popleft())]:
            left[id(holder)] -= 1
            if not left[id(holder)]:
                flat.append(holder)
    return [one for one in types if left[id(one)]]


def check_values(root: AvroType) -> None:
    """Check that the size of Avro values in memory is bounded by their bytes: a record of no bytes is small, no array
    has items of no bytes, of which ten bytes can announce 2**62, and no record contains itself without a union, array
    or map in between. Raises InvalidArgumentError.
    """
    sizes = _empty_sizes(root)
    endless = _endless(root)
    for one in all_types(root):
        if sizes.get(id(one), 0) > SCHEMA_EMPTY_TYPES_MAX:
            raise _beyond("types in a record that takes no byte", SCHEMA_EMPTY_TYPES_MAX)
        if one.kind == "record" and id(one) in endless:
            raise InvalidArgumentError(f"a record must have values that end, got {one.full_name!r}, which holds itself")
        if one.kind == "array" and id(one.parts[0]) in sizes:
            raise InvalidArgumentError(f"an array's items must take a byte or more each, got {one.parts[0].kind}")


def _empty_sizes(root: AvroType) -> dict[int, int]:
    """{type that takes no byte: the number of types in one of its values}. Smallest first, so that each is seen once.

    Sizes stop growing at the limit; a record that contains itself has no value, and no size.
    """
    types = all_types(root)
    sizes = {id(one): 1 for one in types if one.kind == "null" or (one.kind == "fixed" and not one.size)}
    missing = {id(one): len(one.fields) for one in types if one.kind == "record"}
    holders: dict[int, list[AvroType]] = {}
    for one in types:
        for part in one.fields:
            holders.setdefault(id(part.type), []).append(one)
    ready = deque(one for one in types if id(one) in sizes)
    for one in types:
        if one.kind == "record" and not one.fields:
            sizes[id(one)] = 1
            ready.append(one)
    while ready:
        for holder in holders.get(id(ready.popleft()), ()):
            missing[id(holder)] -= 1
            if not missing[id(holder)]:
                total = 1 + sum(sizes[id(part.type)] for part in holder.fields)
                sizes[id(holder)] = min(total, SCHEMA_EMPTY_TYPES_MAX + 1)
                ready.append(holder)
    return sizes
