"""One consumer: what the broker sends it becomes frames of theirs, and what it acknowledges becomes ranges of offsets.

The id of a message is (segment id, first offset of its entry, index in the entry), so its offset is the sum of the last
two. An entry is always sent whole, so that these ids do not depend on what was acknowledged before; the bits of a
MESSAGE say which of its messages are due.

**Permits.** A client grants permits for messages, and the broker may exceed them by the rest of an entry. Of messages
that a frame has and that are not due, a client gives its permits back, although none were taken: `debt`.

**What was sent.** An acknowledgement may name an entry without saying how many messages it has. `sizes` remembers that
of the entries that are under way; of others, such as those of an earlier session, it is read from the log.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from engine._native.format.entry import Entry
from engine._native.format.heads import Head, head_of
from engine._native.format.offsets import runs
from engine._native.produce.hashing import xxh64
from engine._native.pulsar.delivered import frame_of, schema_versions
from engine.errors import AlreadyClosedError, InvalidArgumentError
from engine.limits import ENTRY_MESSAGES_MAX, SCHEMA_VERSIONS_MAX
from engine.model.compression import decompressor
from engine.pulsar.groups import FAILOVER, KEY_SHARED, SHARED, Group, Key
from engine.wire import commands

if TYPE_CHECKING:
    from engine.broker.delivery.consumer import Consumer
    from engine.broker.segment.hosted import HostedSegment
    from engine.model.names import SegmentName
    from engine.pulsar.session import Session

_BYTES_GRANTED = 2**40  # a client of theirs counts messages only
_SIZES_MAX = 4096  # remembered without a look at which are still needed
_WORD = 64
_ENTRY_MAX = 2**63 - 1  # above it, it is a negative number

Range = tuple[int, int]  # inclusive


class PulsarConsumer:
    """One consumer. `number`: its id as the client says it; `ident`: at the Connection. `start`: of a reader."""

    def __init__(self, session: Session, ident: int, header: Any) -> None:
        self.session = session
        self.ident = ident
        self.number: int = header.consumer
        self.type: int = header.type
        self.durable: bool = header.durable if header.HasField("durable") else True
        self.subscription: str = header.subscription
        self.priority: int = max(header.priority, 0)
        self.name: str = header.name or f"pulsar-{xxh64(session.stream.peer.encode()):x}-{header.consumer}"
        self.partition = -1
        self.key: Key | None = None
        self.group: Group | None = None
        self.stream: SegmentName | None = None  # what it reads for a stream consumer
        self.schema_version = b""  # of messages that say none
        self.opened = False
        # Permits.
        self.withheld = 0  # of one that is not active
        self.debt = 0
        # First offset of an entry -> how many messages it has.
        self.sizes: dict[int, int] = {}

    @property
    def broker_side(self) -> Consumer:
        """What the broker has attached. Raises AlreadyClosedError."""
        found = self.session.connection.consumers.get(self.ident)
        if found is None:
            raise AlreadyClosedError(f"the consumer {self.number} is not attached; attach again")
        return found

    @property
    def active(self) -> bool:
        """Whether it is sent messages."""
        return self.type != FAILOVER or self.group is None or self.group.active is self

    # -- permits ---------------------------------------------------------------------------------------------------

    def grant(self, permits: int) -> None:
        """The client takes so many more messages."""
        paid = min(permits, self.debt)
        self.debt -= paid
        if not self.active:
            self.withheld += permits - paid
        elif self.opened and permits > paid:
            self.session.native(
                commands.Flow(
                    consumer_id=self.ident, messages=permits - paid, bytes=_BYTES_GRANTED, window=ENTRY_MESSAGES_MAX
                )
            )

    def activate(self, active: bool) -> None:
        """It is the one of its group that is sent messages, or is not any more."""
        self.session.say("active_consumer_change", consumer=self.number, active=active)
        if active:
            permits, self.withheld = self.withheld, 0
            self.grant(permits)
            return
        found = self.session.connection.consumers.get(self.ident)
        if found is not None:
            self.withheld += max(found.messages_credit, 0)
            found.messages_credit = 0
            self.redeliver_all()

    # -- sending ---------------------------------------------------------------------------------------------------

    def frames(self, entry: Entry, skip: list[Range], redelivered: list[tuple[int, int, int]]) -> list[bytes]:
        """The frames of an entry: one, or one for each number of redeliveries and version of the schema."""
        first, count = entry.first_offset, entry.count
        self._remember(first, count)
        counts = _counts_of(first, count, skip, redelivered)
        frames = []
        for times, due in [(0, None)] if counts is None else sorted(counts.items()):
            parts: list[list[int] | None] = [due if due is None or len(due) < count else None]
            frame = self._frame(entry, times, parts[0])
            if frame is None:
                parts = _by_version(schema_versions(entry, _decompress), range(count) if due is None else due)
            for part in parts:
                made = self._frame(entry, times, part) if frame is None else frame
                assert made is not None
                self.debt += 0 if part is None else count - len(part)
                frames.append(made)
        return frames

    def _frame(self, entry: Entry, redelivered: int, due: list[int] | None) -> bytes | None:
        return frame_of(
            entry,
            self.number,
            _decompress,
            redelivered=redelivered if self.type in (SHARED, KEY_SHARED) else 0,  # as in Apache Pulsar
            due=due,
            partition=self.partition,
            schema_version=self.schema_version,
        )

    def _remember(self, first: int, count: int) -> None:
        self.sizes[first] = count
        if len(self.sizes) > _SIZES_MAX and len(self.sizes) % _SIZES_MAX == 1:
            held = getattr(self.session.connection.consumers.get(self.ident), "unacknowledged", None)
            if held is not None:
                self.sizes = {at: n for at, n in self.sizes.items() if held.range_cardinality(at, at + n)}

    # -- acknowledging ---------------------------------------------------------------------------------------------

    async def size_at(self, first: int) -> int:
        """How many messages the entry at an offset has. Raises InvalidArgumentError where there is none."""
        if (known := self.sizes.get(first)) is not None:
            return known
        return await _size_at(self.broker_side.hosted, first)

    def known_ranges(self, ids: Iterable[Any]) -> list[Range] | None:
        """The offsets that ids acknowledge; None where an entry's size has to be read."""
        found: list[Range] = []
        for one in ids:
            size = self.sizes.get(one.entry)
            if size is None:
                return None
            found.extend(_acknowledged(one, size))
        return found

    async def ranges_of(self, ids: Iterable[Any]) -> list[Range]:
        """The same, read where they are not known."""
        found: list[Range] = []
        for one in ids:
            found.extend(_acknowledged(one, await self.size_at(one.entry)))
        return found

    async def position_of(self, one: Any) -> int:
        """The offset up to which an id acknowledges cumulatively, not included.

        A client names the entry before one that it has read in part by its own number less 1, which may name no entry,
        and before the first one is -1. Raises InvalidArgumentError for a message that is not there yet.
        """
        if one.entry > _ENTRY_MAX:
            return 0
        hosted, size = self.broker_side.hosted, self.sizes.get(one.entry)
        if one.entry >= hosted.segment.durable_offset:
            raise InvalidArgumentError(f"a message must be there to be acknowledged, got the offset {one.entry}")
        if size is None:
            head = await head_at(hosted, one.entry)
            size = head.last + 1 - head.first if head is not None and head.first == one.entry else 1
        ranges = _acknowledged(one, size)
        return ranges[0][1] + 1 if ranges and ranges[0][0] == one.entry else one.entry

    def forget(self, ranges: list[Range]) -> None:
        """Entries that are acknowledged as a whole need no size any more."""
        for first, last in ranges:
            if self.sizes.get(first) == last + 1 - first:
                del self.sizes[first]

    def forget_below(self, position: int) -> None:
        """The same, of all that lie before a position."""
        for first in [first for first, size in self.sizes.items() if first + size <= position]:
            del self.sizes[first]

    def redeliver_all(self) -> None:
        """All that it holds is due again."""
        held = getattr(self.broker_side, "unacknowledged", None)
        if held:
            self.session.native(commands.Redeliver(consumer_id=self.ident, ranges=runs(held)))


