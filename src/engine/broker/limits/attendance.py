"""`Crowd`: how many producers, or consumers, are attached here, of each topic, namespace, tenant and role."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.broker.limits.throttle import Throttle


class Crowd:
    """Names by scope: one that is attached to several segments of a topic counts once. Loop thread only."""

    __slots__ = ("_names", "what")

    def __init__(self, what: str) -> None:
        self.what = what
        self._names: dict[str, Counter[str]] = {}

    def count(self, scope: str, beside: str) -> int:
        """How many others than `beside` there are; -1: it is there already, so that it does not count."""
        names = self._names.get(scope)
        if names is None:
            return 0
        return -1 if beside in names else len(names)

    def enter(self, scopes: tuple[str, ...], name: str) -> None:
        """It is attached once more."""
        for scope in scopes:
            self._names.setdefault(scope, Counter())[name] += 1

    def leave(self, scopes: tuple[str, ...], name: str) -> None:
        """Undo enter()."""
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

    def __init__(self, crowd: Crowd, scopes: tuple[str, ...], name: str, throttle: Throttle | None) -> None:
        self._crowd = crowd
        self._scopes = scopes
        self._name = name
        self.throttle = throttle
        crowd.enter(scopes, name)

    def close(self) -> None:
        """It is attached no more. Idempotent."""
        scopes, self._scopes = self._scopes, ()
        self._crowd.leave(scopes, self._name)
        if self.throttle is not None:
            self.throttle.close()
