"""`HandshakesInFlight`: how many handshakes of TLS are under way, by source address, over all ports.

A handshake is under way from accept() on until it has succeeded or failed; a peer that says nothing has one for as long
as the timeout of handshakes. A source has SOURCE_MAX of them at most, and all together ALL_MAX. At the second bound the
source that has the most gives up its oldest for the one that comes, unless that is of the same source: so what fills
the room from a few addresses costs these addresses, and others come in.
"""

from __future__ import annotations

from collections.abc import Callable

SOURCE_MAX = 256
ALL_MAX = 1024  # about 100 KB of memory each, while keys are exchanged


class Handshake:
    """One that is under way. `given_up`: for one of another source."""

    __slots__ = ("give_up", "given_up", "source")

    def __init__(self, source: str, give_up: Callable[[], None]) -> None:
        self.source = source
        self.give_up = give_up
        self.given_up = False


class HandshakesInFlight:
    """Loop thread only. `refused`: how many were hung up on, for one of the bounds."""

    def __init__(self, source_max: int = SOURCE_MAX, all_max: int = ALL_MAX) -> None:
        self.refused = 0
        self._source_max = source_max
        self._all_max = all_max
        self._count = 0
        self._of: dict[str, dict[Handshake, None]] = {}  # by source, the oldest first

    def __len__(self) -> int:
        return self._count

    def begin(self, source: str, give_up: Callable[[], None]) -> Handshake | None:
        """One more; None: it is to be hung up on. `give_up`: hangs up on it later, to make room; it has ended then."""
        own = len(self._of.get(source, ()))
        if own >= self._source_max or (self._count >= self._all_max and not self._make_room(own)):
            self.refused += 1
            return None
        begun = Handshake(source, give_up)
        self._of.setdefault(source, {})[begun] = None
        self._count += 1
        return begun

    def end(self, begun: Handshake) -> None:
        """It has succeeded, failed or been given up. Idempotent."""
        of = self._of.get(begun.source, {})
        if begun not in of:
            return
        del of[begun]
        self._count -= 1
        if not of:
            del self._of[begun.source]

    def _make_room(self, own: int) -> bool:
        """Whether another source, that has more than `own` and the most of all, has given up its oldest."""
        most = max(self._of.values(), key=len)
        if len(most) <= own:
            return False
        oldest = next(iter(most))
        oldest.given_up = True
        self.end(oldest)
        self.refused += 1
        oldest.give_up()
        return True
