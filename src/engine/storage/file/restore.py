"""Restores the log files of former owners from the groups of their write-ahead logs, in an empty directory.

A group has the bytes that its owner wrote into its local file. The header of a file is a group without entries, at the
offset at which the file begins; the groups behind it, up to the next header, are what follows it:

    header of 0-3.log │ group │ group │ header of 90-3.log │ group │ header of 120-5.log │ group │ footer

A file is closed where the segment was sealed: its footer is a group without entries, too, and the closing block follows
from it. What was begun again at once, by the same owner at the same offset, replaces what had no entry.

What is restored is what was acknowledged, and perhaps more behind it; recovery under a lease opens it as on a shared
disk (owners.py). Nothing is synced: the objects are the source, and a directory is emptied before it is restored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from engine._native.format.crc32c import crc32c
from engine.aio.workers import Workers, run
from engine.errors import CorruptionError
from engine.limits import OBJECT_CHUNK_SIZE
from engine.storage.disk.disk import Disk, File
from engine.storage.file.format import BLOCK_SIZE, FOOTER_MAGIC, Closing, Footer, Opening
from engine.storage.file.logfile import file_name
from engine.storage.objects.format import StoredGroup
from engine.storage.objects.ports import ObjectMissingError, ObjectStore
from engine.storage.objects.references import RolledFile


class _Files:
    """The files as far as they are written. Blocking; one call at a time."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._file: File | None = None
        self._opening: Opening | None = None
        self._position = 0
        self.names: list[str] = []

    def empty(self) -> None:
        """R11: a local file of an earlier term is a cache, and never a source."""
        self._disk.make_directories(self._directory)
        for name in self._disk.list(self._directory):
            self._disk.unlink(f"{self._directory}/{name}")

    def add(self, group: StoredGroup, data: memoryview) -> None:
        where = f"{group.segment}: object {group.n}, {group.size} bytes at {group.position}"
        if group.first_offset == group.next_offset and data[:4] == FOOTER_MAGIC.to_bytes(4, "little"):
            self._end(data, where)
            return
        if group.first_offset == group.next_offset:
            self._begin(Opening.unpack(bytes(data[:BLOCK_SIZE]), where), group, len(data), where)
        elif self._opening is None or self._opening.term != group.term:
            raise CorruptionError(f"{where}: entries of term {group.term} without the header of their file")
        assert self._file is not None
        self._file.write([data], self._position)
        self._position += len(data)

    def _begin(self, opening: Opening, group: StoredGroup, size: int, where: str) -> None:
        if (opening.first_offset, opening.term, opening.data_position) != (group.first_offset, group.term, size):
            raise CorruptionError(
                f"{where}: the header of a file is not that of term {group.term} at {group.first_offset}"
            )
        self.close()
        if file_name(opening) not in self.names:
            self.names.append(file_name(opening))
        self._opening, self._position = opening, 0
        self._file = self._disk.create(f"{self._directory}/{self.names[-1]}")

    def _end(self, data: memoryview, where: str) -> None:
        """The segment is sealed here. Where its last file is not restored, that has the footer itself."""
        opening, file = self._opening, self._file
        if opening is None or file is None:
            return
        footer = Footer.unpack(data, opening.salt)
        if footer is None:
            raise CorruptionError(f"{where}: the footer fails its checksum")
        file.write([data], self._position)
        closing = Closing(footer.state, footer.end_offset, self._position, len(data), footer.last_time_ms)
        file.write([closing.pack(opening.salt)], BLOCK_SIZE)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


async def restore(
    disk: Disk, workers: Workers, directory: str, groups: AsyncIterator[tuple[StoredGroup, memoryview]]
) -> list[str]:
    """Empty the directory and write the files; their names, in the order of the log.

    Raises CorruptionError, OSError, and what reading the groups raises; the directory is to be emptied then.
    """
    files = _Files(disk, directory)
    await run(workers, files.empty)
    try:
        async for group, data in groups:
            await run(workers, lambda group=group, data=data: files.add(group, data))  # type: ignore[misc]
    finally:
        await run(workers, files.close)
    return files.names


async def fetch(disk: Disk, workers: Workers, directory: str, store: ObjectStore, named: RolledFile) -> str:
    """Write a named file into the directory; its name. Where nothing follows it, it says how its segment ended.

    Raises CorruptionError, OSError, and what the store raises.
    """
    image = await _piece(store, named, 0, BLOCK_SIZE)
    path = f"{directory}/{file_name(Opening.unpack(bytes(image), named.key))}"
    file = await run(workers, lambda: disk.create(path))
    try:
        crc = position = 0
        while position < named.size:
            data = await _piece(store, named, position, min(position + OBJECT_CHUNK_SIZE, named.size))
            await run(workers, lambda data=data, position=position: file.write([data], position))  # type: ignore[misc]
            crc, position = crc32c(data, crc), position + len(data)
    finally:
        await run(workers, file.close)
    if crc != named.crc:
        raise CorruptionError(f"{named.key}: the object fails its checksum")
    return path.rpartition("/")[2]


async def _piece(store: ObjectStore, named: RolledFile, start: int, end: int) -> memoryview:
    try:
        data = await store.get_range(named.key, named.at + start, named.at + end)
    except ObjectMissingError:
        raise CorruptionError(f"the object {named.key} is missing") from None
    if len(data) < end - start:
        raise CorruptionError(f"{named.key} ends before position {end}")
    return data
