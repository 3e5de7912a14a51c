"""Reads around the broker: a client on its machine reads log files directly, any other one rolled files' objects.

Durable messages stay where they are until retention deletes their file. A process that has it open can still read it
then; an object is kept for a grace, and a client that finds none asks again. So the answer names ranges
of files, or objects, and the offsets in them that no reader gets. The permissions of the files, and the client's
rights in the store of objects, decide whether it can read them: no credentials are handed out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine._native.format.offsets import runs
from engine.broker.session.attaching import open_segment
from engine.errors import UnsupportedError
from engine.limits import OBJECT_READ_MIN
from engine.wire import commands
from engine.wire.commands import OBJECT_READS, SHORT_CIRCUIT_READS

if TYPE_CHECKING:
    from engine.broker.segment.hosted import HostedSegment
    from engine.broker.session.connection import Connection
    from engine.storage.objects.references import RolledFile

HIDDEN_MAX = 4096  # ranges that no reader gets; with more of them the client reads through the broker


def segment_files(connection: Connection, header: commands.SegmentFiles, payload: memoryview) -> None:
    """SEGMENT_FILES."""
    if header.objects and OBJECT_READS not in connection.features:
        raise UnsupportedError(f"{OBJECT_READS} requires a client that can, and a broker with a store of objects")
    if not header.objects and SHORT_CIRCUIT_READS not in connection.features:
        raise UnsupportedError(f"{SHORT_CIRCUIT_READS} requires a client on the broker's machine, and to be enabled")
    connection.start(header.request_id, _segment_files(connection, header))


async def _segment_files(connection: Connection, header: commands.SegmentFiles) -> commands.Files:
    hosted = await open_segment(connection, header.topic)
    hosted.check_open()
    limits = connection.host.memory.limits
    if limits is not None and limits.buckets(hosted.name.topic, connection.role, "dispatch"):
        return _nothing(header)  # a rate holds for what goes through the broker
    return await (_objects if header.objects else _files)(hosted, header.start, header.stop)


async def _files(hosted: HostedSegment, start: int, stop: int) -> commands.Files:
    found = await hosted.segment.stretches(start, min(stop, hosted.readable))
    upto = min(stop, hosted.readable, found[-1].next_offset) if found else start
    hidden = _hidden(hosted, start, upto)
    if hidden is None:
        return commands.Files(files=[], upto=start, hidden=[])
    hosted.near_messages += _count(start, upto, hidden)
    return commands.Files(files=[*found], upto=upto, hidden=hidden)


async def _objects(hosted: HostedSegment, start: int, stop: int) -> commands.Files:
    """Rolled files that the segment's record names. What is not in one yet is in this broker's memory or on its disk,
    and is read through it.
    """
    nothing = commands.Files(objects=[], upto=start, hidden=[])
    segment, consolidation = hosted.segment, hosted.segment.consolidation
    if consolidation is None or segment.failed is not None or start < segment.first_offset:
        return nothing
    found = await consolidation.named.between(start, min(stop, hosted.readable))
    upto = min(stop, hosted.readable, found[-1].end) if found else start
    if upto <= start or _size(found, start, upto) < OBJECT_READ_MIN:
        return nothing
    hidden = _hidden(hosted, start, upto)
    if hidden is None:
        return nothing
    hosted.object_messages += _count(start, upto, hidden)
    return commands.Files(objects=[_told(file) for file in found], upto=upto, hidden=hidden)


def _nothing(header: commands.SegmentFiles) -> commands.Files:
    """The client reads through the broker."""
    if header.objects:
        return commands.Files(objects=[], upto=header.start, hidden=[])
    return commands.Files(files=[], upto=header.start, hidden=[])


def _told(file: RolledFile) -> tuple[str, int, int, int]:
    return file.key, file.first, file.end, file.size


def _size(files: list[RolledFile], start: int, upto: int) -> int:
    """Of a range of these files in bytes, estimated."""
    within = ((file, min(upto, file.end) - max(start, file.first)) for file in files)
    return sum(file.size * count // (file.end - file.first) for file, count in within)


def _hidden(hosted: HostedSegment, start: int, upto: int) -> list[list[int]] | None:
    """The inclusive ranges within that no reader gets; None: there is nothing for readers, or too many ranges."""
    if upto <= start:
        return None
    hidden = hosted.hidden(start, upto)
    ranges: list[list[int]] = [] if hidden is None else runs(hidden)
    return None if len(ranges) > HIDDEN_MAX else ranges


def _count(start: int, upto: int, hidden: list[list[int]]) -> int:
    return upto - start - sum(last + 1 - first for first, last in hidden)
