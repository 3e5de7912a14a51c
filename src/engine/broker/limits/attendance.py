"""`Crowd`: how many producers, or consumers, are attached, of each topic, namespace, tenant and role."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from engine.broker.limits.present import NONE_ELSEWHERE, Others

if TYPE_CHECKING:
    from engine.broker.limits.throttle import Throttle


class Crowd:
    """Digests of names by scope: one that is attached to several segments of a topic counts once. Loop thread only.

    Readers and queue consumers of one name may be attached to the same segment in any number. Each of them counts: the
    second one there as if it had another name, and so on (`copy`).

    `others`: by "what\\nscope", what is attached at the other brokers. `version`: another one when one came or left.
    """

    __slots__ = ("_copies", "_names", "others", "version", "what")

    def __init__(self, what: str) -> None:
        self.what = what
        self.others: Mapping[str, Others] = {}
        self.version = 0
        self._names: dict[str, Counter[bytes]] = {}
        self._copies: dict[str, dict[int, Any]] = {}  # by name at a segment, the connection of each number

    def __iter__(self) -> Iterator[tuple[str, Counter[bytes]]]:
        """(scope, digests) of those that are attached here."""
        return iter(self._names.items())

    def count(self, scope: str, beside: bytes) -> int:
        """How many others than `beside` there are; -1: it is there already, so that it does not count."""
        here = self._names.get(scope, Counter())
        others = self.others.get(f"{self.what}\n{scope}", NONE_ELSEWHERE)
        if beside in here or beside in others.names:
            return -1
        return len(here) + others.besides(here)

    def copy(self, where: str) -> int:
        """The number of one more that attaches with this name at a segment, from 0."""
        taken = self._copies.get(where, {})
        return next(number for number in range(len(taken) + 1) if number not in taken)

    def alike(self, where: str) -> list[Any]:
        """The connections of those of this name at a segment."""
        return list(self._copies.get(where, {}).values())

    def take_copy(self, where: str, number: int, peer: Any) -> None:
        """It has that number until free_copy()."""
        self._copies.setdefault(where, {})[number] = peer

    def free_copy(self, where: str, number: int) -> None:
        """It is attached no more."""
        taken = self._copies[where]
        del taken[number]
        if not taken:
            del self._copies[where]

    def enter(self, scopes: tuple[str, ...], name: bytes) -> None:
        """It is attached once more."""
        self.version += 1
        for scope in scopes:
            self._names.setdefault(scope, Counter())[name] += 1

    def leave(self, scopes: tuple[str, ...], name: bytes) -> None:
        """Undo enter()."""
        self.version += 1
        for scope in scopes:
            names = self._names[scope]
            names[name] -= 1
            if names[name] <= 0:
                del names[name]
                if not names:
                    del self._names[scope]


class Attendance:
    """One that is attached, as it counts, with its credit; until close()."""

    __slots__ = ("_copy", "_crowd", "_name", "_scopes", "throttle")

    def __init__(self, crowd: Crowd, scopes: tuple[str, ...], name: bytes, throttle: Throttle | None) -> None:
        self._crowd = crowd
        self._scopes = scopes
        self._name = name
        self._copy: tuple[str, int] | None = None
        self.throttle = throttle
        crowd.enter(scopes, name)

    def is_copy(self, where: str, number: int, peer: Any) -> None:
        """Others may have the same name at the same segment."""
        self._copy = where, number
        self._crowd.take_copy(where, number, peer)

    def close(self) -> None:
        """It is attached no more. Idempotent."""
        scopes, self._scopes = self._scopes, ()
        if scopes:
            self._crowd.leave(scopes, self._name)
            if self._copy is not None:
                self._crowd.free_copy(*self._copy)
        if self.throttle is not None:
            self.throttle.close()
