"""Short-circuit reads: a client on the broker's machine reads what it has planned from the log files, by itself.

What is durable stays where it is until retention deletes its file, which whoever has it open goes on reading. So it is
enough to say where it lies, and what of it is not for readers. The files' permissions decide whether the client can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine._native.format.offsets import runs
from engine.broker.session import requests
from engine.errors import UnsupportedError
from engine.wire import commands
from engine.wire.commands import SHORT_CIRCUIT_READS

if TYPE_CHECKING:
    from engine.broker.segment.hosted import HostedSegment
    from engine.broker.session.connection import Connection

HIDDEN_MAX = 4096  # ranges of messages that are not for readers; with more of them it is sent what is


def segment_files(connection: Connection, header: commands.SegmentFiles, payload: memoryview) -> None:
    """SEGMENT_FILES."""
    if SHORT_CIRCUIT_READS not in connection.features:
        raise UnsupportedError(f"{SHORT_CIRCUIT_READS} is for clients on the broker's machine, where it is switched on")
    connection.start(header.request_id, _segment_files(connection, header))


async def _segment_files(connection: Connection, header: commands.SegmentFiles) -> commands.Files:
    hosted = await requests.open_segment(connection, header.topic)
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
