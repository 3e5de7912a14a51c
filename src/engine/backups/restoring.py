"""Restoration: a generation becomes a data directory.

    lock the directory, note which generation it is and the id that its metadata get
    every log file: its parts, checked, under another name; synced, renamed
    metadata.db last: only now an engine opens the directory

It may be cut short at any moment and run again: files that are there are read and compared, and kept if they
agree. The restored directory has an id of its own, in the metadata and in the head of each log file, so that files of
it and of the original cannot be mixed unnoticed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from engine._native.format.crc32c import crc32c
from engine._native.records.rows import Row
from engine.backups.destination import Destination
from engine.backups.generations import existing, load
from engine.backups.manifest import Entry, Manifest
from engine.backups.packs import read_part
from engine.backups.results import Progress, Restored, generation_of
from engine.errors import CorruptionError, InvalidArgumentError, NotFoundError
from engine.metadata import keys
from engine.metadata.image import Image, write_image
from engine.metadata.lockfile import LockFile, lock_file_of
from engine.metadata.store import Record
from engine.metadata.witness import MarkPolicy
from engine.model.backups import METADATA_FILE, RESTORING_FILE
from engine.model.identity import Identity
from engine.storage.disk.config import storage_error
from engine.storage.disk.disk import Disk, make_data_directory
from engine.storage.file.format import BLOCK_SIZE, HEADER_SIZE_MAX, ORIGIN_AT, Header, Origin
from engine.storage.store import SEGMENTS

UNFINISHED = ".new"
_RAW = "metadata.restoring"  # the metadata as they are in the backup
_OWN = (lock_file_of(Path(METADATA_FILE)).name, RESTORING_FILE, RESTORING_FILE + UNFINISHED)


def restore(
    destination: Destination,
    data: Path,
    *,
    generation: str | None,
    disk: Disk,
    rng: random.Random,
    progress: Progress,
) -> Restored:
    """See engine.restore()."""
    if generation is None:
        names = existing(destination)
        if not names:
            raise NotFoundError("the destination holds no complete backup yet")
        generation = names[-1]
    manifest = load(destination, generation)
    make_data_directory(disk, str(data))
    lock = LockFile(lock_file_of(data / METADATA_FILE))
    try:
        job = _Restoration(destination, manifest, data, disk, progress)
        try:
            job.begin(rng)
            return job.run()
        except OSError as e:
            raise storage_error(e, str(data)) from e
    finally:
        lock.release()


class _Restoration:
    """One run."""

    def __init__(
        self, destination: Destination, manifest: Manifest, data: Path, disk: Disk, progress: Progress
    ) -> None:
        self._destination = destination
        self._manifest = manifest
        self._data = data
        self._disk = disk
        self._progress = progress
        self._store = 0  # the id of the restored metadata
        self._kept = 0
        self._folders: dict[str, None] = {}  # in which names are to be made durable

    def begin(self, rng: random.Random) -> None:
        """Find out, or note, what is restored here. Raises InvalidArgumentError."""
        names, note = self._disk.list(str(self._data)), self._data / RESTORING_FILE
        if note.exists():
            said = json.loads(note.read_bytes())
            if said["generation"] != self._manifest.generation:
                raise InvalidArgumentError(
                    f"{self._data} holds a restoration of {said['generation']} that was cut short: go on with that "
                    f"one, or choose an empty directory, got {self._manifest.generation}"
                )
            self._store = int(said["store"], 16)
            return
        if strange := [name for name in names if name not in _OWN]:
            raise InvalidArgumentError(f"{self._data} must be an empty directory, got one with {strange[0]}")
        self._store = rng.getrandbits(64) or 1
        said = {"generation": self._manifest.generation, "store": f"{self._store:016x}"}
        self._write(str(note), [memoryview(json.dumps(said).encode())])
        self._disk.sync_directory(str(self._data))

    def run(self) -> Restored:
        """Restore what is not there yet."""
        manifest, done = self._manifest, 0
        files = [entry for entry in manifest.files if entry.path != METADATA_FILE]
        if not (self._data / METADATA_FILE).exists():  # otherwise all is there but the end
            for entry in files:
                self._restore(entry)
                done += entry.size
                self._progress("restore", done, manifest.size)
            for folder in self._folders:
                self._disk.sync_directory(folder)
            self._restore_metadata()
        self._disk.unlink(str(self._data / RESTORING_FILE))
        self._disk.sync_directory(str(self._data))
        self._progress("restore", manifest.size, manifest.size)
        return Restored(generation_of(manifest), len(manifest.files), self._kept)

    def _path(self, entry: Entry) -> str:
        parts = PurePosixPath(entry.path).parts
        if parts[:1] != (SEGMENTS,) or ".." in parts:
            generation = self._manifest.generation
            raise CorruptionError(f"{generation}: a file must lie in {SEGMENTS}, got {entry.path!r:.200}")
        return str(self._data.joinpath(*parts))

    def _restore(self, entry: Entry) -> None:
        path, head = self._path(entry), self._head(entry)
        if self._is_there(path, entry, head):
            self._kept += 1
        else:
            self._disk.make_directories(path.rpartition("/")[0])
            self._write(path, self._pieces(entry, head))
        self._folders[path.rpartition("/")[0]] = None

    def _write(self, path: str, pieces: list[memoryview] | Iterator[memoryview]) -> None:
        file = self._disk.create(path + UNFINISHED)
        try:
            position = 0
            for piece in pieces:
                file.write([piece], position)
                position += len(piece)
            file.sync()
        finally:
            file.close()
        self._disk.rename(path + UNFINISHED, path)

    def _head(self, entry: Entry) -> bytes:
        """With the id of the restored metadata, where it states that of the original."""
        head, position = bytearray(), 0
        for part in entry.head:
            head += read_part(self._destination, self._manifest, entry, part, position)
            position += part.size
        if not head:
            return b""
        header = Header.unpack(bytes(head[:HEADER_SIZE_MAX]), entry.path)
        origin = header.origin
        if origin is not None and origin.store == int(self._manifest.store, 16):
            mine = Origin(origin.durability, origin.previous_end, self._store)
            head[ORIGIN_AT : ORIGIN_AT + BLOCK_SIZE] = mine.pack(header.opening.salt)
        return bytes(head)

    def _pieces(self, entry: Entry, head: bytes) -> Iterator[memoryview]:
        yield memoryview(head)
        position = len(head)
        for part in (*entry.body, *entry.foot):
            yield read_part(self._destination, self._manifest, entry, part, position)
            position += part.size

    def _is_there(self, path: str, entry: Entry, head: bytes) -> bool:
        """Whether an earlier run has restored the file."""
        found = Path(path)
        if not found.exists() or found.stat().st_size != entry.size:
            return False
        with found.open("rb") as file:
            if file.read(len(head)) != head:
                return False
            return all(crc32c(file.read(part.size)) == part.crc for part in (*entry.body, *entry.foot))

    def _restore_metadata(self) -> None:
        entry = next((each for each in self._manifest.files if each.path == METADATA_FILE), None)
        if entry is None:
            raise CorruptionError(f"{self._manifest.generation} has no {METADATA_FILE}")
        raw, fresh = self._data / _RAW, self._data / (METADATA_FILE + UNFINISHED)
        for path in (raw, fresh, lock_file_of(raw)):
            path.unlink(missing_ok=True)
        self._write(str(raw), self._pieces(entry, b""))
        image = Image(raw, MarkPolicy.IGNORE)
        rows = image.load()
        image.close()
        write_image(fresh, image.version, [self._owned(row) for row in rows])
        written = self._disk.open(str(fresh))
        try:
            written.sync()
        finally:
            written.close()
        for path in (raw, lock_file_of(raw)):
            path.unlink(missing_ok=True)
        self._disk.rename(str(fresh), str(self._data / METADATA_FILE))
        self._disk.sync_directory(str(self._data))

    def _owned(self, row: Row) -> Row:
        """The record of the store's identity with the new id; others as they are."""
        record = row.record
        if record.key != keys.STORE:
            return row
        generation = Identity.from_json(record.value).generation
        value = Identity(self._store, generation).to_json()
        return Row(Record(record.key, value, record.stat), row.indexes)
