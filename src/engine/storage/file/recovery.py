"""Recovery: opens a segment's files after a close, a crash or a power cut, and finds the end of the log.

The files follow each other; only the last one can have been written to when the process died:

    header │ entries, all durable │ entries, written, perhaps synced │ torn entry │ zeros written ahead
                                  ▲                                  ▲
              known to have been durable up to here          the first entry that fails its check

A *torn tail* is what a crash leaves of an append that was not acknowledged: it is cut off, logged and counted. *Damage*
is a bad entry below an offset that is known to have been durable: it is reported (CorruptionError) and never cut. Known
to have been durable is

* everything in a file that was closed, or that another file follows: a file is synced before the next one is created;
* everything below the file's witness (commit/witness.py), and below the `durable_upto` in any good entry behind it;
* what records outside of the log know: cursors and others (continuation.py).

What happens in which order:

1. Remove what was never finished (`.new`), and files of earlier segments of that name. Sync the directory: the last
   process may have died between a rename and its sync.
2. Load the producer snapshot of the parents: it says how duplicate detection divides the segment.
3. Read all headers; find the chain of files that is the log (owners.py); remove strays.
4. Inner files: the closing block must state the next file's start. Where it is missing, scan the file, and close it.
5. The last file. Closed: check the footer, and load its producer snapshot. Open: load the snapshot at its head, scan
   all entries, replay them for duplicate detection; then search behind the last good entry whether a later entry, or
   the witness, says that more was durable (damage), or else cut the torn tail.
6. Write the entries above the witness once more, and sync. After a failed sync the page cache may show entries that are
   not on the medium and count as clean; reading them would acknowledge what a power cut then takes.
7. Decide where the log goes on: at its end, or above a gap (continuation.py).

Every step can be repeated: a crash during recovery leaves what the next one can open. Under a lease a former owner may
still write, so nothing is cut or closed; the new owner continues in a file of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine._native.format.crc32c import crc32c
from engine._native.serve import log
from engine.errors import CorruptionError
from engine.limits import ENTRY_HEADER_SIZE, ENTRY_SIZE_MAX, KIB
from engine.model.names import SegmentName
from engine.storage.dedup.dedup import Dedup
from engine.storage.disk.config import FSYNC
from engine.storage.disk.disk import Disk, File
from engine.storage.file.context import Context
from engine.storage.file.continuation import NOTHING, Known, continue_at
from engine.storage.file.format import FOOTER_HEAD_SIZE, Closing, Footer, State, footer_size
from engine.storage.file.index import Index
from engine.storage.file.logfile import (
    SCAN_CHUNK,
    SUFFIX,
    UNFINISHED,
    FileFacts,
    LogFile,
    file_name,
    new_file,
    parse_file_name,
    read_header,
    read_snapshot,
    sync,
)
from engine.storage.file.owners import Lease, chain, is_of
from engine.storage.file.producer_snapshot import load_producer_snapshot
from engine.storage.file.removal import term_of

SCAN_START = 256 * KIB
_NO_CLOSING = bytes(64)


@dataclass(slots=True)
class Recovered:
    """The parts of a segment. The last file is the active one, or the sealed end."""

    files: list[LogFile]
    dedup: Dedup
    term: int
    sealed: bool
    orderly: bool  # the last file was closed: no former owner writes to it any more
    restart: int  # the offset that the next message gets; above the end of the last file if there is a gap
    torn: TornTail | None = None

    @property
    def end(self) -> int:
        return self.files[-1].end_offset


class TornTail(NamedTuple):
    """What was cut off from the last file."""

    path: str
    position: int
    offset: int  # of the first message that could not be read
    size: int  # bytes, without the zeros that were written ahead


def name_crc(name: SegmentName) -> int:
    """The checksum of its segment's name that every file has."""
    return crc32c(str(name).encode())


def file_facts(context: Context, name: SegmentName, durability: str) -> FileFacts:
    """What a file of the segment states that is created now."""
    salt, now_ms = context.rng.getrandbits(32), context.clock.time_ms()
    return FileFacts(name.segment_id, name_crc(name), salt, now_ms, durability, context.store, context.generation)


