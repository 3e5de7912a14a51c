"""The fields of commands, as docs/formats/wire.md writes them. Run it to have its lines."""

from __future__ import annotations

from typing import Any

from msgspec import inspect

from engine.wire.commands import HEADERS, Answerable, Header, Part, Request

_NAMES = {
    inspect.IntType: "int",
    inspect.FloatType: "float",
    inspect.StrType: "str",
    inspect.BoolType: "bool",
    inspect.BytesType: "bytes",
    inspect.DictType: "map",
    inspect.AnyType: "map",
}


def type_name(kind: Any) -> str:
    """Of a field's type; None is told by the field's name."""
    if isinstance(kind, inspect.UnionType):
        return " or ".join(sorted(type_name(one) for one in kind.types if not isinstance(one, inspect.NoneType)))
    if isinstance(kind, inspect.StructType):
        return kind.cls.__name__
    if isinstance(kind, inspect.LiteralType):
        return " or ".join(f'"{value}"' for value in kind.values)
    if isinstance(kind, inspect.ListType):
        return "list" if isinstance(kind.item_type, inspect.AnyType) else f"list of {type_name(kind.item_type)}"
    if isinstance(kind, inspect.TupleType):
        return f"[{', '.join(map(type_name, kind.item_types))}]"
    return _NAMES[type(kind)]


def fields(kind: type[Part]) -> str:
    """All of a struct; `?` follows the name of one that may be absent."""
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    required = {"request_id"} if issubclass(kind, Request) else set()
    return ", ".join(
        f"`{field.name}{'' if field.required or field.name in required else '?'}` {type_name(field.type)}"
        for field in described.fields
    )


def answer(kind: type[Header]) -> str | None:
    """The command that answers it, if it is a request."""
    if not issubclass(kind, Answerable):
        return None
    wanted = kind.answer
    return wanted.command.name if wanted is not None and issubclass(wanted, Header) else "SUCCESS"


def result(kind: type[Header]) -> type[Part] | None:
    """What is in the SUCCESS that answers it, if there is something."""
    wanted = getattr(kind, "answer", None)
    return None if wanted is None or issubclass(wanted, Header) else wanted


def parts() -> list[type[Part]]:
    """The maps inside of headers and results, those that are named first come first."""
    found: dict[type[Part], None] = {}

    def look(kind: Any) -> None:
        if isinstance(kind, inspect.StructType):
            found.setdefault(kind.cls)
            for field in kind.fields:
                look(field.type)
        for name in ("types", "item_types"):
            for one in getattr(kind, name, ()):
                look(one)
        if isinstance(kind, inspect.ListType):
            look(kind.item_type)

    tops = [*HEADERS.values(), *(kind for header in HEADERS.values() if (kind := result(header)) is not None)]
    for top in tops:
        look(inspect.type_info(top))
    return [kind for kind in found if kind not in tops]


def lines() -> list[str]:
    """The rows of the tables: of commands, of results, of parts."""
    rows = [f"| {command.name} | {fields(kind)} |" for command, kind in HEADERS.items()]
    rows += [f"| {c.name} | {fields(kind)} |" for c, header in HEADERS.items() if (kind := result(header)) is not None]
    return rows + [f"| {kind.__name__} | {fields(kind)} |" for kind in parts()]


if __name__ == "__main__":
    print(*lines(), sep="\n")
