"""`Trimmer`: deletes what is not needed of the own session's log (R15)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from engine.metadata.store import MetadataStore
from engine.storage.objects import records
from engine.storage.objects.format import LogName
from engine.storage.objects.ports import ObjectStore
from engine.storage.objects.references import SegmentObjects

GRACE_S = 600.0  # other readers may have begun to read
DELETED_AT_ONCE = 1_000


def needed(records: Iterable[SegmentObjects], session: str, acknowledged: int) -> int:
    """R15: up to where a session's log may be trimmed, by all records that refer to it, whichever broker owns them.

    `acknowledged`: as it was before the records were read: a reference that is added later begins there or behind.
    """
    starts = [starts[session] for each in records if session in (starts := each.starts())]
    return min([acknowledged, *starts])


class Trimmer:
    """Loop thread only. The record says first up to where the log is not needed; deletion follows after a grace.

    Names are deleted in order, and only below `trimmed`, where a FENCE means nothing (R5). Others stay (R6).
    """

    def __init__(self, store: ObjectStore, metadata: MetadataStore, log: LogName, grace_s: float = GRACE_S) -> None:
        self._store = store
        self._metadata = metadata
        self._log = log
        self._grace_s = grace_s
        self._deleted = 0  # all n below
        self._due: deque[tuple[float, int]] = deque()  # (when, up to which n) to delete, both rising

    async def trim(self, upto: int, acknowledged: int) -> None:
        """Nothing below `upto` is needed any more, of what is acknowledged. FencedError, UnknownOutcomeError."""
        upto = min(upto, acknowledged)
        if upto <= (self._due[-1][1] if self._due else self._deleted):
            return
        await records.set_trimmed(self._metadata, self._log.session, upto)
        self._due.append((asyncio.get_running_loop().time() + self._grace_s, upto))

    async def delete_due(self) -> int:
        """Delete what was trimmed long enough ago; how many objects. Raises what the store raises: call it again."""
        before, now = self._deleted, asyncio.get_running_loop().time()
        while self._due and self._due[0][0] <= now:
            upto = self._due[0][1]
            while self._deleted < upto:
                some = range(self._deleted, min(upto, self._deleted + DELETED_AT_ONCE))
                await self._store.delete([self._log.object(n) for n in some])
                self._deleted = some.stop
            self._due.popleft()
        return self._deleted - before