def recover(
    disk: Disk,
    directory: str,
    name: SegmentName,
    bucket_ends: Sequence[int],
    *,
    durability: str = FSYNC,
    known: Known = NOTHING,
    lease: Lease | None = None,
) -> Recovered | None:
    """Open all files of a segment; None if it has none. Blocking. Raises CorruptionError, OSError.

    Repairs are synced before it returns. `durability`: of the segment now. `known`: what was durable according to
    records outside of the log. `lease`: where brokers share the disk, that of the one that opens the segment.
    """
    names = disk.list(directory)
    born = 0 if lease is None else lease.born
    for leftover in (n for n in names if not is_of(term_of(n), born) or _is_given_up(n, lease)):
        disk.unlink(f"{directory}/{leftover}")
    names = [n for n in names if is_of(term_of(n), born)]
    logs = [n for n in names if n.endswith(SUFFIX)]
    if not logs:
        return None
    disk.sync_directory(directory)  # the process before may have died between a rename and its sync
    dedup = Dedup(name.hash_range, bucket_ends)
    load_producer_snapshot(disk, directory, names, born, dedup)  # first: it says how the segment is divided
    opener = _Opener(disk, directory, name, tuple(bucket_ends), dedup, keeps_all=lease is not None)
    files, strays = chain([opener.open(n) for n in logs])
    for file in strays:
        file.delete(disk)
    for file, following in itertools.pairwise(files):
        opener.recover_inner(file, following)
    last = files[-1]
    opener.recover_last(last)
    restart = continue_at(last, known, durability)
    return Recovered(files, dedup, opener.term, last.sealed, last.closing is not None, restart, opener.torn)


def make(
    disk: Disk, directory: str, name: SegmentName, bucket_ends: Sequence[int], facts: FileFacts, lease: Lease | None
) -> Recovered:
    """Create the first file of a segment; its parts. Raises as recover(), and what the lease raises.

    Where nothing lay in the directory, as what the parents knew of producers, all is known: recover() would read it
    back, and sync what is durable.
    """
    if lease is not None:
        lease.check()  # at the last moment: the job may have waited in the queue
    disk.make_directories(directory)
    empty = not disk.list(directory)
    file = new_file(directory, facts, 0, terms=(0 if lease is None else lease.term, 0))
    file.create(disk).close()
    if empty:
        file.created, file.snapshot = True, None
        return Recovered([file], Dedup(name.hash_range, bucket_ends), 0, False, False, file.first_offset)
    found = recover(disk, directory, name, bucket_ends, lease=lease)
    assert found is not None, directory
    found.restart = found.end  # it was never written
    return found


def _terms_of(directory: str, name: str) -> tuple[int, int]:
    found = parse_file_name(name)
    if found is None:
        raise CorruptionError(f"{directory}/{name}: the name of a log file must be <first offset>{SUFFIX}")
    return found


def _is_given_up(name: str, lease: Lease | None) -> bool:
    """Whether it is an unfinished file that no owner will finish: of none, or of a former one."""
    return name.endswith(UNFINISHED) and (lease is None or term_of(name) < lease.term)


