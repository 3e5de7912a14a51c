"""`WitnessWriter`: lets the active file say itself how far it is durable, once appends pause.

An entry says up to which offset the log was durable when it was appended. So recovery can tell a torn tail from damage
wherever a later entry exists; the last entries of a burst have no later entry. For these the file's header holds a
*witness*, a durable offset, which is written behind the burst:

    last sync of a burst ── WITNESS_S ──► written, not synced: outlives the process
                                              └── WITNESS_SYNC_S ──► a sync is asked for: outlives a power cut

Each sync in between begins the wait anew, so that a busy segment pays nothing: its entries are witnesses enough, and
its syncs cover the block that was written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from engine.storage.commit.active_file import ActiveFile

WITNESS_S = 0.05
WITNESS_SYNC_S = 2.0


class Commits(Protocol):
    """What the witness needs of group commit."""

    @property
    def is_running(self) -> bool:
        """Whether the active file is in use: not being replaced or repaired, and commits were not stopped."""

    def may_write(self) -> bool:
        """The same, and no job has failed, and the lease is held."""

    def sync_witness(self) -> None:
        """Sync the active file soon."""


class WitnessWriter:
    """The timer of one segment's witness."""

    __slots__ = ("_active", "_commits", "_generation", "_timer")

    def __init__(self, active: ActiveFile, commits: Commits, generation: int) -> None:
        self._active = active
        self._commits = commits
        self._generation = generation
        self._timer: asyncio.TimerHandle | None = None

    def synced(self) -> None:
        """Something became durable: see to it that the file says so."""
        if self._timer is None and self._is_behind():
            self._wait_for_quiet(WITNESS_S, self._write)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_behind(self) -> bool:
        file = self._active.file
        if file is None or file.witness is None or file.closing is not None or not self._commits.is_running:
            return False
        return file.witness.durable_offset < self._active.synced_offset

    def _wait_for_quiet(self, delay_s: float, then: Callable[[], None]) -> None:
        synced = self._active.synced_offset

        def check() -> None:
            self._timer = None
            if self._active.synced_offset == synced:
                then()
            else:
                self.synced()

        self._timer = asyncio.get_running_loop().call_later(delay_s, check)

    def _write(self) -> None:
        """Not synced: a sync here could meet the error of an earlier write of data, and use it up unnoticed."""
        file = self._active.file
        if not self._is_behind() or file is None or not self._commits.may_write():
            return
        before, image = file.witness, file.renew_witness(self._active.synced_offset, self._generation)
        written = file.witness
        assert written is not None

        def done(error: BaseException | None) -> None:
            if error is not None:
                if file.witness is written:  # the next one is written to the same place: the other block stays good
                    file.witness = before
            elif self._commits.is_running and file is self._active.file:
                self._wait_for_quiet(WITNESS_SYNC_S, self._commits.sync_witness)

        self._active.write_block(image, written.position, done)
