"""A metadata store, a clock, and brokers that coordinate transactions."""

from __future__ import annotations

import random

from engine.control.transactions.coordinator import TransactionCoordinator
from engine.errors import NotOwnerError
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.model.names import SegmentName
from engine.model.transactions import (
    PARTITIONS,
    OperationKind,
    TransactionOperation,
    TransactionState,
    id_text,
)
from engine.testing.clock import FakeClock
from engine.testing.metadata import FaultyMetadataStore

OPEN, COMMITTED, ABORTED = TransactionState.OPEN, TransactionState.COMMITTED, TransactionState.ABORTED
SEGMENT = SegmentName.parse("segment://public/default/orders/0000-ffff-0")
WRITE = TransactionOperation(OperationKind.WRITE, SEGMENT, ((0, 4),))


class World:
    """A store, a clock, and brokers that coordinate."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryMetadataStore(self.clock)
        self.faulty = FaultyMetadataStore(self.store, random.Random(5))
        self.rng = random.Random(1)
        self.absent = False  # the participants

    def coordinator(self) -> TransactionCoordinator:
        """A broker's: it knows what the store knows."""
        return TransactionCoordinator(self.faulty, self.clock, self.rng, self.settle)

    async def operate(self, number: int) -> None:
        """A participant has taken a write."""
        await self.store.put_sequence(keys.transaction_ops(id_text(number)), WRITE.to_json())

    async def settle(self, operation: TransactionOperation) -> None:
        """The participants apply what was decided, and remove their records."""
        if self.absent:
            raise NotOwnerError("no broker serves the segment now")
        assert operation == WRITE
        await self.store.delete_range("/txn-op/", keys.prefix_end("/txn-op/"))

    async def sweep(self, coordinator: TransactionCoordinator) -> tuple[int, int]:
        """(aborted, collected), over all partitions."""
        return await coordinator.abort_expired(range(PARTITIONS)), await coordinator.collect(range(PARTITIONS))