class _Opener:
    """Opens one segment's files."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        name: SegmentName,
        bucket_ends: tuple[int, ...],
        dedup: Dedup,
        *,
        keeps_all: bool,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._name = name
        self._bucket_ends = bucket_ends
        self._dedup = dedup
        self._keeps_all = keeps_all  # a former owner may still write: nothing may be cut off or closed
        self.term = 0
        self.torn: TornTail | None = None
        self._closing_blocks: dict[LogFile, bytes] = {}

    def open(self, name: str) -> LogFile:
        """Read and check a file's header."""
        _terms_of(self._directory, name)
        header, _ = read_header(self._disk, self._directory, name)
        opening = header.opening
        file = LogFile(self._directory, opening, header.origin, header.witness, created=True)
        if file_name(opening) != name or opening.segment_id != self._name.segment_id:
            raise CorruptionError(
                f"{self._directory}/{name}, position 0: the header states segment {opening.segment_id} and first "
                f"offset {opening.first_offset}"
            )
        if opening.name_crc != name_crc(self._name):
            raise CorruptionError(f"{self._directory}/{name}, position 0: the file belongs to another segment")
        file.snapshot = None
        file.closing = header.closing
        self._closing_blocks[file] = header.closing_block
        return file

    def recover_inner(self, file: LogFile, following: LogFile) -> None:
        """A file that another follows: it has to hold everything up to the other's first offset."""
        closing, end_offset = file.closing, following.previous_end
        taken_over = following.opening.term != file.opening.term  # then entries behind the end came too late
        if closing is None or (taken_over and closing.end_offset != end_offset):
            self._recover_by_scan(file, end_offset)
            return
        # Its state may be any: if the sync of a closing block fails, the block stays, and a new file continues.
        if closing.end_offset != end_offset:
            raise CorruptionError(
                f"{file.path} ends at offset {closing.end_offset}, and the next file begins at {end_offset}"
            )
        _take_closing(file, closing)

    def _recover_by_scan(self, file: LogFile, end_offset: int) -> None:
        """The process died before the footer was written, or a failed sync ended the file. Close it now."""
        handle = self._disk.open(file.path)
        try:
            before = self._dedup.fresh()
            before.load(read_snapshot(handle, file.opening))
            scan = self._scan(file, handle, end_offset, before)
            if scan.next_offset != end_offset:
                self._raise(file, scan)
            _take_scan(file, scan)
            file.closing = None
            if self._keeps_all:
                return
            snapshot = before.snapshot()
            file.closing = file.close(handle, State.ROLLED, end_offset, scan.position, snapshot)
            file.index = None
        finally:
            handle.close()

    def recover_last(self, file: LogFile) -> None:
        """The last file: check its close, or scan it to its end and cut it there."""
        handle = self._disk.open(file.path)
        try:
            if file.closing is None:
                self._recover_open(file, handle)
            else:
                _check_last(file, file.closing)
                footer = file.read_footer(handle)
                _take_closing(file, file.closing)
                if self._keeps_all and file.closing.state is State.SEALED:
                    file.write_closing_again(handle)  # it may be only in the memory of a machine that is failing
                self._take_footer(file, handle, footer)
        finally:
            handle.close()

    def _take_footer(self, file: LogFile, handle: File, footer: Footer) -> None:
        self._dedup.load(footer.snapshot)
        if file.closing is not None and file.closing.state is State.CLEAN:
            file.index = footer.index
            self.term = max(self.term, _last_term(file, handle, footer.index))
        else:
            file.index = None

    def _recover_open(self, file: LogFile, handle: File) -> None:
        self._dedup.load(read_snapshot(handle, file.opening))
        scan = self._scan(file, handle, None, self._dedup)
        size = handle.size()
        footer = self._footer_at(file, handle, scan.position, size)
        if self._closing_blocks[file] != _NO_CLOSING and footer is None:
            raise CorruptionError(f"{file.path}, position 64: the closing block fails its checksum")
        self.term = max(self.term, scan.term)
        _take_scan(file, scan)
        if footer is not None and self._closing_blocks[file] != _NO_CLOSING:
            _check_last(file, footer)
            self._restore_closing(file, handle, footer)
        else:
            if footer is None:
                self._check_torn(file, handle, scan, size)
            if scan.position < size and not self._keeps_all:
                handle.truncate(scan.position)
            self._write_again(file, handle, scan)
            sync(handle)
        file.allocated = scan.position

    def _write_again(self, file: LogFile, handle: File, scan: log.Scan) -> None:
        """Write the entries that are not known to be durable once more, so that the following sync covers them.

        The last process may have died of a failed sync: then the page cache shows them as clean, and they are not on
        the medium.
        """
        assert file.index is not None
        position = file.index.position_before(_durable_upto(file, scan), file.opening.data_position)
        chunk = bytearray(min(SCAN_CHUNK, scan.position - position))
        while position < scan.position:
            with memoryview(chunk)[: scan.position - position] as view:
                handle.read_into(view, position)
                handle.write([view], position)
                position += len(view)

    def _footer_at(self, file: LogFile, handle: File, position: int, size: int) -> Footer | None:
        head = bytearray(FOOTER_HEAD_SIZE)
        if handle.read_into(head, position) < FOOTER_HEAD_SIZE:
            return None
        image = bytearray(min(footer_size(head), size - position))
        handle.read_into(image, position)
        return Footer.unpack(image, file.salt)

    def _restore_closing(self, file: LogFile, handle: File, footer: Footer) -> None:
        """The closing block was torn or damaged; everything in it follows from the footer.

        The footer is not changed: it alone tells a torn closing block from damage.
        """
        closing = Closing(
            footer.state, footer.end_offset, file.end_position, len(footer.pack(file.salt)), footer.last_time_ms
        )
        file.closing = closing
        file.write_closing_again(handle)

    def _check_torn(self, file: LogFile, handle: File, scan: log.Scan, size: int) -> None:
        """Raise CorruptionError if anything behind the good entries was durable once; else it is a torn tail."""
        if scan.fault in log.FAULTS_DELIBERATE or _durable_upto(file, scan) > scan.next_offset:
            self._raise(file, scan)
        position, overlap = scan.position, ENTRY_HEADER_SIZE - 8
        chunk, torn = bytearray(min(SCAN_CHUNK, max(0, size - position))), 0
        while position < size:
            n = handle.read_into(chunk, position)
            with memoryview(chunk)[:n] as view:
                if log.find_durable(view, file.salt, file.opening.segment_id, scan.next_offset) >= 0:
                    self._raise(file, scan)
                if written := len(bytes(view).rstrip(b"\0")):
                    torn = position + written - scan.position
            if position + n >= size or n <= overlap:
                break
            position += n - overlap
        if torn:
            self.torn = TornTail(file.path, scan.position, scan.next_offset, torn)

    def _scan(self, file: LogFile, handle: File, end_offset: int | None, dedup: Dedup) -> log.Scan:
        opening = file.opening
        scan = log.Scan(
            opening.salt,
            opening.segment_id,
            opening.first_offset,
            opening.data_position,
            self._bucket_ends,
            end_offset,
        )
        if dedup.plain:
            feed_file(scan, handle)
            dedup.restore(scan.lanes_list())
        else:
            feed_file(scan, handle, dedup)
        return scan

    def _raise(self, file: LogFile, scan: log.Scan) -> None:
        try:
            log.raise_fault(scan.fault or log.FAULT_SHORT, scan.segment_id, scan.next_offset)
        except CorruptionError as e:
            raise CorruptionError(f"{file.path}, position {scan.position}: {e}; it was durable once") from None


