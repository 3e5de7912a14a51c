"""Writes that resolve an unknown outcome: read back, then repeat (docs/formats/metadata.md)."""

from __future__ import annotations

from engine.errors import UnknownOutcomeError
from engine.metadata.store import ANY, Expected, MetadataStore, OutcomeUnknownError

ATTEMPTS_MAX = 8


async def delete(metadata: MetadataStore, key: str, expected: Expected | int = ANY) -> bool:
    """Delete a record; whether it existed. Raises ConflictError, UnknownOutcomeError."""
    unsure = False
    for _ in range(ATTEMPTS_MAX):
        try:
            return await metadata.delete(key, expected) or unsure
        except OutcomeUnknownError:
            unsure = True
            if await metadata.newest.get(key) is None:
                return True
    raise UnknownOutcomeError(f"the metadata store did not say whether {key} was deleted; read it back")


async def put(metadata: MetadataStore, key: str, value: bytes) -> None:
    """Put a record that has only one writer, unconditionally. Raises UnknownOutcomeError."""
    for _ in range(ATTEMPTS_MAX):
        try:
            await metadata.put(key, value)
        except OutcomeUnknownError:
            continue
        return
    raise UnknownOutcomeError(f"the metadata store did not say whether {key} was written; read it back")
