"""Hostile field values: edge cases of each type, and values of the wrong type inside a container of the right one."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import inspect

from engine.wire.commands import HEADERS, Command

NAMES = [
    "", "t", "orders", "topic://public/default/orders", "public/default", "public/default/orders", "a//b",
    "topic://", "x" * 300,
    "segment://public/default/orders/0000-ffff-0", "segment://public/default/orders/0000-ffff-99", "segment://a/b/c/x",
    "é\u0000\u2028", "../../etc/passwd", "engine://x",
    "0" * 16, "f" * 16, "g" * 16, "earliest", "latest", "exclusive", "shared",
    "queue", "reader", "stream", "checkpoint", "cumulative", "individual", "commit", "abort", "wait_for_exclusive",
    "exclusive_with_fencing", "(", "a{1000}{1000}", "\ud800", "sub", "fuzz-consumer", "fuzz-producer",
]  # fmt: skip
INTEGERS = [0, 1, 2, 3, 7, -1, -(2**63), 2**63 - 1, 2**64 - 1, 2**31, 65535, 65536, 10**12]
FLOATS = [0.0, -1.0, 1e-9, 1e300, float("inf"), float("nan"), 0.5]
BYTES = [b"", b"\x00" * 15, b"\x00" * 16, b"\xff" * 16, b"\xff" * 32, bytes(range(64))]

_SCALARS: dict[type, list[Any]] = {
    inspect.StrType: NAMES,
    inspect.IntType: INTEGERS,
    inspect.FloatType: FLOATS + INTEGERS,
    inspect.BytesType: BYTES,
    inspect.BoolType: [True, False],
    inspect.NoneType: [None],
}


def value(rng: random.Random, depth: int = 0) -> Any:
    """Anything that msgpack has."""
    kinds = [NAMES, INTEGERS, FLOATS, BYTES, [None, True, False]]
    if depth < 3 and rng.random() < 0.4:
        size = rng.choice([0, 1, 2, 3, 5])
        if rng.random() < 0.5:
            return [value(rng, depth + 1) for _ in range(size)]
        return {rng.choice(NAMES): value(rng, depth + 1) for _ in range(size)}
    return rng.choice(rng.choice(kinds))


def ranges(rng: random.Random) -> Any:
    """What stands where pairs or triples of numbers should."""
    shapes = [0, 1, 2, 2, 2, 3]
    return [[rng.choice(INTEGERS) for _ in range(rng.choice(shapes))] for _ in range(rng.randrange(4))]


def fields(kind: type[msgspec.Struct]) -> list[tuple[str, Any]]:
    """Name and type of a struct's fields."""
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    return [(field.name, field.type) for field in described.fields]


def of_type(rng: random.Random, kind: Any) -> Any:
    """One of that type, which passes the check of the header, or is out of its range."""
    if isinstance(kind, inspect.UnionType):
        return of_type(rng, rng.choice(kind.types))
    if isinstance(kind, inspect.StructType):
        return {name: of_type(rng, inner) for name, inner in fields(kind.cls)}
    if isinstance(kind, inspect.TupleType):
        return [of_type(rng, inner) for inner in kind.item_types]
    if isinstance(kind, inspect.ListType) and isinstance(kind.item_type, inspect.AnyType):
        return ranges(rng) if rng.random() < 0.5 else [value(rng, 1) for _ in range(rng.randrange(4))]
    if isinstance(kind, inspect.ListType):
        return [of_type(rng, kind.item_type) for _ in range(rng.randrange(4))]
    if isinstance(kind, inspect.DictType | inspect.AnyType):
        return {rng.choice(NAMES): value(rng, 1) for _ in range(rng.randrange(4))}
    if isinstance(kind, inspect.LiteralType):
        return rng.choice(kind.values)
    return rng.choice(_SCALARS[type(kind)])


def header(rng: random.Random, command: Command, likely: dict[str, Iterable[Any]], good: float = 0.7) -> dict[str, Any]:
    """All fields, of their types: only what they say is wrong. `likely`: better ones, taken with the chance `good`."""
    found = {}
    for name, kind in fields(HEADERS[command]):
        known = list(likely.get(name, ()))
        found[name] = rng.choice(known) if known and rng.random() < good else of_type(rng, kind)
    return found
