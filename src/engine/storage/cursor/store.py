"""`CursorStore`: the cursors in the metadata store, by segment and subscription."""

from __future__ import annotations

from collections.abc import AsyncIterator

from pyroaring import BitMap64

from engine.errors import NotFoundError, StorageError
from engine.metadata import keys, unsure
from engine.metadata.store import ABSENT, ANY, ConflictError, MetadataStore, OutcomeUnknownError, Record
from engine.model.names import SegmentName
from engine.storage.cursor import pieces
from engine.storage.cursor.cursor import Cursor, owner_of, pack, unpack
from engine.storage.cursor.record import AT_ONCE, SAVES_MAX, SavePace, claim
from engine.storage.file.owners import Lease

_Records = list[tuple[str, Record]]  # inside the class, `list` is a method


class CursorStore:
    """Creates, opens, lists and deletes cursors. `pace`: of their saves."""

    def __init__(self, metadata: MetadataStore, pace: SavePace = AT_ONCE) -> None:
        self._metadata = metadata
        self._pace = pace

    async def open(self, segment: SegmentName, subscription: str, lease: Lease | None = None) -> Cursor:
        """The cursor of a subscription in a segment. Raises NotFoundError, CorruptionError, UnsupportedError.

        Under a lease it is claimed, so that former owners can save it no more. FencedError: a later owner has claimed
        it; StorageError: the metadata store did not confirm.
        """
        key = keys.cursor(segment, subscription)

        def image_of(image: bytes, term: int) -> tuple[int, bytes]:
            position, acked = unpack(image, key)
            return owner_of(image), pack(position, acked, term)

        record = await claim(self._metadata, key, lease, image_of)
        if record is None:
            raise NotFoundError(f"subscription {subscription!r} has no cursor in {segment}")
        position, acked = unpack(record.value, key)
        version, pieces = record.stat.version, record.pieces
        return Cursor(self._metadata, key, position, acked, version, lease, pieces=pieces, pace=self._pace)

    async def create(
        self, segment: SegmentName, subscription: str, position: int, lease: Lease | None = None
    ) -> Cursor:
        """The cursor; created at `position` if there is none. Durable when it returns. Raises as open() does."""
        key = keys.cursor(segment, subscription)
        if lease is not None:
            lease.check()
        for _ in range(SAVES_MAX):
            try:
                await self._metadata.put(key, pack(position, BitMap64()), ABSENT)
            except ConflictError:
                break
            except OutcomeUnknownError:
                continue  # if it was created, the next attempt finds it
            break
        else:
            raise StorageError(f"{key}: the metadata store did not confirm that it was created; try again")
        return await self.open(segment, subscription, lease)

    async def delete(self, segment: SegmentName, subscription: str) -> bool:
        """Delete a cursor; False if there was none."""
        key = keys.cursor(segment, subscription)
        names = await pieces.names(self._metadata, key)
        existed = await unsure.delete(self._metadata, key)
        await pieces.delete(self._metadata, key, names)
        return existed

    async def delete_all(self, segment: SegmentName, lease: Lease | None = None) -> None:
        """Delete all cursors in a segment; under a lease, those that existed while it was held.

        Raises NotOwnerError; StorageError if they are saved meanwhile, time and again.
        """
        for _ in range(SAVES_MAX):
            found = [record for _, record in await self._records(segment)]
            if lease is not None:
                lease.check()  # so all that was found belongs to the owned segment, and not to a later one of its name
            try:
                for record in found:
                    names = await pieces.names(self._metadata, record.key)
                    await unsure.delete(self._metadata, record.key, ANY if lease is None else record.stat.version)
                    await pieces.delete(self._metadata, record.key, names)
            except ConflictError:
                continue
            return
        raise StorageError(f"{segment}: its cursors are being saved; try again")

    async def list(self, segment: SegmentName) -> list[tuple[str, int]]:
        """(subscription, position) of all cursors in a segment."""
        found = await self._records(segment)
        return [(name, unpack(record.value, record.key)[0]) for name, record in found]

    async def _records(self, segment: SegmentName) -> _Records:
        names = [name async for name in self._subscriptions(keys.subscriptions(segment.topic))]
        found = [(name, await pieces.read(self._metadata, keys.cursor(segment, name))) for name in names]
        return [(name, record) for name, record in found if record is not None]

    async def _subscriptions(self, prefix: str) -> AsyncIterator[str]:
        """The subscriptions of a topic with any record. Skips over the records that each has in every segment."""
        start, end = prefix, keys.prefix_end(prefix)
        seen: set[str] = set()  # a key as "a-b" lies between "a" and what is below that
        while found := await self._metadata.newest.list_keys(start, end, 1):
            (key,) = found
            own, below, _ = key[len(prefix) :].partition("/")
            if own not in seen:
                seen.add(own)
                yield keys.decode(own)
            start = keys.prefix_end(f"{prefix}{own}/") if below else f"{key}\0"

    async def reach(self, segment: SegmentName) -> tuple[int, str]:
        """(the largest end of what a subscription has acknowledged, that subscription); (0, "") for none.

        Raises CorruptionError, UnsupportedError.
        """
        furthest = (0, "")
        for name, record in await self._records(segment):
            position, acked = unpack(record.value, record.key)
            furthest = max(furthest, (max(position, acked.max() + 1 if acked else 0), name))
        return furthest

    async def min_position(self, segment: SegmentName, default: int) -> int:
        """The lowest position of all cursors in a segment: everything below is acknowledged by all subscriptions."""
        return min((position for _, position in await self.list(segment)), default=default)
