"""`TransactionCollector`: deletes the records of ended transactions that no participant needs any more.

A header stays for its retention, and then until no operation record is left: participants decide by it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from engine.clock import ForwardSteps
from engine.control.transactions.headers import HeaderRecords, TransactionView
from engine.control.transactions.operations import forget, operations_in
from engine.errors import EngineError, NotFoundError
from engine.metadata import keys, unsure
from engine.metadata.store import ConflictError, MetadataStore, Record
from engine.model.names import SegmentName
from engine.model.transactions import TransactionOperation

log = logging.getLogger(__name__)

_BATCH = 256  # records per page


class TransactionCollector:
    """`settle`: see TransactionCoordinator. Setting a clock forward does not end a retention that began here."""

    def __init__(
        self,
        metadata: MetadataStore,
        headers: HeaderRecords,
        steps: ForwardSteps,
        settle: Callable[[TransactionOperation], Awaitable[None]],
    ) -> None:
        self._metadata = metadata
        self._headers = headers
        self._steps = steps
        self._settle = settle

    async def collect(self, partition: int) -> int:
        """Delete a partition's transactions whose retention has passed and that no participant needs; their number."""
        collected = 0
        async for known in self._headers.over_retention(partition, self._steps):
            collected += await self._collect(known)
        return collected

    async def _collect(self, known: TransactionView) -> bool:
        while found := await self._operation_records(known, _BATCH):
            try:
                await self._settle_all(found)
            except EngineError as e:
                log.info("transaction %s is kept: a participant has not applied it yet: %s", known.id, e)
                return False
            left = await self._operation_records(known, 1)
            if left and left[0].key == found[0].key:
                return False  # a participant did not apply it
        if known.header.name is not None:
            await self._forget_name(known)
        return await unsure.delete(self._metadata, keys.transaction(known.id))

    async def _operation_records(self, known: TransactionView, limit: int) -> list[Record]:
        prefix = f"{keys.transaction_ops(known.id)}/"
        return await self._metadata.newest.list(prefix, keys.prefix_end(prefix), limit)

    async def _settle_all(self, records: Sequence[Record]) -> None:
        """Ask each participant once. Records of one that no longer exists, as of a deleted topic, are deleted here."""
        participants: dict[tuple[SegmentName, str | None], list[Record]] = {}
        operations: dict[tuple[SegmentName, str | None], TransactionOperation] = {}
        for record in records:
            for operation in (found.facts for found in operations_in(record)):
                participant = (operation.segment, operation.subscription)
                operations[participant] = operation
                participants.setdefault(participant, []).append(record)
        for participant, theirs in participants.items():
            try:
                await self._settle(operations[participant])
            except NotFoundError as e:
                log.info("operation records of a transaction are deleted: %s", e)
                for record in theirs:
                    await forget(self._metadata, record.key, partial(_concerns, participant))

    async def _forget_name(self, known: TransactionView) -> None:
        """Delete the name, unless it belongs to a later transaction by now."""
        assert known.header.name is not None
        for owner in dict.fromkeys((known.header.owner, None)):  # None: also where releases to 0.1.0a6 wrote it
            alias = await self._metadata.newest.get(keys.transaction_name(known.header.name, owner))
            if alias is not None and alias.value.decode() == known.id:
                with contextlib.suppress(ConflictError):
                    await unsure.delete(self._metadata, alias.key, alias.stat.version)


def _concerns(participant: tuple[SegmentName, str | None], operation: TransactionOperation) -> bool:
    return (operation.segment, operation.subscription) == participant
