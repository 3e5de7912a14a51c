"""Short-circuit reads: a client on the broker's machine reads log files directly.

Durable messages stay where they are until retention deletes their file, and a process that has it open can still read
it then. So the answer names ranges of files, and the offsets in them that no reader gets. The permissions of the files
decide whether the client can open them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine._native.format.offsets import runs
from engine.broker.session.attaching import open_segment
from engine.errors import UnsupportedError
from engine.wire import commands
from engine.wire.commands import SHORT_CIRCUIT_READS

if TYPE_CHECKING:
    from engine.broker.segment.hosted import HostedSegment
    from engine.broker.session.connection import Connection

HIDDEN_MAX = 4096  # ranges that no reader gets; with more of them the client reads through the broker


def segment_files(connection: Connection, header: commands.SegmentFiles, payload: memoryview) -> None:
    """SEGMENT_FILES."""
    if SHORT_CIRCUIT_READS not in connection.features:
        raise UnsupportedError(f"{SHORT_CIRCUIT_READS} requires a client on the broker's machine, and to be enabled")
    connection.start(header.request_id, _segment_files(connection, header))


async def _segment_files(connection: Connection, header: commands.SegmentFiles) -> commands.Files:
    hosted = await open_segment(connection, header.topic)
    hosted.check_open()
    return await _files(hosted, header.start, header.stop)


async def _files(hosted: HostedSegment, start: int, stop: int) -> commands.Files:
    nothing = commands.Files(files=[], upto=start, hidden=[])
    found = await hosted.segment.stretches(start, min(stop, hosted.readable))
    upto = min(stop, hosted.readable, found[-1].next_offset) if found else start
    if upto <= start:
        return nothing
    hidden = hosted.hidden(start, upto)
    ranges = [] if hidden is None else runs(hidden)
    if len(ranges) > HIDDEN_MAX:
        return nothing
    hosted.near_messages += upto - start - (0 if hidden is None else len(hidden))
    return commands.Files(files=[*found], upto=upto, hidden=ranges)
