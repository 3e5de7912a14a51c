"""`Crowd`: how many producers, or consumers, are attached, of each topic, namespace, tenant and role."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from engine.broker.limits.present import NONE_ELSEWHERE, Others

if TYPE_CHECKING:
    from engine.broker.limits.throttle import Throttle


class Crowd:
    """Digests of names by scope: one that is attached to several segments of a topic counts once. Loop thread only.

    `others`: by "what\\nscope", what is attached at the other brokers. `version`: another one when one came or left.
    """

    __slots__ = ("_names", "others", "version", "what")

    def __init__(self, what: str) -> None:
        self.what = what
        self.others: Mapping[str, Others] = {}
        self.version = 0
        self._names: dict[str, Counter[bytes]] = {}

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

    __slots__ = ("_crowd", "_name", "_scopes", "throttle")

    def __init__(self, crowd: Crowd, scopes: tuple[str, ...], name: bytes, throttle: Throttle | None) -> None:
        self._crowd = crowd
        self._scopes = scopes
        self._name = name
        self.throttle = throttle
        crowd.enter(scopes, name)

    def close(self) -> None:
        """It is attached no more. Idempotent."""
        scopes, self._scopes = self._scopes, ()
        if scopes:
            self._crowd.leave(scopes, self._name)
        if self.throttle is not None:
            self.throttle.close()
