"""Whether a reader's Avro type resolves a writer's (Avro 1.12, Schema Resolution), decided once per pair of types.

A pair needs other pairs: all of them (the fields of a record, each branch of the writer's union) or one of them (the
branches of the reader's union that may fit). All reachable pairs are assumed to resolve; then pairs that cannot are
removed, and with each the pairs that need it, until nothing changes. The result is the greatest solution, which is the
meaning of types that contain themselves. Time and memory grow with the number of pairs and needs, which is bounded.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from engine.errors import SchemaError
from engine.limits import SCHEMA_STEPS_MAX
from engine.model.avro import AvroType

_PATH_MAX = 12  # steps that an error names

# Other kinds that a reader of each kind takes.
_PROMOTED: dict[str, frozenset[str]] = {
    "long": frozenset({"int"}),
    "float": frozenset({"int", "long"}),
    "double": frozenset({"int", "long", "float"}),
    "bytes": frozenset({"string"}),
    "string": frozenset({"bytes"}),
}
_PROMOTED_TO = {
    kind: tuple(reader for reader, writers in _PROMOTED.items() if kind in writers)
    for kind in ("int", "long", "float", "string", "bytes")
}


@dataclass(slots=True, eq=False)
class _Pair:
    reader: AvroType
    writer: AvroType
    problem: str = ""  # the pair's own reason to fail
    one_of: bool = False  # whether one of the needed pairs suffices
    needs: list[tuple[str, _Pair]] = field(default_factory=list)  # with the step that leads there
    left: int = 0  # needs that may fail before this one does
    holders: list[_Pair] = field(default_factory=list)
    failed: bool = False
    cause: tuple[str, _Pair] | None = None


def why_unresolvable(reader: AvroType, writer: AvroType) -> str | None:
    """Where and why a reader cannot resolve the writer's values; None when it can.

    Raises SchemaError when that takes more than SCHEMA_STEPS_MAX comparisons.
    """
    return _Resolution().why(reader, writer)


class _Resolution:
    def __init__(self) -> None:
        self._pairs: dict[tuple[int, int], _Pair] = {}
        self._open: deque[_Pair] = deque()
        self._steps = 0

    def why(self, reader: AvroType, writer: AvroType) -> str | None:
        root = self._pair(reader, writer)
        failed: deque[_Pair] = deque()
        while self._open:
            pair = self._open.popleft()
            pair.problem = self._expand(pair)
            pair.left = len(pair.needs) if pair.one_of else 1
            if pair.problem:
                pair.failed = True
                failed.append(pair)
        while failed and not root.failed:
            self._fail_holders(failed.popleft(), failed)
        return _explained(root) if root.failed else None

    @staticmethod
    def _fail_holders(pair: _Pair, failed: deque[_Pair]) -> None:
        for holder in pair.holders:  # one entry per need, so that each is counted
            if holder.failed:
                continue
            holder.left -= 1
            if holder.left == 0:
                holder.failed = True
                holder.cause = next((step, need) for step, need in holder.needs if need is pair)
                failed.append(holder)

    def _pair(self, reader: AvroType, writer: AvroType) -> _Pair:
        self._count(1)
        key = (id(reader), id(writer))
        if (known := self._pairs.get(key)) is None:
            known = self._pairs[key] = _Pair(reader, writer)
            self._open.append(known)
        return known

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > SCHEMA_STEPS_MAX:
            raise SchemaError(f"two definitions must be comparable in {SCHEMA_STEPS_MAX:,} steps, these take more")

    def _need(self, pair: _Pair, step: str, reader: AvroType, writer: AvroType) -> None:
        needed = self._pair(reader, writer)
        needed.holders.append(pair)
        pair.needs.append((step, needed))

    def _expand(self, pair: _Pair) -> str:
        """Add the pair's needs; the reason why it fails, "" when that depends on its needs."""
        reader, writer = pair.reader, pair.writer
        if writer.kind == "union":
            for branch in writer.parts:
                self._need(pair, "", reader, branch)
            return ""
        if reader.kind == "union":
            pair.one_of = True
            for branch in self._candidates(reader, writer):
                if not _unfit(branch, writer):
                    self._need(pair, "", branch, writer)
            return "" if pair.needs else f"no branch of the reader's union reads {_called(writer)}"
        if problem := _unfit(reader, writer):
            return problem
        if reader.kind == "record":
            return self._expand_fields(pair)
        if reader.kind in ("array", "map"):
            self._need(pair, "items" if reader.kind == "array" else "values", reader.parts[0], writer.parts[0])
        return ""

    def _candidates(self, reader: AvroType, writer: AvroType) -> list[AvroType]:
        """The branches of a union that may read the writer's type; found by name, not by search."""
        keys: tuple[str, ...] = (f"{writer.kind} {writer.name}", f"{writer.kind} ={writer.full_name}")
        if not writer.name:
            keys = (writer.kind, *_PROMOTED_TO.get(writer.kind, ()))
        found = {id(one): one for key in keys for one in reader.branches.get(key, ())}
        self._count(len(found))
        return list(found.values())

    def _expand_fields(self, pair: _Pair) -> str:
        written = pair.writer.fields_by_name
        self._count(len(pair.reader.fields))
        for one in pair.reader.fields:
            name = next((n for n in (one.name, *one.aliases) if n in written), None)
            if name is not None:
                self._need(pair, one.name, one.type, written[name].type)
            elif not one.has_default:
                return f"the reader's field {one.name!r} has no default, and the writer has no such field"
        return ""


def _unfit(reader: AvroType, writer: AvroType) -> str:
    """Why two types that are not unions cannot match, whatever they contain; "" when they may."""
    if reader.kind != writer.kind:
        fits = writer.kind in _PROMOTED.get(reader.kind, ())
        return "" if fits else f"it reads {_called(reader)}, and {_called(writer)} is written"
    if not reader.name:
        return ""
    if reader.name != writer.name and writer.full_name not in reader.aliases:
        return f"it reads {_called(reader)}, and {_called(writer)} is written"
    if reader.size != writer.size:
        return f"it reads {reader.size} bytes, and {writer.size} are written"
    if reader.kind == "enum" and not reader.has_default and (more := writer.symbols - reader.symbols):
        return f"the reader's enumeration has no symbol {min(more)!r}"
    return ""


def _called(one: AvroType) -> str:
    return f"{one.kind} {one.full_name!r}" if one.name else one.kind


def _explained(pair: _Pair) -> str:
    """The first reason found; every cause failed before its effect, so this ends."""
    steps = []
    while pair.cause is not None:
        step, pair = pair.cause
        if step:
            steps.append(step)
    where = ".".join(["…"] * (len(steps) > _PATH_MAX) + steps[-_PATH_MAX:])
    return f"at {where}: {pair.problem}" if where else pair.problem
