"""Evaluates writes in order on what is known of their keys, and gathers those that share keys into groups.

A *unit* is what must be done together, usually one call. Units of a batch that touch a common key are a *group*: its
transaction demands that all its keys are as they were known, and writes each key once, in its last state (etcd takes a
key once a transaction, and compares before it writes). Groups are independent of each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.errors import AlreadyClosedError
from engine.metadata.etcd.known import ABSENT_KEY, KeyState, Known
from engine.metadata.etcd.layout import CARRIED_SIZE_MAX, Layout, Stored, version_of
from engine.metadata.store import (
    ABSENT,
    ANY,
    Append,
    ConflictError,
    Delete,
    Expected,
    Indexes,
    Put,
    Record,
    Session,
    Stat,
)
from engine.metadata.table import NO_INDEXES, each_key

Write = Put | Delete | Append
Made = Callable[[int], Any]  # the outcome of a write, when the revision of its transaction is known

ROW_COST = 64


@dataclass(eq=False, slots=True)
class Change:
    """One change of a record; `value` is None where it is deleted. `position`: among those of the transaction."""

    key: str
    value: bytes | None
    indexes: Indexes
    created_ms: int
    modified_ms: int
    session: int | None
    position: int = 0

    def stat(self, revision: int) -> Stat:
        return Stat(version_of(revision, self.position), self.created_ms, self.modified_ms, self.session)

    def stored(self) -> Stored:
        return Stored(self.position, self.created_ms, self.modified_ms, dict(self.indexes), self.value)

    def row(self, *, carries: bool) -> Stored:
        """For its rows in indexes, with its value or without."""
        return Stored(self.position, self.created_ms, self.modified_ms, {}, self.value if carries else None)

    def state(self, revision: int) -> KeyState:
        """What is known of its key behind it."""
        if self.value is None:
            return ABSENT_KEY
        return KeyState(revision, self.position, self.created_ms, self.indexes)


@dataclass(eq=False, slots=True)
class Unit:
    """Writes that are done together. `result`: of their outcomes, which are values or errors, to the caller's answer.

    `due`: when its caller stops waiting, by the clock.
    """

    writes: Sequence[Write]
    result: Callable[[list[Any]], Any]
    future: asyncio.Future[Any]
    due: float
    together: bool = False  # none of them is done where one is refused
    tries: int = 0

    @property
    def size(self) -> int:
        """About the bytes that it sends."""
        return sum(map(_size, self.writes))

    @property
    def sessions(self) -> list[Session]:
        return [write.session for write in self.writes if isinstance(write, Put) and write.session is not None]

    def finish(self, outcomes: list[Any]) -> None:
        if self.future.done():
            return  # the caller was cancelled
        try:
            self.future.set_result(self.result(outcomes))
        except (ConflictError, AlreadyClosedError) as e:
            self.future.set_exception(e)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def _size(write: Write) -> int:
    if isinstance(write, Delete):
        return 2 * ROW_COST + len(write.key)
    name = write.key if isinstance(write, Put) else write.prefix
    rows = [(index, one) for index, those in (write.indexes or NO_INDEXES).items() for one in each_key(those)]
    value, carried = len(write.value), len(write.value) * len(rows)
    keys = sum(2 * ROW_COST + len(index) + 2 * len(one) + len(name) for index, one in rows)
    if isinstance(write, Put) and write.also:
        keys += sum(2 * (ROW_COST + len(key)) for key in write.also)
    return 2 * ROW_COST + len(name) + value + keys + (carried if carried <= CARRIED_SIZE_MAX else 0)


@dataclass(eq=False, slots=True)
class Evaluated:
    """A unit, what it makes of what is known, and the keys that it rests on."""

    unit: Unit
    outcomes: list[Made | Exception]
    keys: dict[bytes, None]
    changes: list[tuple[bytes, Change | int]]

    def finish(self, revision: int) -> None:
        self.unit.finish([one if isinstance(one, Exception) else one(revision) for one in self.outcomes])


@dataclass(eq=False, slots=True)
class Group:
    """Units with common keys. `before`: the states that it demands. `last`: the last change of each key that it
    changes, in order; an int is the value of a counter.
    """

    units: list[Evaluated] = field(default_factory=list)
    before: dict[bytes, KeyState] = field(default_factory=dict)
    last: dict[bytes, Change | int] = field(default_factory=dict)


class View:
    """The states of keys as a batch sees them: known ones, and the changes of the units before."""

    def __init__(
        self, known: Known, layout: Layout, now_ms: int, version: int, over: Callable[[Session], bool]
    ) -> None:
        """`version`: that new sequences must pass. `over`: whether a session has ended."""
        self.missing: set[bytes] = set()  # keys that must be read before the units can be evaluated
        self._known = known
        self._layout = layout
        self._now_ms = now_ms
        self._version = version
        self._over = over
        self.before: dict[bytes, KeyState] = {}
        self._now: dict[bytes, Change | int] = {}
        self._keys: dict[bytes, None] = {}
        self._staged: list[tuple[bytes, Change | int]] = []

    def evaluate(self, unit: Unit) -> Evaluated:
        """A unit behind those before it."""
        self._keys, self._staged = {}, []
        held = dict(self._now) if unit.together else {}
        outcomes: list[Made | Exception] = []
        for write in unit.writes:
            try:
                outcomes.append(self._one(write))
            except (ConflictError, AlreadyClosedError) as e:
                outcomes.append(e)
                if unit.together:
                    self._now, self._staged = held, []
                    break
        return Evaluated(unit, outcomes, self._keys, self._staged)

    def _one(self, write: Write) -> Made:
        if isinstance(write, Append):
            return self._append(write)
        key = self._layout.record(write.key)
        state = self._at(key, assumed=write.expected is ABSENT)
        now = self._now.get(key)
        _check(write.key, state, now, write.expected)
        if isinstance(write, Put):
            self._check_also(write)
        if isinstance(write, Delete):
            existed = state.revision > 0 if now is None else isinstance(now, Change) and now.value is not None
            if existed:
                self._stage(key, Change(write.key, None, NO_INDEXES, 0, self._now_ms, None))
            return lambda revision: existed
        session = write.session
        if session is not None and self._over(session):
            raise AlreadyClosedError(f"the metadata session {session.id} has ended; {write.key!r} was not written")
        if isinstance(now, Change):
            created_ms = now.created_ms if now.value is not None else self._now_ms
        else:
            created_ms = state.created_ms if state.revision else self._now_ms
        lease = None if session is None else session.id
        change = Change(write.key, write.value, write.indexes or NO_INDEXES, created_ms, self._now_ms, lease)
        self._stage(key, change)
        return change.stat

    def _check_also(self, put: Put) -> None:
        """The keys that it demands besides its own belong to its group, which etcd compares as a whole."""
        for name, expected in (put.also or {}).items():
            key = self._layout.record(name)
            state = self._at(key, assumed=expected is ABSENT)
            _check(name, state, self._now.get(key), expected)

    def _append(self, append: Append) -> Made:
        counter = self._layout.sequence(append.prefix)
        last = self._at(counter).last
        staged = self._now.get(counter)
        sequence = max(last, staged if isinstance(staged, int) else 0, self._version) + 1
        while True:
            name = f"{append.prefix}/{sequence:020d}"
            key = self._layout.record(name)
            now = self._now.get(key)
            if now is None and not self._at(key, assumed=True).revision:
                break
            sequence += 1
        indexes = append.indexes or NO_INDEXES
        change = Change(name, append.value, indexes, self._now_ms, self._now_ms, None)
        self._stage(key, change)
        self._stage(counter, sequence)
        return lambda revision: Record(name, append.value, change.stat(revision))

    def _at(self, key: bytes, *, assumed: bool = False) -> KeyState:
        """The state behind which the batch begins. `assumed`: a key that is not known counts as absent."""
        self._keys[key] = None
        state = self.before.get(key)
        if state is None:
            state = self._known.get(key)
            if state is None:
                state = ABSENT_KEY
                if not assumed:
                    self.missing.add(key)
            self.before[key] = state
        return state

    def _stage(self, key: bytes, change: Change | int) -> None:
        self._now[key] = change
        self._staged.append((key, change))


def _check(key: str, state: KeyState, now: Change | int | None, expected: Expected | int) -> None:
    """Raise ConflictError unless the key's present state is the expected one."""
    if expected is ANY:
        return
    if isinstance(now, Change):
        present, at = now.value is not None, "changed before it in the same call or transaction"
        met = expected is ABSENT and not present
    else:
        present, at = state.revision > 0, f"at version {state.version}"
        met = not present if expected is ABSENT else present and state.version == expected
    if not met:
        demand = "absent" if expected is ABSENT else f"at version {expected}"
        raise ConflictError(f"{key!r} is {at if present else 'absent'}; the write demands it {demand}")


def grouped(evaluated: Sequence[Evaluated], view: View) -> list[Group]:
    """Groups of the units that share keys, in the order of their first units."""
    group_of: dict[bytes, Group] = {}
    groups: dict[Group, None] = {}
    for each in evaluated:
        met = dict.fromkeys(group_of[key] for key in each.keys if key in group_of)
        group = next(iter(met), None) or Group()
        groups[group] = None
        for other in [other for other in met if other is not group]:
            del groups[other]
            group.units += other.units
            for key in other.before:
                group_of[key] = group
            group.before |= other.before
            for key, change in other.last.items():
                group.last[key] = change
        group.units.append(each)
        for key in each.keys:
            group_of[key] = group
            group.before[key] = view.before[key]
        for key, change in each.changes:
            group.last.pop(key, None)  # behind those before it
            group.last[key] = change
    return list(groups)
