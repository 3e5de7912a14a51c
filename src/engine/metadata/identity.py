"""Each start of a broker on a metadata store has a generation of its own, larger than all before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import UnknownOutcomeError
from engine.metadata import keys
from engine.metadata.store import ABSENT, ConflictError, MetadataStore, OutcomeUnknownError
from engine.model.identity import Identity

if TYPE_CHECKING:
    import random

ATTEMPTS_MAX = 64  # brokers that start at the same moment take one another's turn


async def load_identity(metadata: MetadataStore) -> Identity | None:
    """Of the broker that started last; None where none has. Raises CorruptionError."""
    record = await metadata.get(keys.STORE)
    return None if record is None else Identity.from_json(record.value)


async def raise_generation(metadata: MetadataStore, rng: random.Random) -> Identity:
    """The identity of a broker that starts now: durable, and of no other broker. `rng` draws the store's number once.

    A write whose outcome is not known is made again: a generation may be left out, none is given twice.
    Raises CorruptionError, UnknownOutcomeError, and what the metadata store raises.
    """
    for _ in range(ATTEMPTS_MAX):
        record = await metadata.get(keys.STORE)
        if record is None:
            mine = Identity(rng.getrandbits(64) or 1, 1)
        else:
            last = Identity.from_json(record.value)
            mine = Identity(last.store, last.generation + 1)
        try:
            await metadata.put(keys.STORE, mine.to_json(), ABSENT if record is None else record.stat.version)
        except (ConflictError, OutcomeUnknownError):
            continue
        return mine
    raise UnknownOutcomeError(f"{keys.STORE} changes all the time, or its outcome stays unknown; start again")
