"""`RangeDeletion`: deletes all records of a range, with their index rows, in one transaction.

It demands that none of them has changed since they were read. Records that were deleted meanwhile do no harm: etcd
counts what it deletes.
"""

from __future__ import annotations

import asyncio

from engine.errors import TimeoutError
from engine.metadata.etcd import messages as m
from engine.metadata.etcd.cluster import Cluster
from engine.metadata.etcd.known import Known
from engine.metadata.etcd.layout import Layout, decoded, version_of
from engine.metadata.etcd.numbered import Numbered
from engine.metadata.etcd.ranges import pages
from engine.metadata.etcd.requests import delete_op, in_runs, nested

_WIDTH, _RUN = 60, 60
ROWS_MAX = _WIDTH * _RUN - 2 * _RUN  # index rows that one transaction deletes
ROWS_SIZE_MAX = 1024 * 1024


class RangeDeletion:
    """One delete_range(). Where there are many thousand index rows, several transactions delete parts of the range."""

    def __init__(self, start: str, end: str, future: asyncio.Future[int], due: float) -> None:
        self.start = start
        self.end = end
        self.future = future
        self.due = due
        self.version = self.revision = 0  # of the last transaction that has deleted something

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    async def run(self, cluster: Cluster, layout: Layout, numbered: Numbered, known: Known, due: float) -> int:
        """The number deleted. Raises as Numbered.do(); TimeoutError where others write there all the time."""
        count, start = 0, self.start
        while start < self.end:
            revision, rows, upto = await self._rows(cluster, layout, known, start, due)
            first, last = layout.record_range(start, upto)
            unchanged = m.Compare(result=m.LESS, target=m.MOD, key=first, range_end=last, mod_revision=revision + 1)
            ops = in_runs([delete_op(row) for row in rows], _WIDTH - 1, _RUN)
            part = nested([delete_op(first, last), *ops], [unchanged])
            at, (answer,) = await numbered.do([part], due)
            if answer.succeeded:
                deleted = answer.responses[0].response_delete_range.deleted
                if deleted:
                    count, self.revision, self.version = count + deleted, at, version_of(at, deleted - 1)
                start = upto
            elif cluster.overdue(due):
                raise TimeoutError(f"records from {self.start!r} to {self.end!r} were changed all the time")
        return count

    async def _rows(
        self, cluster: Cluster, layout: Layout, known: Known, start: str, due: float
    ) -> tuple[int, list[bytes], str]:
        """(a revision, the index rows of the records from `start` on at that revision, the end of these records)."""
        rows: list[bytes] = []
        revision = size = 0
        first, last = layout.record_range(start, self.end)
        async for found, at in pages(cluster, first, last, due=due):
            revision = at
            for kv in found:
                key = layout.key_of(kv.key)
                these = layout.rows(key, decoded(kv, key).indexes)
                size += sum(map(len, these))
                if rows and (len(rows) + len(these) > ROWS_MAX or size > ROWS_SIZE_MAX):
                    return revision, rows, key
                rows += these
                known.forget(kv.key)
        return revision, rows, self.end
