"""The generation of a broker's start on a metadata store: larger than all earlier ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import UnknownOutcomeError
from engine.metadata import keys
from engine.metadata.store import ABSENT, ConflictError, MetadataStore, OutcomeUnknownError
from engine.model.identity import Identity

if TYPE_CHECKING:
    import random

ATTEMPTS_MAX = 64  # brokers that start at the same moment conflict with each other


async def load_identity(metadata: MetadataStore) -> Identity | None:
    """The identity of the last start; None before the first. Raises CorruptionError."""
    record = await metadata.newest.get(keys.STORE)
    return None if record is None else Identity.from_json(record.value)


async def raise_generation(metadata: MetadataStore, rng: random.Random) -> Identity:
    """Write and return the identity of this start: durable, and unique. `rng` draws the store's id, once per store.

    A write with an unknown outcome is repeated: a generation may be skipped, but is never given twice.
    Raises CorruptionError, UnknownOutcomeError, and the errors of the metadata store.
    """
    for _ in range(ATTEMPTS_MAX):
        record = await metadata.newest.get(keys.STORE)
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
    raise UnknownOutcomeError(f"{keys.STORE} keeps changing, or the outcome of its write stays unknown; start again")
