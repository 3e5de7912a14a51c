"""`SavePace`: saves that nothing waits for are deferred, and begin together, at a bounded rate.

    lazy saves of cursors      ·  · ··    ·  ·  ·         ·  ·
    begin                    |-- interval --|-- interval --|      all that came meanwhile: one write of each cursor,
                                                                  which the metadata store takes as one batch

A save that something waits for begins at once, and takes the deferred one of its record along.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class Deferrable(Protocol):
    """What is saved."""

    def begin(self) -> None:
        """Begin the save that was deferred, unless it was done since."""


class SavePace:
    """Loop thread only. `interval`: seconds between the saves; 0: none is deferred."""

    def __init__(self, interval: float = 0.0) -> None:
        self.interval = interval
        self._deferred: dict[Deferrable, None] = {}

    def defer(self, save: Deferrable) -> None:
        """Begin it within `interval`, with the others."""
        if not self._deferred:
            asyncio.get_running_loop().call_later(self.interval, self._begin)
        self._deferred[save] = None

    def _begin(self) -> None:
        due, self._deferred = self._deferred, {}
        for save in due:
            save.begin()


AT_ONCE = SavePace()