def feed_file(scan: log.Scan, handle: File, dedup: Dedup | None = None) -> None:
    """Scan a file from where the scan stands, to its end, to the scan's end offset, or to the first fault.

    `dedup` replays every entry, if it needs more than the scan keeps.
    """
    chunk = bytearray(SCAN_START)
    while scan.fault == 0 and not scan.finished:
        n = handle.read_into(chunk, scan.position)
        with memoryview(chunk)[:n] as view:
            offset = scan.next_offset
            taken = scan.feed(view)
            if taken and dedup is not None:
                dedup.replay(log.entries(view[:taken], check_body=False), offset)
        if n < len(chunk) or (taken == 0 and n > ENTRY_SIZE_MAX):
            return
        if len(chunk) < SCAN_CHUNK or taken < n // 2:
            chunk = bytearray(2 * len(chunk))


def _check_last(file: LogFile, end: Closing | Footer) -> None:
    """Raise CorruptionError if another file has to follow this one."""
    if end.state is State.ROLLED:
        raise CorruptionError(f"{file.path} was followed by a file from offset {end.end_offset}, which is missing")


def _durable_upto(file: LogFile, scan: log.Scan) -> int:
    """Up to which offset the file itself states that it was durable."""
    return scan.durable_upto if file.witness is None else max(scan.durable_upto, file.witness.durable_offset)


def _take_closing(file: LogFile, closing: Closing) -> None:
    file.end_offset, file.end_position = closing.end_offset, closing.end_position
    file.last_time_ms = closing.last_time_ms
    file.index = None


def _take_scan(file: LogFile, scan: log.Scan) -> None:
    file.end_offset, file.end_position = scan.next_offset, scan.position
    file.last_time_ms = scan.time_ms
    file.index = Index(scan.marks_list())


def _last_term(file: LogFile, handle: File, index: Index) -> int:
    scan = _scan_end(file, handle, index)
    return scan.term


def _scan_end(file: LogFile, handle: File, index: Index) -> log.Scan:
    """Read the last index step of a file again. Raises CorruptionError if it has changed."""
    offset, position = index.last(file.first_offset, file.opening.data_position)
    scan = log.Scan(file.salt, file.opening.segment_id, offset, position, (0xFFFF,), file.end_offset)
    feed_file(scan, handle)
    if scan.next_offset != file.end_offset or scan.position != file.end_position:
        try:
            log.raise_fault(scan.fault or log.FAULT_SHORT, scan.segment_id, scan.next_offset)
        except CorruptionError as e:
            raise CorruptionError(f"{file.path}, position {scan.position}: {e}; it was durable once") from None
    return scan


def verify_tail(disk: Disk, file: LogFile) -> None:
    """After a failed sync: read the durable end of the file from the medium. Raises CorruptionError."""
    handle = disk.open(file.path)
    try:
        handle.drop_cache()
        assert file.index is not None
        _scan_end(file, handle, file.index)
    finally:
        handle.close()
