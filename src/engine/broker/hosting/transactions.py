"""`SegmentTransactions`: transactions' part in opening, closing and deleting segments."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from engine.broker.transactions.headers import TransactionHeaders
from engine.broker.transactions.operations import Operations
from engine.broker.transactions.settling import SettlingRounds
from engine.metadata import keys, unsure
from engine.metadata.store import ConflictError, MetadataStore
from engine.storage.cursor import pieces
from engine.storage.cursor.visibility import Visibility

if TYPE_CHECKING:
    from engine.broker.hosting.ownership import OwnerLease
    from engine.broker.segment.hosted import HostedSegment
    from engine.broker.transactions.buffer import TransactionBuffer
    from engine.model.names import SegmentName


class SegmentTransactions:
    """Recovers, makes and forgets the transaction buffers of segments. One per broker."""

    def __init__(self, metadata: MetadataStore) -> None:
        self.headers = TransactionHeaders(metadata)
        self.operations = Operations(metadata)
        self._rounds = SettlingRounds(self.operations)
        self._metadata = metadata

    async def recover(self, hosted: HostedSegment) -> None:
        """Restore a segment's transactions, before any reader. Raises NotOwnerError, as stores do."""
        visibility = await self._visibility(hosted)
        if hosted.segment.lease is not None:
            hosted.segment.lease.check()  # else nothing would be hidden, and readers would receive undecided messages
        if visibility.marked:
            buffer = self._buffer(hosted, visibility)
            try:
                await buffer.recover()
            except BaseException:
                buffer.abandon()
                raise
            hosted.transactions = buffer

    async def make_buffer(self, hosted: HostedSegment) -> TransactionBuffer:
        """The buffer that hides undecided messages; made before the first one. Raises NotOwnerError, as stores do."""
        hosted.check_open()
        visibility = await self._visibility(hosted)
        await visibility.mark()
        return self._buffer(hosted, visibility)

    def _visibility(self, hosted: HostedSegment) -> Coroutine[Any, Any, Visibility]:
        segment = hosted.segment
        return Visibility.open(self._metadata, hosted.name, lambda: segment.durable_offset, segment.lease)

    def _buffer(self, hosted: HostedSegment, visibility: Visibility) -> TransactionBuffer:
        from engine.broker.transactions.buffer import TransactionBuffer  # with the first transaction

        return TransactionBuffer(
            hosted.segment, hosted.term, visibility, self.headers, self.operations, self._rounds, hosted.notify_readers
        )

    async def forget(self, name: SegmentName, lease: OwnerLease | None) -> None:
        """Drop a deleted segment's transactions, so that a later one of its name begins clean. Raises NotOwnerError."""
        record = await self._metadata.newest.get(keys.visibility(name))
        names = await pieces.names(self._metadata, keys.visibility(name))
        if lease is not None:
            lease.check()
        if record is not None:
            with contextlib.suppress(ConflictError):  # another owner's, by now
                await unsure.delete(self._metadata, record.key, record.stat.version)
                await pieces.delete(self._metadata, record.key, names)
        await self.operations.forget_segment(name)

    async def finish(self, segments: Iterable[HostedSegment]) -> None:
        """Complete transactional messages in flight, if they become durable."""
        buffers = [hosted.transactions for hosted in segments if hosted.transactions is not None]
        await asyncio.gather(*(buffer.close() for buffer in buffers))

    async def close(self, segments: Iterable[HostedSegment]) -> None:
        """Stop without writing: another broker may own the segments. Idempotent."""
        for hosted in segments:
            if hosted.transactions is not None:
                hosted.transactions.abandon()
        await self._rounds.close()
        await self.headers.close()
