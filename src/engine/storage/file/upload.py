"""Uploads a rolled log file, as it is on the disk, as one object (R13 of docs/formats/objects.md).

    check    every entry is read and checked up to the file's end: a damaged file must not take the place of the log
    close    a file of a former owner, restored from its log, gets its footer here: no other process writes it
    upload   header, entries, footer; in parts if it is large, under a name of its own, at the pace of the caller
    look     the object's size and its last bytes are those of the file

What the record is to say of the object is the outcome. Small files of several segments may become one object (R18),
one behind the other, by one request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple

from engine._native.format.crc32c import crc32c
from engine._native.serve import log
from engine.aio.workers import Workers, run
from engine.errors import CorruptionError, EngineError, UnknownOutcomeError
from engine.limits import KIB, MIB
from engine.storage.disk.config import storage_error
from engine.storage.disk.disk import Disk, File
from engine.storage.file.format import Closing, State
from engine.storage.file.logfile import LogFile, SyncFailed, read_snapshot
from engine.storage.file.recovery import feed_file
from engine.storage.objects.ports import ObjectExistsError, ObjectStore
from engine.storage.objects.references import RolledFile

Pace = Callable[[], Awaitable[None]]

PIECE_SIZE = 8 * MIB
LOOK_SIZE = 4 * KIB


class _Ready(NamedTuple):
    handle: File
    closing: Closing
    size: int  # of the whole file


async def upload(
    store: ObjectStore,
    name: str,
    disk: Disk,
    workers: Workers,
    file: LogFile,
    following: LogFile | None,
    pace: Pace,
) -> RolledFile:
    """What the segment's record is to say of the object. `following`: the next file of the log; None: there is none,
    and the file was closed. `pace`: awaited before each piece of a large file.

    Raises CorruptionError: the file is damaged; UnknownOutcomeError: the object may be there or not, take another name;
    StorageError; and what the store raises.
    """
    try:
        ready = await run(workers, lambda: _prepare(disk, file, following))
    except SyncFailed as e:
        raise storage_error(e.error, file.path) from e
    except OSError as e:
        raise storage_error(e, file.path) from e
    try:
        pieces = _Pieces(ready.handle, ready.size)
        await _put(store, name, pieces, workers, pace)
        if pieces.error is not None:
            raise UnknownOutcomeError(f"{file.path} could not be read: {pieces.error}")
        tail = await store.get_tail(name, LOOK_SIZE)
        if tail.size != ready.size or bytes(tail.data) != pieces.last[-LOOK_SIZE:]:
            raise UnknownOutcomeError(f"the object {name} has {tail.size} bytes, and is not the file of {ready.size}")
    finally:
        ready.handle.close()
    closing = ready.closing
    return RolledFile(file.first_offset, closing.end_offset, ready.size, pieces.crc, name, closing.last_time_ms)


async def upload_together(
    store: ObjectStore, name: str, disk: Disk, workers: Workers, files: Sequence[tuple[LogFile, LogFile | None]]
) -> list[RolledFile | EngineError]:
    """One object of small files, each with the next file of its log; of each what its segment's record is to say, or
    what upload() would raise of it: the others go without it.

    Raises what the store raises, and UnknownOutcomeError: the object may be there or not, take another name.
    """
    read = [await _read(disk, workers, file, following) for file, following in files]
    images = [each.image for each in read if isinstance(each, _Image)]
    if images:
        await _put_new(store, name, images)
        size, last = sum(map(len, images)), images[-1][-LOOK_SIZE:]
        tail = await store.get_tail(name, len(last))
        if tail.size != size or bytes(tail.data) != last:
            raise UnknownOutcomeError(f"the object {name} has {tail.size} bytes, and is not the files of {size}")
    found: list[RolledFile | EngineError] = []
    at = 0
    for (file, _), each in zip(files, read, strict=True):
        if isinstance(each, _Image):
            size, closing = len(each.image), each.closing
            crc = crc32c(each.image)
            found.append(RolledFile(file.first_offset, closing.end_offset, size, crc, name, closing.last_time_ms, at))
            at += size
        else:
            found.append(each)
    return found


class _Image(NamedTuple):
    """A whole file."""

    image: bytearray
    closing: Closing


async def _read(disk: Disk, workers: Workers, file: LogFile, following: LogFile | None) -> _Image | EngineError:
    def read() -> _Image:
        ready = _prepare(disk, file, following)
        try:
            image = bytearray(ready.size)
            if ready.handle.read_into(image, 0) != ready.size:
                raise CorruptionError(f"{file.path} ends before position {ready.size}")
        finally:
            ready.handle.close()
        return _Image(image, ready.closing)

    try:
        return await run(workers, read)
    except SyncFailed as e:
        return storage_error(e.error, file.path)
    except OSError as e:
        return storage_error(e, file.path)
    except EngineError as e:
        return e


async def _put(store: ObjectStore, name: str, pieces: _Pieces, workers: Workers, pace: Pace) -> None:
    """One request for a small file, which most files of slow segments are; in parts it takes three."""
    if pieces.size > PIECE_SIZE:
        await store.put_multipart(name, pieces.paced(workers, pace), pieces.size)
        return
    await _put_new(store, name, list(pieces))


async def _put_new(store: ObjectStore, name: str, buffers: Sequence[bytearray]) -> None:
    try:
        await store.put_if_absent(name, buffers)
    except ObjectExistsError:
        raise UnknownOutcomeError(f"the name {name} was never given, and the store has it") from None


def _prepare(disk: Disk, file: LogFile, following: LogFile | None) -> _Ready:
    handle = disk.open(file.path)
    try:
        end_offset = file.end_offset if following is None else following.previous_end
        _check(file, handle, end_offset)
        closing = file.closing
        if closing is None:
            if following is None:
                raise CorruptionError(f"{file.path} was not closed, and no file follows it")
            closing = _close(disk, file, handle, following)
        if (closing.end_offset, closing.end_position) != (file.end_offset, file.end_position):
            raise CorruptionError(f"{file.path} was closed at offset {closing.end_offset}, not {file.end_offset}")
        return _Ready(handle, closing, closing.end_position + closing.footer_size)
    except BaseException:
        handle.close()
        raise


def _check(file: LogFile, handle: File, end_offset: int) -> None:
    opening = file.opening
    scan = log.Scan(
        opening.salt, opening.segment_id, opening.first_offset, opening.data_position, (0xFFFF,), end_offset
    )
    feed_file(scan, handle)
    if (scan.next_offset, scan.position) != (end_offset, file.end_position):
        raise CorruptionError(
            f"{file.path}, position {scan.position}: the file is good up to offset {scan.next_offset}, and has to be "
            f"up to {end_offset}; it is not uploaded"
        )


def _close(disk: Disk, file: LogFile, handle: File, following: LogFile) -> Closing:
    """Duplicate detection at the end of the file is what it was before the next one."""
    behind = disk.open(following.path)
    try:
        snapshot = read_snapshot(behind, following.opening)
    finally:
        behind.close()
    return file.close(handle, State.ROLLED, file.end_offset, file.end_position, snapshot)


class _Pieces:
    """The bytes of a file, with their checksum. Iterated once."""

    def __init__(self, handle: File, size: int) -> None:
        self._handle = handle
        self.size = size
        self.crc = 0
        self.last = b""
        self.error: OSError | None = None

    async def paced(self, workers: Workers, pace: Pace) -> AsyncIterator[bytearray]:
        """All pieces, read by workers, each behind `pace`."""
        pieces = iter(self)
        for _ in range(0, self.size, PIECE_SIZE):
            await pace()
            piece = await run(workers, lambda: next(pieces, None))
            if piece is None:
                return  # it could not be read
            yield piece

    def __iter__(self) -> Iterator[bytearray]:
        position = 0
        while position < self.size:
            piece = bytearray(min(PIECE_SIZE, self.size - position))
            try:
                count = self._handle.read_into(piece, position)
            except OSError as e:
                self.error = e
                return
            if count < len(piece):
                self.error = OSError(f"it ends at {position + count}")
                return
            self.crc = crc32c(piece, self.crc)
            self.last = (self.last + piece[-LOOK_SIZE:])[-LOOK_SIZE:]
            position += len(piece)
            yield piece
