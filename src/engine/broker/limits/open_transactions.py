"""`RoleTransactions`: the open transactions of one role that count for its limit, and those that are being begun."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from engine.broker.limits.present import DIGEST_SIZE, NONE_ELSEWHERE, digest

LOOK_S = 1.0  # between two looks at whether they are still open
LOOKED_AT_MAX = 64  # at once


class _Counted(NamedTuple):
    """An open transaction. `over`: when its timeout has ended it."""

    over: float
    name: str | None


class RoleTransactions:
    """Loop thread only. A name has one open transaction, so it counts once however often it is asked for.

    `others`: those that count at other brokers.
    """

    __slots__ = ("_beginning", "_counted", "_looked", "_numbers", "others")

    def __init__(self) -> None:
        self.others = NONE_ELSEWHERE
        self._counted: dict[int, _Counted] = {}
        self._numbers: dict[str, int] = {}  # by name
        self._looked: float | None = None  # when oldest() had an answer last
        self._beginning: Counter[str | None] = Counter()  # by name; what begun() counts is in both until finished()

    def __bool__(self) -> bool:
        return bool(self._counted or self._beginning)

    def count(self, now: float) -> int:
        """Those that are open, and those that are being begun, here and at other brokers."""
        for number in [number for number, counted in self._counted.items() if counted.over <= now]:
            self.ended(number)
        named = sum(name is not None and name not in self._numbers for name in self._beginning)
        here = len(self._counted) + self._beginning[None] + named
        return here + (self.others.besides(self.shown()) if self.others.most else 0)

    def shown(self) -> list[bytes]:
        """What stands for each of those that are open here: of a name the same, whichever broker it is asked of."""
        found = self._counted.items()
        return [number.to_bytes(DIGEST_SIZE) if c.name is None else digest(c.name) for number, c in found]

    def oldest(self, now: float) -> list[int]:
        """Those that were begun first, to look at whether they are still open; none shortly after the last look."""
        if self._looked is not None and now < self._looked + LOOK_S:
            return []
        self._looked = now
        return list(self._counted)[:LOOKED_AT_MAX]

    def has(self, name: str) -> bool:
        """Whether the transaction of this name is in count()."""
        return name in self._numbers or name in self._beginning or digest(name) in self.others.names

    def begin(self, more: int, name: str | None) -> None:
        """So many are being begun, until finished()."""
        self._beginning[name] += more

    def finished(self, less: int, name: str | None) -> None:
        """Undo begin(): they are begun, or could not be."""
        self._beginning[name] -= less
        if self._beginning[name] <= 0:
            del self._beginning[name]

    def begun(self, number: int, over: float, name: str | None) -> None:
        """It is open until then, or longer if that was said before. It replaces another one of its name."""
        if name is not None:
            if (other := self._numbers.get(name)) is not None and other != number:
                self.ended(other)
            self._numbers[name] = number
        if (known := self._counted.get(number)) is not None:
            over = max(over, known.over)
        self._counted[number] = _Counted(over, name)

    def ended(self, number: int) -> None:
        """It is committed, aborted or over. Idempotent."""
        counted = self._counted.pop(number, None)
        if counted is not None and counted.name is not None:
            del self._numbers[counted.name]
