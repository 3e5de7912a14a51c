"""What retention has to know of a segment that is not open, read from the heads of its files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine._native.format.heads import head_of
from engine.errors import CorruptionError, UnsupportedError
from engine.limits import ENTRY_HEADER_SIZE
from engine.model.names import SegmentName
from engine.storage.disk.disk import Disk
from engine.storage.file.format import Header, State
from engine.storage.file.logfile import parse_file_name, read_header


class Stored(NamedTuple):
    """A segment's files. Times are milliseconds since 1970."""

    name: SegmentName
    newest_ms: int | None  # of the newest message in the oldest file, 0 if it does not state it; None: it is the last
    oldest_ms: int | None  # of the oldest message in the last file; None: it has none, or takes no more


def stored(disk: Disk, directory: str, name: SegmentName, logs: Sequence[str]) -> Stored | None:
    """Of a segment with these log files. None: retention has nothing to do. Raises OSError.

    A damaged header is passed over: opening the segment reports it.
    """
    places = sorted((place, log) for log in logs if (place := parse_file_name(log)) is not None)
    if not places:
        return None
    newest_ms = None
    last = max(places, key=lambda found: (found[0][1], found[0][0]))[1]
    try:
        if len(places) > 1:
            closing = read_header(disk, directory, places[0][1])[0].closing
            newest_ms = 0 if closing is None else closing.last_time_ms
        header, _ = read_header(disk, directory, last)
        oldest_ms = _oldest_ms(disk, f"{directory}/{last}", header)
    except (CorruptionError, UnsupportedError):
        return None
    return None if newest_ms is None and oldest_ms is None else Stored(name, newest_ms, oldest_ms)


def _oldest_ms(disk: Disk, path: str, header: Header) -> int | None:
    closing = header.closing
    if closing is not None and (closing.state is State.SEALED or closing.end_offset == header.opening.first_offset):
        return None
    file = disk.open(path)
    try:
        image = bytearray(ENTRY_HEADER_SIZE)
        file.read_into(image, header.opening.data_position)
    finally:
        file.close()
    head = head_of(image)
    return None if head is None else head.publish_time_ms
