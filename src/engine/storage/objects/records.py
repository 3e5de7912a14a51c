"""The record of a session's log in the metadata store: `/wal/{session}` (docs/formats/objects.md).

It is written by compare-and-set alone: by its session (R15), and once by what fences it (R5).
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from engine.errors import AlreadyExistsError, CorruptionError, FencedError, NotFoundError, UnknownOutcomeError
from engine.metadata import keys
from engine.metadata.store import ABSENT, ConflictError, MetadataStore, OutcomeUnknownError

ATTEMPTS_MAX = 8


class WalRecord(msgspec.Struct, frozen=True):
    """`broker`: the URL of the session's broker. `trimmed`: what is below is not needed. `fenced`: the end.

    `settled`: shared objects of lower numbers are named in no further record (R18).
    """

    broker: str
    id: str
    trimmed: int = 0
    fenced: int | None = None
    settled: int = 0


class Versioned(NamedTuple):
    """A record as it was read."""

    record: WalRecord
    version: int


async def create(metadata: MetadataStore, session: str, record: WalRecord) -> None:
    """Begin a session under a name that no other has had. Raises AlreadyExistsError, UnknownOutcomeError."""
    for _ in range(ATTEMPTS_MAX):
        try:
            await metadata.put(keys.wal(session), msgspec.json.encode(record), ABSENT)
        except ConflictError:
            if (await read(metadata, session)).record.id != record.id:
                raise AlreadyExistsError(f"there is, or was, a session {session!r}; draw another name") from None
        except OutcomeUnknownError:
            continue  # the id tells whether it was this
        return
    raise UnknownOutcomeError(f"the metadata store did not say whether session {session!r} was created")


async def read(metadata: MetadataStore, session: str) -> Versioned:
    """The record as it is in the store, never from a mirror (R4). Raises NotFoundError, CorruptionError."""
    found = await metadata.newest.get(keys.wal(session))
    if found is None:
        raise NotFoundError(f"there is no session {session!r}")
    try:
        return Versioned(msgspec.json.decode(found.value, type=WalRecord), found.stat.version)
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise CorruptionError(f"{found.key}: {e}") from e


async def read_own(metadata: MetadataStore, session: str) -> Versioned:
    """The record of a session that has not ended, for the session itself. Raises FencedError, CorruptionError."""
    try:
        seen = await read(metadata, session)
    except NotFoundError:
        raise FencedError(f"session {session!r} has ended, and was swept") from None
    if seen.record.fenced is not None:
        raise FencedError(f"session {session!r} was fenced at {seen.record.fenced}")
    return seen


async def replace(metadata: MetadataStore, session: str, seen: Versioned, record: WalRecord) -> bool:
    """Write the record if it is still as it was seen; False: it is not, or it is not known."""
    try:
        await metadata.put(keys.wal(session), msgspec.json.encode(record), seen.version)
    except (ConflictError, OutcomeUnknownError):
        return False
    return True


async def set_trimmed(metadata: MetadataStore, session: str, upto: int) -> None:
    """R15: raise `trimmed` while the session is not fenced. Raises FencedError, UnknownOutcomeError."""
    await _raise(metadata, session, "trimmed", upto)


async def set_settled(metadata: MetadataStore, session: str, upto: int) -> None:
    """R18: raise `settled` while the session is not fenced. Raises FencedError, UnknownOutcomeError."""
    await _raise(metadata, session, "settled", upto)


async def _raise(metadata: MetadataStore, session: str, field: str, upto: int) -> None:
    for _ in range(ATTEMPTS_MAX):
        seen = await read_own(metadata, session)
        if getattr(seen.record, field) >= upto:
            return
        if await replace(metadata, session, seen, msgspec.structs.replace(seen.record, **{field: upto})):
            return
    raise UnknownOutcomeError(f"the metadata store did not confirm that session {session!r} is {field} to {upto}")


async def set_fenced(metadata: MetadataStore, session: str, end: int) -> int:
    """R14: a session that has nothing in flight ends at its next n. The end that is recorded, which may be another's.

    Raises UnknownOutcomeError; NotFoundError: it was ended by another, and swept.
    """
    for _ in range(ATTEMPTS_MAX):
        seen = await read(metadata, session)
        if seen.record.fenced is not None:
            return seen.record.fenced
        if await replace(metadata, session, seen, msgspec.structs.replace(seen.record, fenced=end)):
            return end
    raise UnknownOutcomeError(f"the metadata store did not confirm the end of session {session!r}")