def _counts_of(
    first: int, count: int, skip: list[Range], redelivered: list[tuple[int, int, int]]
) -> dict[int, list[int]] | None:
    """The messages that are due, by index, for each number of redeliveries. None: all of them, for the first time."""
    last = first + count - 1
    skipped = [(a, b) for a, b in skip if b >= first and a <= last]
    again = [(a, b, n) for a, b, n in redelivered if b >= first and a <= last]
    if not skipped and not again:
        return None
    times = dict.fromkeys(range(count), 0)
    for start, stop, number in again:
        for offset in range(max(start, first), min(stop, last) + 1):
            times[offset - first] = number
    for start, stop in skipped:
        for offset in range(max(start, first), min(stop, last) + 1):
            times.pop(offset - first, None)
    found: dict[int, list[int]] = {}
    for index, number in times.items():
        found.setdefault(number, []).append(index)
    return found


def _by_version(versions: bytes, due: Iterable[int]) -> list[list[int] | None]:
    """The messages that are due, by index, in parts of one version each.

    They stay in order, unless that takes more frames, each as large as the entry, than there can be versions.
    """
    runs: list[list[int] | None] = []
    groups: dict[int, list[int] | None] = {}
    for version, members in itertools.groupby(due, versions.__getitem__):
        run = list(members)
        runs.append(run)
        groups[version] = (groups.get(version) or []) + run
    return runs if len(runs) <= SCHEMA_VERSIONS_MAX else list(groups.values())


def _acknowledged(one: Any, size: int) -> list[Range]:
    """The offsets of an entry that an id acknowledges: those without a bit, or one by its index, or all."""
    first = one.entry
    if len(one.ack_set):
        words = [word & (2**_WORD - 1) for word in one.ack_set]
        left = {index for index in range(min(size, _WORD * len(words))) if words[index // _WORD] >> index % _WORD & 1}
        done = [index for index in range(size) if index not in left]
        return [(first + a, first + b) for a, b in _runs_of(done)]
    if one.HasField("batch_index") and 0 <= one.batch_index < size and one.batch_size != 1:
        return [(first + one.batch_index, first + one.batch_index)]
    return [(first, first + size - 1)]


def _runs_of(indices: list[int]) -> list[Range]:
    found: list[Range] = []
    for _, group in itertools.groupby(enumerate(indices), lambda pair: pair[1] - pair[0]):
        members = [index for _, index in group]
        found.append((members[0], members[-1]))
    return found


async def head_at(hosted: HostedSegment, offset: int) -> Head | None:
    """The header of the entry that holds an offset; None where there is none, or no longer."""
    found = hosted.segment.read(offset) if 0 <= offset < hosted.segment.durable_offset else None
    block = await found if isawaitable(found) else found
    head = None if block is None else head_of(block.data)
    return head if head is not None and head.first <= offset <= head.last else None


async def _size_at(hosted: HostedSegment, offset: int) -> int:
    head = await head_at(hosted, offset)
    if head is None or head.first != offset:
        raise InvalidArgumentError(f"a message id must name the first message of an entry, got the offset {offset}")
    return head.last + 1 - head.first


_decompress = decompressor()
