"""What the metadata record of a segment's store: that it exists, and up to which offset it was durable.

A log that was cut, replaced or lost cannot report that itself. Every acknowledged or decided message was durable
before, so a log that ends below one is incomplete (storage/file/continuation.py); and a store, once made, exists until
its deletion, which is recorded first.
"""

from __future__ import annotations

from engine.broker.hosting.ownership import Owner
from engine.errors import CorruptionError
from engine.metadata import keys, unsure
from engine.metadata.store import MetadataStore
from engine.model.identity import Identity
from engine.model.names import SegmentName
from engine.storage.cursor.store import CursorStore
from engine.storage.cursor.visibility import Visibility
from engine.storage.file.continuation import Known
from engine.storage.file.owners import Lease


class Remembered:
    """Records and checks the existence and the extent of segments' stores."""

    def __init__(self, metadata: MetadataStore, cursors: CursorStore) -> None:
        self._metadata = metadata
        self._cursors = cursors

    async def reach(self, name: SegmentName) -> Known:
        """The offset up to which the segment was durable at least. Raises CorruptionError, UnsupportedError."""
        acknowledged, subscription = await self._cursors.reach(name)
        decided = await Visibility.reach(self._metadata, name)
        if decided > acknowledged:
            return Known(decided, "the record of its transactions")
        return Known(acknowledged, f"the cursor of subscription {subscription!r}")

    async def has_store(self, name: SegmentName) -> bool:
        """Whether a store was made and not deleted. False also where that was never recorded.

        A record by an owner before the segment's first one belongs to an earlier segment of the name, written late.
        """
        record = await self._metadata.newest.get(keys.stored(name))
        if record is None:
            return False
        descriptor, _, term = record.value.decode().partition(" ")
        if descriptor != name.descriptor:
            return False  # a later segment of this id, under another range, is another one
        owner = Owner.of(await self._metadata.newest.get(keys.segment(name)))
        return not term or (owner.born is not None and int(term) >= owner.born)

    async def check_there(self, name: SegmentName, directory: str) -> None:
        """The segment has no files: raise CorruptionError unless it never had any, or was deleted."""
        if await self.has_store(name):
            raise CorruptionError(
                f"{name} is missing: {directory} has none of its files, and by the metadata it was created and not "
                "deleted: is the correct disk mounted? If so, restore the directory from a backup"
            )

    async def stored(self, name: SegmentName, lease: Lease | None) -> None:
        """Record that its store exists. `lease`: of its owner. Raises what the metadata store raises."""
        if not await self.has_store(name):
            value = name.descriptor if lease is None else f"{name.descriptor} {lease.term}"
            await unsure.put(self._metadata, keys.stored(name), value.encode())

    async def deleting(self, name: SegmentName) -> None:
        """Record that its store is being deleted: from now on it may be absent."""
        if await self.has_store(name):
            await unsure.delete(self._metadata, keys.stored(name))


def check_identity(files: Identity | None, metadata: Identity | None, where: str) -> None:
    """Raise CorruptionError when log files were written under a later start of the metadata, or under other metadata.

    `files`: the newest that they name, None where they name none. `metadata`: of the store now, None for a new one.
    """
    if files is None:
        return
    if metadata is None or files.store != metadata.store:
        present = "new" if metadata is None else f"{metadata.store:016x}"
        raise CorruptionError(
            f"{where}: log files were written under the metadata {files.store:016x}, and metadata.db is {present}: put "
            "back the correct one with its -wal and metadata.mark, or run `engine inspect --repair`"
        )
    if files.generation > metadata.generation:
        raise CorruptionError(
            f"{where}: log files were written under generation {files.generation} of the metadata, and metadata.db is "
            f"of generation {metadata.generation}, an older copy: put back the newer one with its -wal and "
            "metadata.mark, or run `engine inspect --repair`"
        )
