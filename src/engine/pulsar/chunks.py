"""Messages that a client has cut into chunks: which chunks of a producer are stored.

All chunks of a message have its one sequence id, and come one behind the other. Each becomes an entry, as it is:

    chunk       0    1    2    3                0    1
    sequence    s    s    s    s   the last     s'   s'
    stored as   n   n+1  n+2   s                n+3  n+4

The last chunk is stored under the sequence id, so that the message counts as stored only when it is complete. Those
before it have a lane of their own in the duplicate detection of the segment (PART, see storage/dedup/dedup.py), where
the door numbers them: n, n+1 and so on, whatever the sequence ids are.

**A chunk that comes again**, after a reconnection or a kill -9 of the broker, gets its number again, and is found to be
a duplicate. What its number was is known from the newest chunk in the log: its entry says of which message it is, and
which chunk of that. A message is known by its uuid, sequence id, publish time, size and number of chunks, which are
those of the client's first attempt whenever it sends it again. Another process that begins anew with the same producer
name and sequence id says another time: its message is another one, and its chunks get new numbers.

**A message that is stored** whole, as its sequence id says: its chunks are answered without being stored, and its last
one finds itself a duplicate.

A chunk must be one of those that are there, or the next one. So what a segment holds of a message is in order, without
gaps, and once, except where a message was given up in the middle: its client has to drop what there is of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from engine._native.format.entry import Entry
from engine._native.format.heads import entry_heads
from engine._native.produce.hashing import xxh64
from engine._native.pulsar.foreign import sent_metadata
from engine.errors import CorruptionError, InvalidArgumentError, UnsupportedError
from engine.pulsar.messages import MessageMetadata

if TYPE_CHECKING:
    from engine.broker.segment.hosted import HostedSegment

Known = tuple[str, int, int, int, int]  # a message: uuid, sequence id, publish time, chunks, size


class Chunks:
    """Of one producer, from when it is opened until it is closed. Loop thread only.

    `whole`: of a topic of one segment. `level`: the number of the newest chunk, -1 for none. `stored`: by the kind of
    an entry, the sequence id up to which messages are stored. `newest`: metadata of the newest chunk; None: not known.
    """

    __slots__ = ("_first", "_last", "_level", "_message", "_stored", "_whole")

    def __init__(
        self, *, whole: bool = True, level: int = -1, stored: Mapping[int, int] | None = None, newest: Any = None
    ) -> None:
        self._whole = whole
        self._level = level
        self._stored = stored or {}
        # The message whose chunks came last, its highest chunk, and the number of its first one.
        self._message: Known | None = None
        self._last = -1
        self._first = level + 1
        if newest is not None:
            self._message, self._last = _known(newest), newest.chunk
            self._first = level - newest.chunk

    def is_stored(self, metadata: Any, kind: int) -> bool:
        """Whether all of a message was stored before. `kind`: of its entries, as in storage/dedup.

        Of the newest message with chunks it is not said: these are found where they are.
        """
        return metadata.sequence <= self._stored.get(kind, -1) and _known(metadata) != self._message

    def number_of(self, metadata: Any) -> int | None:
        """What a chunk of a message that is not stored goes under; None: its sequence id, as the last one.

        Raises InvalidArgumentError for one that does not follow those that came; UnsupportedError where a topic has
        several segments.
        """
        if not self._whole:
            raise UnsupportedError("a message in chunks must be sent to a topic persistent://…, whose segment is one")
        chunk, chunks = int(metadata.chunk), int(metadata.chunks)
        if not metadata.uuid or not 0 <= chunk < chunks:
            raise InvalidArgumentError(f"a chunk must have a uuid and be one of {chunks}, got {chunk} of it")
        same = _known(metadata) == self._message
        if chunk > (self._last + 1 if same else 0):
            raise InvalidArgumentError(
                f"the chunks of a message must come in order, one behind the other: got {chunk} of {chunks} without "
                "those before it"
            )
        if chunk == chunks - 1:
            return None
        return (self._first if same else self._level + 1) + chunk

    def sent(self, metadata: Any) -> None:
        """A chunk, whose number_of() was asked for, goes to the segment."""
        if (known := _known(metadata)) != self._message:
            self._message, self._last, self._first = known, -1, self._level + 1
        self._last = max(self._last, metadata.chunk)
        if metadata.chunk < metadata.chunks - 1:
            self._level = max(self._level, self._first + metadata.chunk)

    def give_up(self) -> None:
        """A chunk was refused: those behind it are none of a message that can become complete."""
        self._message = None


def _known(metadata: Any) -> Known:
    return metadata.uuid, metadata.sequence, metadata.publish_time, metadata.chunks, metadata.chunks_size


async def chunks_of(hosted: HostedSegment, producer: str, *, whole: bool) -> Chunks:
    """What a segment has of a producer's chunks. `whole`: the topic has one segment. Raises StorageError."""
    segment, ident = hosted.segment, xxh64(producer.encode())
    level, offset = segment.dedup.last_part(ident)
    while offset >= segment.durable_offset:  # of an earlier session, on its way to the disk; it may fail as well
        await segment.when_durable(offset)
        if (level, offset) == (again := segment.dedup.last_part(ident)):
            break
        level, offset = again
    newest = None if offset < 0 else await _metadata_at(hosted, offset)
    return Chunks(whole=whole, level=level, stored=segment.dedup.levels(ident), newest=newest)


async def _metadata_at(hosted: HostedSegment, offset: int) -> Any:
    """Of the chunk at an offset; None where it is gone, or is none: a client of ours may store anything."""
    found = hosted.segment.read(offset)
    block = await found if isawaitable(found) else found
    if block is None:
        return None
    for head in entry_heads(block.data):
        if head.first == offset:
            try:
                metadata = MessageMetadata.FromString(sent_metadata(Entry(block.data[head.start : head.stop])))
            except (CorruptionError, DecodeError):
                return None
            return metadata if 0 <= metadata.chunk < metadata.chunks - 1 else None
    return None
