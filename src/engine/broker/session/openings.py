"""`Openings`: ids of producers, consumers and sessions that are being opened on a connection, or that it has closed."""

from __future__ import annotations

from engine.errors import InvalidArgumentError


class Openings:
    """The ids of one connection. Loop thread only.

    A client picks its ids, each used once. It may close what is still being opened: then the opening is abandoned, and
    must not take anything from a later one.
    """

    __slots__ = ("_abandoned", "_opening", "closed")

    def __init__(self) -> None:
        self._opening: set[int] = set()
        self._abandoned: set[int] = set()  # of those, closed by the client
        self.closed: set[int] = set()  # producers closed by this end: frames on their way to them are dropped

    def __contains__(self, ident: int) -> bool:
        return ident in self._opening

    def begin(self, ident: int) -> None:
        """Reserve an id. Raises InvalidArgumentError when it is being opened."""
        if ident in self._opening:
            raise in_use(ident)
        self._opening.add(ident)

    def end(self, ident: int) -> None:
        """The opening has ended, either way."""
        self._opening.discard(ident)
        self._abandoned.discard(ident)

    def abandon(self, ident: int) -> None:
        """The client has closed it, open or not."""
        if ident in self._opening:
            self._abandoned.add(ident)

    def wanted(self, ident: int) -> bool:
        """Whether the client has not closed it."""
        return ident not in self._abandoned


def in_use(ident: int) -> InvalidArgumentError:
    """The error for an id that is taken."""
    return InvalidArgumentError(f"an id must not be in use on its connection, got {ident}")
